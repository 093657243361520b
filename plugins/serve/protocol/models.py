"""Answers of `/v1/models` and `/version`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int  # seconds since 1970: when the server began
    owned_by: str = "plait"
    root: str
    parent: None = None
    max_model_len: int  # the most tokens of a request, prompt and answer together
    permission: list[Any] = []


class ModelList(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All of them: one."""

    object: Literal["list"] = "list"
    data: list[Model]


class Version(msgspec.Struct, forbid_unknown_fields=True):
    """The version of Plait."""

    version: str
