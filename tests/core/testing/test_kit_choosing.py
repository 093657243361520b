"""Words of the kit's command line: components with options, and references, or what is wrong."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core import plugins
from core.errors import UserError
from core.registry import registries
from core.scheduling import QueueScheduler
from core.testing.choosing import choose, wrong_references
from core.testing.plugin import KINDS

OPTIONS = {kind.option: kind for kind in KINDS}


class Needy(QueueScheduler):
    @dataclass(kw_only=True)
    class Options(QueueScheduler.Options):
        short: int = field(metadata={"help": "most tokens of a short prompt"})
        names: list[str] = field(default_factory=list, metadata={"help": "names"})

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.short < 0:
                raise ValueError("short must not be below 0")

    def order(self, request):
        return request.arrival


@pytest.fixture(autouse=True)
def needy():
    plugins.load()
    before = registries.snapshot()
    registries.schedulers.register("needy", Needy)
    yield
    registries.restore(before)


@pytest.mark.parametrize(
    ("option", "word", "said"),
    [
        (
            "scheduler",
            "needy",
            "--scheduler: the scheduler 'needy' has options without a default. Give them as a "
            "configuration does: --scheduler='{use: needy, short: VALUE}'.",
        ),
        (
            "scheduler",
            "{use: needy, short: 1, short: 2}",
            "--scheduler.short: is set twice, first on line 1. Keep one.",
        ),
        (
            "scheduler",
            "{use: needy, short: x}",
            "--scheduler.short: must be a whole number, not 'x'.",
        ),
        ("scheduler", "{use: needy, short: -1}", "--scheduler: short must not be below 0"),
        (
            "scheduler",
            "{use: fcfs, shrt: 3}",
            "--scheduler.shrt: scheduler 'fcfs' has no such option. Options: max_num_seqs, "
            "max_num_batched_tokens, chunked_prefill, max_chunk, watermark.",
        ),
        (
            "backend",
            "{short: 3}",
            "--backend={short: 3}: it does not say which attention backend. Write {use: NAME, "
            "option: value}.",
        ),
        (
            "quantization",
            "{use: int8",
            "--quantization: '{use: int8' is not YAML: expected ',' or '}', but got "
            "'<stream end>'.",
        ),
        (
            "model",
            "{use: Qwen3ForCausalLM, layers: 3}",
            "--model.layers: model 'Qwen3ForCausalLM' has no such option. Options: none.",
        ),
        ("scheduler", "{use: fcsf, x: 1}", "no scheduler is called 'fcsf'. Did you mean 'fcfs'?"),
    ],
)
def test_what_is_wrong_with_a_word_is_said_in_a_sentence(option, word, said) -> None:
    with pytest.raises(UserError) as caught:
        choose(OPTIONS[option], word)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("word", ["fcfs", "{use: fcfs}", " { use: fcfs }"])
def test_without_options_it_is_the_component_itself(word: str) -> None:
    assert choose(OPTIONS["scheduler"], word.strip()) == "fcfs"


def test_options_become_defaults_of_a_class_of_its_own() -> None:
    name = choose(OPTIONS["scheduler"], "{use: needy, short: 7, names: [a, b], max_chunk: 5}")
    assert name == "needy-short-7-names-a-b-max_chunk-5"
    made = registries.schedulers.get(name)
    assert issubclass(made, Needy)
    one, other = made.Options(), made.Options(short=8)
    assert (one.short, one.names, one.max_chunk, other.short) == (7, ["a", "b"], 5, 8)
    assert one.names is not other.names
    assert [f.metadata for f in dataclasses.fields(made.Options)] == [
        f.metadata for f in dataclasses.fields(Needy.Options)
    ]
    with pytest.raises(ValueError, match="below 0"):
        made.Options(short=-2)


def test_the_same_word_twice_is_one_component() -> None:
    names = {choose(OPTIONS["scheduler"], "{use: needy, short: 7}") for _ in range(2)}
    (name,) = names
    assert issubclass(registries.schedulers.get(name), Needy)


@pytest.mark.parametrize(
    "words",
    [("{use: needy, short: 1, names: [a b]}", "{use: needy, short: 1, names: [a, b]}"),
     ("{use: needy, short: 1, names: [+]}", "{use: needy, short: 1, names: [-]}"),
     ("{use: needy, short: 1, names: ['1']}", "{use: needy, short: 1, names: [1, '']}")],
)  # fmt: skip
def test_words_that_read_alike_are_components_of_their_own(words: tuple[str, str]) -> None:
    """Else what is tested would be one of them, twice."""
    names = [choose(OPTIONS["scheduler"], word) for word in (*words, *words)]
    assert names[:2] == names[2:]
    first, second = (registries.schedulers.get(name).Options() for name in names[:2])
    assert first.names != second.names


def test_options_of_a_strategy_stay_frozen() -> None:
    name = choose(OPTIONS["sharding"], "{use: colwise, gather: true}")
    options = registries.sharding.get(name).Options()
    assert options.gather is True
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.gather = False


def test_references_that_nothing_can_be_compared_with(tmp_path: Path) -> None:
    for folder, text in (("none", None), ("odd", "[]"), ("other", '{"architectures": ["Other"]}')):
        (tmp_path / folder).mkdir()
        if text is not None:
            (tmp_path / folder / "config.json").write_text(text)
    folders = [str(tmp_path / name) for name in ("away", "none", "odd", "other")]
    away, none, odd, other = wrong_references(folders, ["Own"])
    assert away == f"--reference={folders[0]}: there is no such folder."
    assert none.startswith(f"--reference={folders[1]}: {folders[1]}/config.json cannot be read")
    assert (
        odd
        == f"--reference={folders[2]}: {folders[2]}/config.json must hold a JSON object, not list."
    )
    assert other == (
        f"--reference={folders[3]}: architectures in its config.json is ['Other'], and the models "
        "under test are Own. Name its own with --model."
    )
    assert wrong_references(folders[3:], ["Own", "Other"]) == []
    assert wrong_references(folders[3:], None) == []
