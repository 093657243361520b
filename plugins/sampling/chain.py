"""Logits processors that a user has chosen: made from options, run so that no row harms another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch import Tensor

from core import registry
from core.errors import UserError
from core.importing import cause
from core.settings.checking import Unfit, check

if TYPE_CHECKING:
    from core.interfaces import LogitsProcessor
    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows

log = logging.getLogger("plait")

MOST_WARNINGS = 20
LONGEST_NAME = 100  # characters; keys are whatever a client sends, and no client may fill the log


class Chain:
    """Processors in the order in which they were named.

    What one of them does wrong is an error of the rows concerned: when it raises for several rows,
    it is asked again for each alone.
    """

    def __init__(
        self, chosen: Sequence[Any], built_in: Collection[type[LogitsProcessor]] = ()
    ) -> None:
        """`chosen`: names, or mappings of `use: name` and options. UserError if one is unusable.

        `built_in`: those that run in any case, so that nobody may choose them.
        """
        self.processors: Mapping[str, LogitsProcessor] = {}
        self._built_in = built_in
        self._warned: set[str] = set()
        for entry in chosen:
            self.add(*self.make(entry))

    def make(self, entry: Any) -> tuple[str, LogitsProcessor]:
        """One that may join, and its name. UserError as when the chain is made."""
        name, processor = _make(entry)
        if name in self.processors:
            raise UserError(f"the logits processor {name!r} is named twice.")
        if type(processor) in self._built_in:
            raise UserError(f"{name!r} is part of the default sampler. Leave it out.")
        return name, processor

    def add(self, name: str, processor: LogitsProcessor) -> None:
        """One more, behind the others. Other threads may be going through those."""
        self.processors = {**self.processors, name: processor}

    @property
    def asks_all(self) -> bool:
        """Whether one of them may want any request, also one without wishes of its own."""
        return not all(processor.only_asked for processor in self.processors.values())

    def accepts(self, params: SamplingParams) -> list[str]:
        """Reasons of the processors. Warns once about each of the first extra_args that nobody
        reads."""
        reasons: list[str] = []
        for name, processor in self.processors.items():
            try:
                reasons += [f"{name}: {reason}" for reason in processor.accepts(params)]
                processor.wants(params)
            except Exception as error:
                reasons.append(_failed(name, error))
        for key in sorted(params.extra_args or ()):
            if len(self._warned) >= MOST_WARNINGS:
                break
            self._warn(key, params)
        return reasons

    def _warn(self, key: str, params: SamplingParams) -> None:
        name = key[:LONGEST_NAME]
        if name in self._warned or self._reads(key, params):
            return
        self._warned.add(name)
        names = ", ".join(self.processors) or "none"
        log.warning("extra_args: nothing reads %r. Logits processors: %s.", name, names)
        if len(self._warned) == MOST_WARNINGS:
            log.warning("extra_args: further names that nothing reads are not told.")

    def _reads(self, key: str, params: SamplingParams) -> bool:
        """Whether a processor says so by its attribute `extra_args`, or wants a request for it."""
        alone = params.clone()
        alone.extra_args = {key: (params.extra_args or {})[key]}
        for processor in self.processors.values():
            if key in getattr(processor, "extra_args", ()):
                return True
            try:
                if processor.wants(alone):
                    return True
            except Exception:
                return True  # it stumbles over the key, so it reads it
        return False

    def concerns(self, rows: SampleRows) -> list[int]:
        """The rows s that any of them changes, or cannot judge."""
        found = [self._asked(name, rows) for name in self.processors]
        return sorted({s for wanted, failed in found for s in (*wanted, *failed)})

    def __call__(
        self, logits: Tensor, rows: SampleRows, blame: Callable[[int, str], None]
    ) -> Tensor:
        """logits [N, V] float32, changed in place. `blame` is told of rows that cannot go on."""
        for name, processor in self.processors.items():
            wanted, failed = self._asked(name, rows)
            for s, sentence in failed.items():
                blame(int(rows.rows[s]), sentence)
            if wanted:
                part = rows.subset(wanted)
                logits = part.put(logits, _run(name, processor, part.take(logits), part, blame))
        return logits

    def _asked(self, name: str, rows: SampleRows) -> tuple[list[int], dict[int, str]]:
        """The rows that a processor wants, and the sentences where asking it failed."""

        def ask() -> tuple[list[int], dict[int, str]]:
            wanted, failed = [], {}
            for s, params in enumerate(rows.params):
                try:
                    if self.processors[name].wants(params):
                        wanted.append(s)
                except Exception as error:
                    failed[s] = _failed(name, error)
            return wanted, failed

        asked: tuple[list[int], dict[int, str]] = rows.remember((Chain, name), ask)
        return asked


def _run(
    name: str,
    processor: LogitsProcessor,
    logits: Tensor,
    rows: SampleRows,
    blame: Callable[[int, str], None],
) -> Tensor:
    try:
        # a copy, so that one which fails half-way leaves nothing behind
        changed = processor(logits.clone(), rows)
        if not isinstance(changed, Tensor) or changed.shape != logits.shape:
            got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(f"it must return logits {list(logits.shape)}, not {got}")
        return changed.to(logits.dtype)
    except Exception as error:
        if len(rows) == 1:
            blame(int(rows.rows[0]), _failed(name, error))
            return logits
    alone = (
        _run(name, processor, logits[s : s + 1], rows.subset([s]), blame) for s in range(len(rows))
    )
    return torch.cat(list(alone))


def _failed(name: str, error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)  # the request's own mistake
    provider = registry.processors.entry(name).provider
    whose = f", in {provider}" if provider.plugin else ""
    return f"the logits processor {name!r} failed: {cause(error)}{whose}"


def name_of(entry: Any) -> str:
    """The name of a name, or of a mapping of `use: name` and options. UserError for others."""
    name = entry.get("use") if isinstance(entry, Mapping) else entry
    if not isinstance(name, str):
        raise UserError(f"a logits processor is a name or {{use: name, ...}}, not {entry!r}.")
    return name


def _make(entry: Any) -> tuple[str, LogitsProcessor]:
    name = name_of(entry)
    given = {k: v for k, v in entry.items() if k != "use"} if isinstance(entry, Mapping) else {}
    cls = registry.processors.get(name)
    known = {f.name for f in fields(cls.Options) if f.init}
    hints = get_type_hints(cls.Options)
    mistakes, options = [], {}
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = (
                f"Did you mean {near[0]!r}?" if near else f"Options: {', '.join(known) or 'none'}."
            )
            mistakes.append(f"{name}: there is no option {key!r}. {hint}")
            continue
        try:
            options[key] = check(hints[key], value)
        except Unfit as error:
            mistakes.append(f"{name}: {key}: {error}")
    if mistakes:
        raise UserError("\n".join(mistakes))
    try:
        return name, cls(cls.Options(**options))
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}") from error
