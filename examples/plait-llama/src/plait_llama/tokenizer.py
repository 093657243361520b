"""The tokenizer that a GGUF file describes, as its model's own tokenizer.json would build it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from core.errors import UserError
from core.text import Tokenizer
from plait_llama.dialect import chat_templates
from plait_llama.header import Header

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type, of each token
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # of Llama 3's tokenizer.json
SPLITS = {  # tokenizer.ggml.pre: how text is split before merging
    "gpt-2": "words",
    "smollm": "words and digits",
    "llama-bpe": "llama3",
    "llama-v3": "llama3",
    "llama3": "llama3",
}


def tokenizer_of(header: Header) -> Tokenizer:
    """UserError when the file has none, or one of a kind that is not known here."""
    settings = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = settings.get("model")
    if kind not in BUILDERS or "tokens" not in settings:
        raise UserError(
            f"{header.path}: its tokenizer is of the kind {kind!r}, and plait-llama knows "
            f"{', '.join(BUILDERS)}. {ELSEWHERE}"
        )
    try:
        raw = BUILDERS[kind](settings)
    except UserError as error:
        raise UserError(f"{header.path}: {error} {ELSEWHERE}") from None
    except Exception as error:  # the library raises plain Exception for merges without tokens
        raise UserError(f"{header.path}: its tokenizer is broken: {error}. {ELSEWHERE}") from error
    _add_tokens(raw, settings)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{ours}_token": settings["tokens"][settings[f"{theirs}_token_id"]]
        for ours, theirs in names.items()
        if settings.get(f"{theirs}_token_id", len(settings["tokens"])) < len(settings["tokens"])
    }
    _add_ends(raw, settings, special)
    return Tokenizer(
        raw,
        special_tokens=special,
        chat_templates=chat_templates(header.metadata),
        source=str(header.path),
    )


ELSEWHERE = "Name a folder with a tokenizer.json in model.tokenizer."


def _byte_level(settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Merges of bytes, as in GPT-2, Llama 3 and SmolLM2."""
    name = settings.get("pre", "gpt-2")
    split = SPLITS.get(name)
    if split is None:
        raise UserError(
            f"its tokenizer splits text as {name!r} does, and plait-llama knows "
            f"{', '.join(SPLITS)}."
        )
    vocabulary = {token: id for id, token in enumerate(settings["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in settings.get("merges", ())]
    raw = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == "llama3"))
    if split == "llama3":
        steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated")]
    else:
        steps = [pre_tokenizers.Digits(individual_digits=True)] if "digits" in split else []
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split != "llama3")
    raw.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_])
    raw.decoder = decoders.ByteLevel()
    return raw


def _sentencepiece(settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Merges in the order of the tokens' scores, bytes for what is not there: Llama 1 and 2."""
    tokens = settings["tokens"]
    scores = settings.get("scores", [0.0] * len(tokens))
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        parts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(a, b) for a, b in parts if a in vocabulary and b in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(-score, *pair) for pair in known]
    merges.sort(key=lambda merge: merge[0])
    unknown = settings.get("unknown_token_id", 0)
    raw = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            [(a, b) for _, a, b in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = settings.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * prefix + [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    return raw


BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _add_tokens(raw: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that are one piece wherever they stand in a text."""
    kinds = settings.get("token_type", ())
    for token, kind in zip(settings["tokens"], kinds, strict=False):
        if kind in (UNKNOWN, CONTROL):
            raw.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            raw.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_ends(
    raw: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """The tokens that stand around every text, where the file or llama.cpp's habit says so."""
    usual = settings["model"] == "llama" or SPLITS.get(settings.get("pre")) == "llama3"
    first = special.get("bos_token") if settings.get("add_bos_token", usual) else None
    last = special.get("eos_token") if settings.get("add_eos_token", False) else None
    around = [token for token in (first, last) if token]
    if around:
        raw.post_processor = processors.TemplateProcessing(
            single=[*([first] if first else []), "$A", *([last] if last else [])],
            special_tokens=[(token, raw.token_to_id(token)) for token in dict.fromkeys(around)],
        )
