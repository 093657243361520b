"""Rotary position embedding: which rotation a config.json asks for, and the table of its angles."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger("plait")

DEFAULT_THETA = 10_000.0  # of transformers, where a config.json names none
_BASE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_REQUIRED = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor"},
    "longrope": {"short_factor", "long_factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "proportional": set[str](),
}
_OPTIONAL = {
    "yarn": {
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
    "longrope": {"original_max_position_embeddings", "factor", "attention_factor"},
    "llama3": {"original_max_position_embeddings"},
    "proportional": {"factor", "partial_rotary_factor"},
}


@dataclass(frozen=True)
class Rope:
    """One rotation. Types that depend on the length are fixed here by `length`.

    A `dynamic` or `longrope` table therefore equals transformers', which looks at each batch,
    for sequences of that length (dynamic), or on the same side of the original length (longrope).
    """

    kind: str  # a rope_type of transformers
    theta: float
    parameters: tuple[tuple[str, Any], ...]  # the rest of rope_parameters, sorted by name
    head_dim: int
    max_position_embeddings: int
    length: int  # positions that the table has

    def frequencies(self) -> tuple[Tensor, float]:
        """Radians a position for each pair of entries [head_dim / 2], and a factor on cos and sin.

        All types but `default` are computed by transformers (modeling_rope_utils.py).
        """
        import torch

        if self.kind == "default":
            steps = torch.arange(0, self.head_dim, 2, dtype=torch.float) / self.head_dim
            return 1.0 / self.theta**steps, 1.0
        from transformers import PreTrainedConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = PreTrainedConfig()
        config.head_dim = config.hidden_size = self.head_dim
        config.num_attention_heads = 1
        config.max_position_embeddings = self.max_position_embeddings
        config.rope_parameters = {
            "rope_type": self.kind,
            "rope_theta": self.theta,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in self.parameters},
        }
        frequencies, factor = ROPE_INIT_FUNCTIONS[self.kind](config, seq_len=self.length)
        return frequencies, factor

    def table(self, device: torch.device | str = "cpu", positions: int | None = None) -> Tensor:
        """Cosines and sines of every position, float32 [length, 2, head_dim / 2].

        `positions`: the first so many are enough.
        """
        import torch

        frequencies, factor = self.frequencies()
        rows = self.length if positions is None else min(positions, self.length)
        angles = torch.arange(rows, dtype=torch.float)[:, None] * frequencies.cpu()
        return torch.stack([angles.cos() * factor, angles.sin() * factor], 1).to(device)


def read_rope(
    raw: Mapping[str, Any],
    head_dim: int,
    max_position_embeddings: int,
    max_length: int | None,
    ignore: frozenset[str],
    problems: list[str],
) -> tuple[Rope, int]:
    """The rotation of a config.json, in its old spelling or its new one; and the longest length.

    New: `rope_parameters`. Old: `rope_theta` beside `rope_scaling`, whose type may be called
    `type`. Where both are there, `rope_scaling` wins, as in transformers. The longest length is
    max_position_embeddings; only a `max_length` that asks for more gets what a scaling that
    names its factor was made for. Sentences about what cannot be honoured go to `problems`.
    """
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    given = raw.get(key) or {}
    if not isinstance(given, Mapping):
        problems.append(f"{key} must be an object or null, not {given!r}.")
        given = {}
    kind = given.get("rope_type", given.get("type", "default"))
    theta = given.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        log.warning("config.json names no rope_theta: %g, as transformers takes it", DEFAULT_THETA)
        theta = DEFAULT_THETA
    accepted = {name for name in given if {name, f"{key}.{name}"} & ignore}
    parameters = {k: v for k, v in given.items() if k not in _BASE | accepted}
    partial = given.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if kind == "proportional" and partial is not None:
        parameters["partial_rotary_factor"] = partial
    elif kind == "default" and partial not in (None, 1):
        log.warning("partial_rotary_factor %r: rope_type 'default' turns whole heads", partial)
    elif partial not in (None, 1):
        problems.append(
            f"{key}: partial_rotary_factor {partial!r} with rope_type {kind!r} is not implemented."
        )
    if kind in ("yarn", "longrope", "llama3"):
        outside = raw.get("original_max_position_embeddings")
        inside = parameters.get("original_max_position_embeddings")
        if outside is not None and inside not in (None, outside):
            problems.append(
                f"original_max_position_embeddings is {outside!r} in config.json and {inside!r} in "
                f"{key}: remove one of them."
            )
        parameters["original_max_position_embeddings"] = (
            inside or outside or max_position_embeddings
        )
    before = len(problems)
    _check(key, kind, theta, parameters, head_dim, problems)
    longest = max_position_embeddings
    if max_length is not None and max_length > longest and len(problems) == before:
        if kind == "dynamic":
            longest = int(longest * parameters["factor"])
        elif "original_max_position_embeddings" in {**given, **raw} and "factor" in parameters:
            original = parameters["original_max_position_embeddings"]
            longest = max(longest, int(original * parameters["factor"]))
    frozen = tuple(
        sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in parameters.items())
    )
    length = max_length or longest
    return Rope(str(kind), theta, frozen, head_dim, max_position_embeddings, length), longest


def _check(
    key: str,
    kind: Any,
    theta: Any,
    parameters: Mapping[str, Any],
    head_dim: int,
    problems: list[str],
) -> None:
    """Types, names and values of one rope type."""
    if not isinstance(kind, str) or kind not in _REQUIRED:
        known = ", ".join(_REQUIRED)
        problems.append(f"{key}: rope_type {kind!r} is not implemented; these are: {known}.")
        return
    if not _is_number(theta) or theta <= 1:
        problems.append(f"rope_theta must be a number above 1, not {theta!r}.")
    for name in sorted(_REQUIRED[kind] - set(parameters)):
        problems.append(f"{key}: rope_type {kind!r} needs {name!r}.")
    known_names = _REQUIRED[kind] | _OPTIONAL.get(kind, set())
    for name, value in parameters.items():
        if name not in known_names:
            problems.append(
                f"{key}: {name!r} means nothing to rope_type {kind!r}. To run the model "
                f"without it, say model.ignore_config: [{key}.{name}]."
            )
        elif name in ("short_factor", "long_factor"):
            if not (
                isinstance(value, list)
                and len(value) == head_dim // 2
                and all(_is_number(v) and v > 0 for v in value)
            ):
                problems.append(
                    f"{key}: {name} must be a list of {head_dim // 2} positive numbers."
                )
        elif name == "truncate":
            if not isinstance(value, bool):
                problems.append(f"{key}: truncate must be true or false, not {value!r}.")
        elif value is None and name not in _REQUIRED[kind]:
            continue
        elif name == "partial_rotary_factor":
            if not _is_number(value) or not 0 < value <= 1:
                problems.append(f"{key}: {name} must be a number up to 1, not {value!r}.")
        elif not _is_number(value) or value <= 0 or (name == "factor" and value < 1):
            least = "of at least 1" if name == "factor" else "above 0"
            problems.append(f"{key}: {name} must be a number {least}, not {value!r}.")


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # math.isfinite raises for an int beyond it
