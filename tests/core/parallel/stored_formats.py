"""How checkpoints store quantized matrices, as formats: block-wise and other FP8, GPTQ, AWQ."""

from __future__ import annotations

from core.parallel.formats import DENSE, PART, Format


def fp8_block(block_out: int = 128, block_in: int = 128) -> Format:
    """FP8 weights with one scale per block; the grid is rounded up at the edges."""
    scale = {"weight_scale_inv": (("out", block_out), ("in", block_in))}
    return Format(f"fp8-block-{block_out}x{block_in}", {**DENSE.roles, **scale})


FP8_CHAN = Format("fp8-channel", {**DENSE.roles, "weight_scale": (("out", 1),)})
FP8_TENSOR = Format("fp8-tensor", {**DENSE.roles, "weight_scale": ((PART, 1),)})


def gptq(bits: int = 4, group: int = 128, desc_act: bool = False) -> Format:
    """GPTQ: weights packed along `in`, zeros along `out`, one scale per group on `in`."""
    pack = 32 // bits
    reason = "its act-order groups (desc_act) are scattered over the whole input"
    return Format(
        f"gptq-{bits}bit-g{group}" + ("-act-order" if desc_act else ""),
        {
            "qweight": (("in", pack), ("out", 1)),
            "qzeros": (("in", group), ("out", pack)),
            "scales": (("in", group), ("out", 1)),
            "g_idx": (("in", 1),),
            "bias": (("out", 1),),
        },
        {"in": reason} if desc_act else {},
    )


def awq(bits: int = 4, group: int = 128) -> Format:
    """AWQ: weights and zeros packed along `out`, one scale per group on `in`."""
    pack = 32 // bits
    return Format(
        f"awq-{bits}bit-g{group}",
        {
            "qweight": (("in", 1), ("out", pack)),
            "qzeros": (("in", group), ("out", pack)),
            "scales": (("in", group), ("out", 1)),
            "bias": (("out", 1),),
        },
    )
