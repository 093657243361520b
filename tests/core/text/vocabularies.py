"""Small vocabularies of every kind that checkpoints bring, built in memory."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Raw

from core.text import Tokenizer

NAMED = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the dog jumps over the fox again",
    "Grüße aus Köln, naïve café, 你好世界, 你好吗, 😀😃😄 👩‍👩‍👧‍👦 ¡olé!",
    "def f(x):\n    return x + 1\n\nQuestion: what is 12 + 34?\nAnswer: 46\n",
)


def _mark(raw: Raw) -> Raw:
    """Add three special tokens and two ordinary added ones, as Qwen3 does."""
    raw.add_special_tokens(["<|im_end|>", "<|endoftext|>", "<|im_start|>"])
    raw.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>")])
    return raw


@cache
def raw_bytes() -> Raw:
    """One token a byte, 256 of them, then the added tokens 256 to 260."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Raw(models.BPE(vocab={c: number for number, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return _mark(raw)


@cache
def raw_trained() -> Raw:
    """A byte-level BPE with merges, so that tokens hold several, or parts of, characters."""
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    raw.train_from_iterator(CORPUS, trainer)
    return _mark(raw)


def _words(*first: str) -> dict[str, int]:
    words = [*first, "▁", "▁the", "▁cat", "s", "a", "b", "c", ".", "▁a", "é", "你"]
    return {word: number for number, word in enumerate(words)}


@cache
def raw_llama() -> Raw:
    """SentencePiece as in Llama 2: words begin with a mark, unknown characters fall to bytes."""
    vocab = _words("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))
    raw = Raw(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    raw.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 $B:0", special_tokens=[("<s>", 1)]
    )
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.add_tokens([AddedToken("<think>", normalized=False)])
    return raw


@cache
def raw_metaspace() -> Raw:
    raw = Raw(models.BPE(vocab=_words("<s>"), merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _mark(raw)


@cache
def raw_wordpiece() -> Raw:
    words = ["[UNK]", "the", "cat", "##s", "##ing", ".", ",", "n't", "a", "你", "##é"]
    vocab = {word: number for number, word in enumerate(words)}
    raw = Raw(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=True)
    return _mark(raw)


@cache
def raw_suffixes() -> Raw:
    """The first BPE: words end with a mark, which the last word of a text loses."""
    words = ["the</w>", "ca", "t</w>", "s</w>", ".</w>", "你</w>", "é"]
    raw = Raw(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    raw.decoder = decoders.BPEDecoder(suffix="</w>")
    return _mark(raw)


@cache
def raw_bare() -> Raw:
    """No decoder at all: tokens are joined with spaces."""
    words = ["the", "cat", "sat", "你"]
    return _mark(Raw(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="the")))


@cache
def raw_late_bytes() -> Raw:
    """Bytes, but with another step before them, so that the quick path must not be taken."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Raw(models.BPE(vocab={c: number for number, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.Sequence([decoders.Replace(Regex("Q"), "q"), decoders.ByteLevel()])
    return _mark(raw)


BYTE_LEVEL = {"bytes": raw_bytes, "trained": raw_trained}
OTHERS = {
    "llama": raw_llama,
    "metaspace": raw_metaspace,
    "wordpiece": raw_wordpiece,
    "suffixes": raw_suffixes,
    "bare": raw_bare,
    "late_bytes": raw_late_bytes,
}
ALL = BYTE_LEVEL | OTHERS


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(ALL[name](), special_tokens=NAMED, source=name)
