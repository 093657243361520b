"""The weights of a GGUF file under the names of a Hugging Face checkpoint, region by region."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.errors import UserError
from core.parallel import Index, Source
from core.parallel.recipe import Box, Range, slices
from plait_llama.header import Header, Stored, read_header
from plait_llama.metadata import config_of

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PLAIN = {  # types that need no arithmetic: what torch and safetensors call them
    "F16": (torch.float16, "F16"),
    "BF16": (torch.bfloat16, "BF16"),
    "F32": (torch.float32, "F32"),
    "F64": (torch.float64, "F64"),
}
ROPE_FACTORS = "rope_freqs.weight"
PIECE = 1 << 20  # entries that are unpacked at a time, so that little is held beside the result


class GgufSource(Source):
    """Reads the rows that are asked for, and unpacks quantized ones to float32.

    llama.cpp turns neighbouring entries of a head, transformers the two halves of it, so rows of
    q_proj and k_proj are stored in another order: that is undone here.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.header: Header = read_header(path)
        self._tensors = {
            renamed(name): stored
            for name, stored in self.header.tensors.items()
            if name != ROPE_FACTORS
        }
        self._file: BufferedReader | None = None
        for stored in {stored.kind: stored for stored in self._tensors.values()}.values():
            _check_kind(path, stored)

    def config(self) -> dict[str, Any]:
        factors = self.header.tensors.get(ROPE_FACTORS)
        return config_of(self.header, factors and self._vector(factors).tolist())

    def index(self) -> Index:
        return {
            name: (stored.shape, PLAIN[stored.kind][1] if stored.kind in PLAIN else "F32")
            for name, stored in self._tensors.items()
        }

    def read(self, name: str, box: Box) -> Tensor:
        stored = self._tensors[name]
        head = self._rows_to_turn(stored)
        if len(stored.shape) == 1:
            region = _turned(self._vector(stored), head)[slices(box)]
        else:
            (top, bottom, *_), (left, right, *_) = box
            # whole heads, and whole blocks
            first, last = top // head * head, -(-bottom // head) * head
            begin, end = left // stored.block, -(-right // stored.block)
            region = _turned(self._rows(stored, first, last, begin, end), head)
            inside = (shifted(box[0], first), shifted(box[1], begin * stored.block))
            region = region[slices(inside)]
        self.bytes_read += region.numel() * region.element_size()
        return region

    def _rows_to_turn(self, stored: Stored) -> int:
        """Rows of a head where their order has to be undone, else 1."""
        part = stored.name.split(".")[-2]
        if part not in ("attn_q", "attn_k"):
            return 1
        setting = self.header.setting
        heads = setting("attention.head_count")
        return stored.shape[0] // (
            heads if part == "attn_q" else setting("attention.head_count_kv", heads)
        )

    def _vector(self, stored: Stored) -> Tensor:
        """All of a tensor of one dim, as it is stored."""
        return self._rows(stored, 0, 1, 0, stored.shape[0] // stored.block)[0]

    def _rows(self, stored: Stored, first: int, last: int, begin: int, end: int) -> Tensor:
        """Blocks `begin` to `end` of some rows, as they are stored."""
        width = (end - begin) * stored.block
        dtype = PLAIN[stored.kind][0] if stored.kind in PLAIN else torch.float32
        rows = torch.empty(last - first, width, dtype=dtype)
        step = max(1, PIECE // stored.shape[-1])
        for at in range(first, last, step):
            count = min(step, last - at)
            raw = np.frombuffer(self._bytes(stored, at, count), np.uint8).reshape(count, -1)
            raw = raw[:, begin * stored.block_bytes : end * stored.block_bytes]
            rows[at - first : at - first + count] = unpacked(raw, stored.kind)
        return rows

    def _bytes(self, stored: Stored, first: int, count: int) -> bytearray:
        path = self.header.path
        raw = bytearray(count * stored.row_bytes)
        try:
            if self._file is None:
                self._file = path.open("rb")
            self._file.seek(stored.start + first * stored.row_bytes)
            found = self._file.readinto(raw)
        except OSError as error:
            raise UserError(f"{path}: tensor {stored.name} cannot be read: {error}.") from error
        if found < len(raw):
            raise UserError(f"{path}: tensor {stored.name} is cut off. Download the file again.")
        return raw

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def renamed(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; an unknown name stays."""
    match name.split("."):
        case ["blk", layer, part, field] if part in NAMES:
            return f"model.layers.{layer}.{NAMES[part]}.{field}"
        case [part, field] if part in NAMES:
            return f"{NAMES[part]}.{field}"
    return name


def unpacked(raw: np.ndarray, kind: str) -> Tensor:
    """Bytes of rows [N, bytes] -> their entries [N, entries]."""
    raw = np.ascontiguousarray(raw)
    if kind in PLAIN:
        return torch.from_numpy(raw).view(PLAIN[kind][0])
    import gguf

    return torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]))


def shifted(extent: Range, by: int) -> Range:
    """The same range, counted from `by`."""
    return (extent[0] - by, extent[1] - by, *extent[2:])


def _turned(rows: Tensor, head: int) -> Tensor:
    """Rows of whole heads from llama.cpp's order (x0 y0 x1 y1 ...) to (x0 x1 ... y0 y1 ...).

    Source: `permute` in llama.cpp's convert_hf_to_gguf.py, backwards.
    """
    if head == 1:
        return rows
    return rows.unflatten(0, (-1, head // 2, 2)).transpose(1, 2).flatten(0, 2)


def _check_kind(path: Path, stored: Stored) -> None:
    try:
        unpacked(np.zeros((1, stored.block_bytes), np.uint8), stored.kind)
    except NotImplementedError:
        raise UserError(
            f"{path}: tensor {stored.name} is of type {stored.kind}, which the package gguf "
            "cannot unpack. Use a file of another quantization."
        ) from None
