"""Building a Config: every mistake at once, with its place; and what a good one holds."""

from __future__ import annotations

import os

import pytest

from core.errors import UserError
from core.settings import load
from tests.thirdparty.installed import Site

pytestmark = pytest.mark.usefixtures("parts")


def refusal(*words: str, file: str | None = None, path: str = "x") -> str:
    with pytest.raises(UserError) as caught:
        load(file, [f"model.path={path}", *words] if path else words)
    return str(caught.value)


def test_a_minimal_configuration_has_every_default() -> None:
    config = load(None, ["model.path=x"])
    assert config.model.path == "x"
    assert config.model.dtype == "auto"
    assert config.cache.memory_fraction == 0.9
    assert config.scheduler.use == "fcfs"
    assert (config.attention.use, config.runner.use, config.executor.use) == (
        "sdpa",
        "eager",
        "local",
    )
    assert config.origins == {
        "model.path": "command line",
        "model.device": "auto: none here",
        "attention.use": "auto: on cpu",
        "kernels.use": "auto: on cpu",
        "runner.use": "auto: on cpu",
        "executor.use": "auto: on cpu",
    }


def test_words_win_over_the_file_and_origins_say_so(write) -> None:
    write("a.yaml", "model: {path: x, seed: 1}\ncache:\n  pages: 3\n")
    config = load("a.yaml", ["model.seed=2"], plugins=[])
    assert (config.model.seed, config.cache.pages) == (2, 3)
    assert config.origins["model.seed"] == "command line"
    assert config.origins["cache.pages"] == "a.yaml:3"


def test_all_mistakes_come_at_once_each_with_its_place(write) -> None:
    write("base.yaml", "model:\n  dtype: flaot32\n")
    write(
        "bad.yaml",
        "extends: base.yaml\n"
        "model:\n"
        "  dtyp: bfloat16\n"
        "  seed: 1.5\n"
        "cache:\n"
        "  page_size: many\n"
        "  tensor: 2\n"
        "  prefix: 1\n"
        "  memory: 4 apples\n"
        "parallel: {tensor: 0, expert: 2}\n"
        "modle: {seed: 3}\n"
        "sampler: {use: min-p, flor: 0.2}\n"
        "scheduler: fcsf\n",
    )
    assert refusal("cache.pages=-1", file="bad.yaml", path="").splitlines() == [
        "bad.yaml:3: model.dtyp: there is no such key. Did you mean model.dtype?",
        "bad.yaml:4: model.seed: must be a whole number, not 1.5.",
        "bad.yaml:6: cache.page_size: must be a whole number or auto, not 'many'.",
        "bad.yaml:7: cache.tensor: there is no such key. Did you mean parallel.tensor?",
        "bad.yaml:8: cache.prefix: must be true or false, not 1.",
        "bad.yaml:9: cache.memory: '4 apples' is not a size. Write a number and a unit, "
        "such as 4GiB.",
        "bad.yaml:10: parallel.tensor: must be 1 or more, not 0.",
        "bad.yaml:10: parallel.expert: expert parallel is not implemented: it must be 1, not 2.",
        "bad.yaml:11: modle: there is no such section. Did you mean model?",
        "bad.yaml:12: sampler.flor: sampler 'min-p' has no such option. Did you mean 'floor'? "
        "Options: floor, steps.",
        "bad.yaml:13: scheduler: no scheduler is called 'fcsf'. Did you mean 'fcfs'? "
        "Registered: fcfs.",
        "base.yaml:2: model.dtype: must be auto, float32, bfloat16 or float16, not 'flaot32'. "
        "Did you mean float32?",
        "model.path: is required: folder or file of the checkpoint, or its name on the hub.",
        "command line: cache.pages: must be 1 or more, not -1.",
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.seed=null", "model.seed: must not be null. It takes a whole number."),
        ("model.seed=true", "model.seed: must be a whole number, not true."),
        ("model.device=tpu", "model.device: must be auto, cpu, cuda or cuda:N, not 'tpu'."),
        ("model.ignore_config=a", "must be a list of text, not 'a'. Write [a]."),
        ("model.weights=dumy", "no weight source is called 'dumy'. Did you mean 'dummy'?"),
        ("model.config=[1]", "model.config: must be a mapping, not [1]."),
        ("model=x", "model: takes settings of its own, not a value: path, revision, tokenizer"),
        ("model.seed.x=1", "model.seed: must be a whole number, not {'x': 1}."),
        ("cache.memory_fraction=0", "must be above 0 and at most 1, not 0.0."),
        ("max_length=3", "max_length: there is no such section. Did you mean model.max_length?"),
        ("plugins=x", "plugins: must be a list of names, such as"),
        ("sampler=null", "sampler: must name a sampler: default, min-p."),
        ("sampler=[min-p]", "sampler: must name a sampler: default, min-p."),
        ("sampler=auto", "sampler: has no automatic choice. Choose a sampler: default, min-p."),
        ("sampler.floor=1", "sampler 'default' has no such option. Options: none."),
        ("run={use: recite, text: null}", "run.text: must not be null. It takes text."),
        ("origins.x=1", "origins: there is no such section."),
        ("model.tokenizer=${model.pth}", "Interpolation key 'model.pth' not found"),
        ("model.tokenizer=${oc.env:PLAIT_ABSENT}", "PLAIT_ABSENT"),
        ("model.tokenizer=${", "Write \\${ for a plain ${."),
    ],
)
def test_a_mistake_is_named(word: str, said: str) -> None:
    message = refusal(word)
    assert message.startswith("command line: ")
    assert said in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_the_only_mistake(write) -> None:
    write("a.yaml", "extends: nope.yaml\n")
    assert refusal(file="a.yaml", path="").count("\n") == 0


def test_text_is_taken_as_written(write) -> None:
    write("a.yaml", "model: {path: 007, tokenizer: on}\nrun: {use: recite, text: 1e3}\n")
    config = load("a.yaml", ["run.words.x=yes"])
    assert (config.model.path, config.model.tokenizer) == ("007", "on")
    assert config.run.options.text == "1e3"
    assert config.run.options.words == {"x": True}


@pytest.mark.parametrize(
    ("word", "text"),
    [("1e3", "1e3"), ("what #1 is", "what #1 is"), ("'quoted'", "quoted"), ('"a\\nb"', "a\nb"),
     ("no: yes", "no: yes"), ("[INST] hi", "[INST] hi"), ("yes", "yes"), ("", None)],
)  # fmt: skip
def test_a_word_that_fills_a_text_is_that_text(word: str, text: str | None) -> None:
    if text is None:
        assert "run.text: must not be null" in refusal("run=recite", f"run.text={word}")
        return
    assert load(None, ["model.path=x", "run=recite", f"run.text={word}"]).run.options.text == text


def test_references_and_the_environment(write, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_RANKS", "2")
    monkeypatch.delenv("PLAIT_ABSENT", raising=False)
    write(
        "a.yaml",
        "model:\n"
        "  path: ${oc.env:PLAIT_ABSENT,fallback}/m\n"
        "  tokenizer: ${model.path}/tok\n"
        "  max_length: ${parallel.tensor}\n"
        "parallel: {tensor: '${oc.env:PLAIT_RANKS}'}\n"
        "cache: {dtype: '${model.dtype}'}\n"
        "run: {use: recite, text: '\\${x}', words: {list: ['${model.seed}']}}\n",
    )
    config = load("a.yaml")
    assert config.model.path == "fallback/m"
    assert config.model.tokenizer == "fallback/m/tok"
    assert (config.parallel.tensor, config.model.max_length) == (2, 2)
    assert config.cache.dtype == "auto"
    assert config.run.options.text == "${x}"
    assert config.run.options.words == {"list": [0]}


def test_packaged_files_can_be_referred_to() -> None:
    config = load(None, ["model.path=${packaged:models/qwen3}"])
    assert os.path.isdir(config.model.path)


def test_options_are_the_components_own_dataclass() -> None:
    config = load(None, ["model.path=x", "sampler={use: min-p, floor: 1}"])
    options = config.sampler.options
    assert (type(options).__qualname__, options.floor, options.steps) == ("MinP.Options", 1.0, 4)
    assert config.origins["sampler.floor"] == "command line"


def test_a_component_refuses_its_options_with_place(site: Site) -> None:
    site.install("good")
    message = refusal("sampler={use: good, floor: 3}")
    assert message == "command line: sampler: floor must lie in 0 to 1, not 3.0."


def test_options_that_no_setting_fits_are_the_authors_fault(site: Site, write) -> None:
    write(
        "mine.py",
        "from dataclasses import dataclass\n"
        "from core.interfaces import Sampler\n"
        "from core.registry import samplers\n"
        "@samplers.register('odd')\n"
        "class Odd(Sampler):\n"
        "    @dataclass\n"
        "    class Options:\n"
        "        ids: set[int] | None = None\n"
        "    def __call__(self, logits, rows): ...\n",
    )
    message = refusal("plugins=[./mine.py]", "sampler={use: odd, ids: [1]}")
    assert "sampler 'odd': its option 'ids' has a type that no setting fits: set[int]" in message


def test_a_named_plugin_that_fails_is_one_of_the_mistakes(site: Site, write) -> None:
    site.install("raising")
    write("a.yaml", "plugins: [raising]\nmodel: {path: x, seed: x}\nsampler: half\n")
    lines = refusal(file="a.yaml").splitlines()
    assert "plugin 'raising' (plait-raising 0.1) did not load: RuntimeError: the lic" in lines[0]
    assert lines[1] == "a.yaml:2: model.seed: must be a whole number, not 'x'."
    assert "half" not in "".join(lines[:2])


def test_errors_carry_notes_about_plugins_that_did_not_load(site: Site) -> None:
    site.install("raising", "0.3")
    lines = refusal("sampler=half", "model.sed=1").splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("note: plugin 'raising' (plait-raising 0.3) did not load: Runtime")


def test_strict_and_plugins_stay_with_the_config(site: Site) -> None:
    site.install("good")
    config = load(None, ["model.path=x", "plugins=[good]"], plugins=["no:other"], strict=True)
    assert config.plugins == ["good", "no:other"]
    assert config.strict
