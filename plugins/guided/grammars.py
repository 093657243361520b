"""The forms that an engine has read, ready to be followed; shared by its parts in one process."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from core.errors import UserError
from core.setup import open_tokenizer
from plugins.guided.limits import KEPT, LIMITS
from plugins.guided.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from core.config import Config
    from core.setup import Setup
    from plugins.guided.form import Form
    from plugins.guided.gate import Gate


_SCHEMA_IN_GRAMMAR = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: [^\n]*)")
"""The whole line of the grammar follows, which may be long."""


class Kept(NamedTuple):
    """What came of reading a form."""

    found: LLMatcher | str  # or why it is refused
    seconds: float  # that reading took; the more, the larger it is


class Grammars:
    """Keeps the forms that were asked for last, also those that were refused."""

    def __init__(self, config: Config, setup: Setup, most: int, longest: int) -> None:
        """`most`: forms that are kept. `longest`: characters that one may have."""
        self._config, self._setup, self._most, self._longest = config, setup, most, longest
        self._read: OrderedDict[Form, Kept] = OrderedDict()
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's. UserError where there is no text, or no end of it."""
        with self._lock:
            if self._vocabulary is None:
                size = self._setup.model_config.vocab_size
                if (tokenizer := open_tokenizer(self._config)) is None:
                    raise UserError("a form needs a tokenizer. Set model.tokenizer.")
                ends = self._setup.checkpoint.eos_ids() | tokenizer.eos_ids
                if not (possible := sorted(end for end in ends if end < size)):
                    raise UserError("a form needs an end of text, and this model names none.")
                self._vocabulary = vocabulary(tokenizer, size, possible)
        return self._vocabulary

    def knows(self, form: Form) -> bool:
        """Whether asking for it again takes no time."""
        with self._lock:
            return form in self._read

    def reason(self, form: Form, gate: Gate) -> str | None:
        """Why a form cannot be served; None when it can. May take a while the first time."""
        if len(form.text) > self._longest:
            return (
                f"it has {len(form.text)} characters, and {self._longest} are allowed. Shorten it."
            )
        found = self._find(form)
        if found is None:
            try:
                reason = gate.reason(form, self.vocabulary.names)
                found = brief(reason) if reason else self._fresh_and_kept(form)
            except UserError as error:
                found = str(error)
            if isinstance(found, str):
                self._keep(form, Kept(found, 0.0))
            else:
                found.deep_copy().compute_bitmask()  # what starting takes is done now
        return found if isinstance(found, str) else None

    def start(self, form: Form) -> LLMatcher:
        """A matcher at the beginning of a form that was accepted; copy it before you follow it."""
        found = self._find(form)
        if found is None or isinstance(found, str):
            found = self._fresh_and_kept(form)
        return found

    def forget(self, form: Form, started: LLMatcher) -> None:
        """What `start` gave has come to a limit: whoever asks next gets another one."""
        with self._lock:
            if (kept := self._read.get(form)) is not None and kept.found is started:
                del self._read[form]

    def fresh(self, form: Form) -> LLMatcher:
        """One that shares nothing with others. UserError for a form that cannot be served."""
        from llguidance import LLMatcher
        from llguidance._lib import LLParserLimits

        limits = LLParserLimits(**LIMITS)
        matcher = LLMatcher(self.vocabulary.made, form.grammar(), log_level=0, limits=limits)
        if matcher.is_error():
            raise UserError(brief(matcher.get_error()))
        return matcher

    def _find(self, form: Form) -> LLMatcher | str | None:
        with self._lock:
            if (kept := self._read.get(form)) is None:
                return None
            self._read.move_to_end(form)
            return kept.found

    def _fresh_and_kept(self, form: Form) -> LLMatcher:
        began = time.thread_time()
        found = self.fresh(form)
        self._keep(form, Kept(found, time.thread_time() - began))
        return found

    def _keep(self, form: Form, kept: Kept) -> None:
        with self._lock:
            self._read[form] = kept
            self._read.move_to_end(form)
            seconds = sum(each.seconds for each in self._read.values())
            while len(self._read) > self._most or (seconds > KEPT and len(self._read) > 1):
                _, gone = self._read.popitem(last=False)
                seconds -= gone.seconds


def brief(told: str) -> str:
    """What llguidance says is wrong, without what it tells about itself."""
    told = told.replace("<non-verbose/>", "").strip()
    if told == "NoExtensionBias":
        return "it says what it is by itself alone, so no answer would ever end"
    if (found := _SCHEMA_IN_GRAMMAR.match(told)) is not None:
        return found[1]
    return told or "it is over a limit"
