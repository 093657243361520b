"""Building a Config: every mistake at once, with its place; and what a good one holds."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import asdict

import pytest

from core import auto
from core.config import Config
from core.errors import UserError
from core.ranges import parse_bytes
from core.settings import Argument, from_arguments, load
from core.yaml_text import dump
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
        "model.path: is required: folder of the checkpoint, or its name on the hub.",
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
        ("model=x", "model: takes settings of its own, not a value: path, tokenizer, dtype"),
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
        "        ids: set[int] | None = None\n",
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


def test_auto_passes_over_what_is_missing(parts, monkeypatch) -> None:
    parts.attention.register("flash", "a:B", needs=("plait_absent",))
    monkeypatch.setattr(auto, "device", lambda asked: ("cuda:1", ""))
    config = load(None, ["model.path=x", "executor=local"])
    assert config.attention.use == "sdpa"
    assert config.origins["attention.use"] == (
        "auto: on cuda; flash needs plait_absent; triton is not registered"
    )


def test_auto_takes_torchrun_when_it_started_us(parts, monkeypatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")):
        monkeypatch.setenv(name, value)
    assert "found no executor for cpu: torchrun is not registered" in refusal()
    parts.executors.register("torchrun", parts.executors.get("local"))
    config = load(None, ["model.path=x"])
    assert (config.executor.use, config.origins["executor.use"]) == (
        "torchrun",
        "auto: for torchrun",
    )


def test_auto_of_the_device_asks_torch(monkeypatch) -> None:
    monkeypatch.undo()
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert auto.device("auto") == ("cuda", "auto: torch finds a CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert auto.device("auto")[0] == "cpu"
    assert auto.device("cuda:3") == ("cuda:3", "")


def test_arguments_are_settings_and_mistakes_name_them(tmp_path) -> None:
    config = from_arguments(
        [
            Argument("model.path", tmp_path, "argument model"),
            Argument("sampler", {"use": "min-p", "steps": 7}, "argument sampler"),
            Argument("scheduler.use", "fcfs", "argument scheduling_policy"),
            Argument("cache", {"pages": 4}, "argument cache"),
            Argument("cache.pages", 5, "argument num_gpu_blocks_override"),
        ]
    )
    assert config.model.path == str(tmp_path)
    assert config.sampler.options.steps == 7
    assert config.cache.pages == 5
    with pytest.raises(UserError) as caught:
        from_arguments(
            [
                Argument("model.path", 3, "argument model"),
                Argument("model.max_length", "many", "argument max_model_len"),
                Argument("cache", {"pagse": 4}, "argument cache"),
                Argument("parallel.tensor", object(), "argument tensor_parallel_size"),
            ]
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "argument model: model.path: must be text, not 3."
    assert lines[1].startswith("argument max_model_len: model.max_length: must be a whole number")
    assert lines[3].startswith("argument cache: cache.pagse: there is no such key. Did you mean")
    assert lines[2].startswith("argument tensor_parallel_size: parallel.tensor: must be a whole")


def test_a_config_survives_pickling_and_copying() -> None:
    config = load(None, ["model.path=x", "sampler={use: min-p, steps: 9}"])
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert isinstance(other, Config)
        assert other == config
        assert other.sampler.options.steps == 9


def test_a_printed_configuration_gives_itself_again(write) -> None:
    write(
        "a.yaml",
        "model: {path: 'a: b', config: {rope: {factor: 2.0}}, ignore_config: [x, 'y: z']}\n"
        'parallel: {plan: {"layers.*.q": colwise}}\n'
        "sampler: {use: min-p, floor: 0.25}\n"
        r'run: {use: recite, text: "two\nlines \\${not} \\\\\\${é", words: {deep: {x: [1, null]}}}',
    )
    config = load("a.yaml", ["cache.memory=2GiB"])
    assert config.run.options.text == "two\nlines ${not} \\${é"
    text = dump(config)
    write("b.yaml", text)
    again = load("b.yaml")
    first, second = asdict(config), asdict(again)
    first.pop("origins")
    second.pop("origins")
    assert first == second
    assert "  use: sdpa  # auto: on cpu\n" in text
    assert "  floor: 0.25  # a.yaml:3\n" in text
    assert "  memory: 2GiB  # command line\n" in text
    assert "  seed: 0  # default\n" in text


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("512 MiB", 2**29), ("1.5GB", 1500000000), ("7", 7), ("1 kib", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 apples", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        parse_bytes(text)
