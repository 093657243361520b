"""Reading a checkpoint's tokenizer files, old layout or new."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.json_files import read_json
from core.text.unicode import whole_text

log = logging.getLogger(__name__)

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
IDS_STILL_WORK = "Prompts given as token ids work without a tokenizer."
OTHER_FORMATS = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tiktoken.model",
                 "tekken.json")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a checkpoint's files say about its tokenizer."""

    raw: Any  # tokenizers.Tokenizer
    special_tokens: dict[str, str]  # {"eos_token": "<|im_end|>", ...}
    chat_templates: dict[str, str]  # by name; the ordinary one is "default"


def has_tokenizer(folder: Path) -> bool:
    """Whether a checkpoint's folder holds any file of a tokenizer."""
    names = ("tokenizer.json", "tokenizer_config.json", *OTHER_FORMATS)
    return any((folder / name).is_file() for name in names)


def read_tokenizer(path: str | Path) -> TokenizerFiles:
    """Read the tokenizer in directory `path` (or the `tokenizer.json` that `path` is).

    `tokenizer.json` is enough to build the vocabulary without importing transformers, which takes
    two seconds; other formats are converted by transformers. Code from the checkpoint never runs.

    Raises:
        UserError: no tokenizer there, a broken file, or one that only the checkpoint's own code
            could read.
    """
    path = Path(path)
    folder, vocabulary = (path.parent, path) if path.is_file() else (path, path / "tokenizer.json")
    if not folder.is_dir():
        raise UserError(f"{path}: no such directory, so no tokenizer. {IDS_STILL_WORK}")
    config = read_json(folder / "tokenizer_config.json", optional=True)
    own_code = _names_own_code(config)
    if not vocabulary.is_file():
        if own_code:
            raise UserError(
                f"{folder}: this tokenizer is code inside the checkpoint (auto_map in "
                "tokenizer_config.json), which Plait never runs, and there is no tokenizer.json. "
                f"Use a checkpoint that has one, or a plugin for it. {IDS_STILL_WORK}"
            )
        return _convert(folder, config)
    if own_code:
        log.warning(
            "%s: tokenizer_config.json asks for code inside the checkpoint (auto_map); Plait does "
            "not run it and reads tokenizer.json alone.",
            folder,
        )
    raw = _read_vocabulary(vocabulary)
    named = _named_tokens(folder, config)
    _add_missing(raw, config, named, folder)
    raw.encode_special_tokens = bool(config.get("split_special_tokens", False))
    special_tokens = {key: text for key, text in named if key.endswith("_token")}
    return TokenizerFiles(raw, special_tokens, _chat_templates(folder, config))


def _names_own_code(config: Mapping[str, Any]) -> bool:
    auto_map = config.get("auto_map")
    return bool(auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map)


def _read_vocabulary(path: Path) -> Any:
    import tokenizers

    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever is in the file
        raise UserError(
            f"{path}: cannot be read as a tokenizer: {error}. Is the file complete (a few hundred "
            "bytes mean a git-lfs pointer)?"
        ) from None
    raw.no_truncation()
    raw.no_padding()
    return raw


def _named_tokens(folder: Path, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs such as ("eos_token", "<|im_end|>"); extra special tokens have the key ""."""
    entries = dict(config)
    if "added_tokens_decoder" not in config:  # before transformers 4.34 they stood in this file
        entries |= read_json(folder / "special_tokens_map.json", optional=True)
    named = []
    for key, value in entries.items():
        if key in ("extra_special_tokens", "additional_special_tokens"):
            if not isinstance(value, dict | list | None):
                raise UserError(
                    f"{folder}: tokenizer_config.json: {key} must be a list or a table."
                )
            inner = value.items() if isinstance(value, dict) else (("", v) for v in value or ())
            named += [(name, _content(token)) for name, token in inner]
        elif key.endswith("_token") and isinstance(value, str | dict):
            named.append((key, _content(value)))
    for key, text in named:
        whole_text(text, f"{folder}: tokenizer_config.json: {key or 'a special token'}")
    return [(key, text) for key, text in named if text]


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _add_missing(
    raw: Any, config: Mapping[str, Any], named: list[tuple[str, str]], folder: Path
) -> None:
    """Tokens that only tokenizer_config.json knows join the vocabulary, as transformers does it."""
    from tokenizers import AddedToken

    known = raw.get_added_tokens_decoder()
    for number, fields in sorted(_declared(config, folder), key=lambda item: item[0]):
        if number in known:
            continue
        raw.add_tokens([AddedToken(**fields)])
        text = fields["content"]
        if raw.token_to_id(text) != number:
            raise UserError(
                f"{folder}: tokenizer_config.json gives {text!r} the id {number}, but with "
                f"tokenizer.json it is {raw.token_to_id(text)}: the files do not belong together."
            )
    special = {t.content for t in raw.get_added_tokens_decoder().values() if t.special}
    missing = dict.fromkeys(text for _, text in named if text not in special)
    raw.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _declared(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(id, arguments of its AddedToken) for each entry of added_tokens_decoder."""
    declared = config.get("added_tokens_decoder") or {}
    for number, token in declared.items() if isinstance(declared, dict) else [("", declared)]:
        known = token if isinstance(token, dict) else {}
        flags = {name: known[name] for name in FLAGS if name in known}
        good = isinstance(known.get("content"), str) and {*map(type, flags.values())} <= {bool}
        if not (good and number.isascii() and number.isdigit() and len(number) < 10):
            raise UserError(
                f"{folder}: tokenizer_config.json: added_tokens_decoder must map ids to tokens, "
                f'{{"content": "<|end|>", "special": true}}; {number!r} is {token!r:.80}.'
            )
        content = whole_text(known["content"], f"{folder}: tokenizer_config.json: token {number}")
        yield int(number), {"content": content, **flags}


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files win over tokenizer_config.json, where older checkpoints keep one or a list."""
    paths = {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        paths["default"] = folder / "chat_template.jinja"
    if paths:
        return {name: _read_text(path) for name, path in paths.items()}
    inline = config.get("chat_template")
    if isinstance(inline, str):
        return {"default": inline}
    entries = inline or []
    named = ("name", "template")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in named)
        for entry in entries
    ):
        raise UserError(
            f"{folder}: tokenizer_config.json: chat_template must be text, or a list of "
            '{"name": ..., "template": ...}.'
        )
    return {entry["name"]: entry["template"] for entry in entries}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None


def _convert(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Let transformers build the vocabulary from another format."""
    if not any((folder / name).is_file() for name in OTHER_FORMATS):
        raise UserError(
            f"{folder}: no tokenizer (tokenizer.json, or one of {', '.join(OTHER_FORMATS)}). "
            f"{IDS_STILL_WORK}"
        )
    from transformers import AutoTokenizer

    try:
        auto = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # whatever a converter meets in a foreign file
        raise UserError(
            f"{folder}: there is no tokenizer.json, and transformers cannot convert what is there: "
            f"{error} {IDS_STILL_WORK}"
        ) from error
    raw = getattr(auto, "backend_tokenizer", None)
    if raw is None:
        raise UserError(
            f"{folder}: transformers reads this tokenizer in Python ({type(auto).__name__}); Plait "
            f"needs one that can be written as tokenizer.json. {IDS_STILL_WORK}"
        )
    raw.no_truncation()
    raw.no_padding()
    return TokenizerFiles(raw, dict(auto.special_tokens_map), _chat_templates(folder, config))
