"""Reading settings: YAML with line numbers, extends, words, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

from core.settings import files as setting_files
from core.settings.files import packaged, read_file, read_words
from core.settings.report import Report
from core.settings.tree import Node, leaves


def read(name: str = "a.yaml") -> Node:
    report = Report()
    tree = read_file(name, report)
    assert report.lines == []
    return tree


def refusal(name: str = "a.yaml") -> str:
    report = Report()
    read_file(name, report)
    assert report.lines
    return "\n".join(report.lines)


def words(*given: str) -> Any:
    report = Report()
    tree = read_words(given, report)
    assert report.lines == []
    return tree.plain()


def origins(tree: Node) -> dict[str, str]:
    found: dict[str, str] = {}
    leaves(tree, lambda key, node: found.update({".".join(key): node.origin}))
    return found


def test_every_value_knows_its_line(write) -> None:
    write("a.yaml", "# first\nmodel:\n  path: x\n\n  dtype: float32\nparallel: {tensor: 2}\n")
    assert origins(read()) == {
        "model.path": "a.yaml:3",
        "model.dtype": "a.yaml:5",
        "parallel.tensor": "a.yaml:6",
    }


def test_a_component_can_be_a_name_or_a_mapping(write) -> None:
    write("a.yaml", "sampler: min-p\nscheduler:\n  use: fcfs\n  max: 3\n")
    assert read().plain() == {"sampler": {"use": "min-p"}, "scheduler": {"use": "fcfs", "max": 3}}


def test_dots_descend_in_keys_but_not_in_a_plan(write) -> None:
    write("a.yaml", 'model.path: x\nparallel.plan:\n  "layers.*.q": colwise\n')
    assert read().plain() == {
        "model": {"path": "x"},
        "parallel": {"plan": {"layers.*.q": "colwise"}},
    }
    assert words("parallel.plan.layers.*.q=rowwise", "parallel.plan.head={a: b}") == {
        "parallel": {"plan": {"layers.*.q": "rowwise", "head": {"a": "b"}}}
    }


def test_empty_files_and_sections_say_nothing(write) -> None:
    write("a.yaml", "model:\ncache:\n  # pages: 3\n")
    assert read().plain() == {}
    write("b.yaml", "# nothing\n")
    assert read("b.yaml").plain() == {}


def test_exponents_are_numbers_and_dates_are_text(write) -> None:
    write("a.yaml", "x: {a: 1e-3, b: 2024-01-31, c: 1.5e3, d: .5}\n")
    assert read().plain()["x"] == {"a": 0.001, "b": "2024-01-31", "c": 1500.0, "d": 0.5}


def test_anchors_and_merge_keys_work_and_may_be_overridden(write) -> None:
    write("a.yaml", "x: &x {a: 1, b: 2}\ny: *x\nz:\n  <<: *x\n  b: 3\n")
    tree = read()
    assert tree.plain() == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 2}, "z": {"a": 1, "b": 3}}


def test_extends_is_relative_to_its_file_and_the_later_counts(write) -> None:
    write("deep/base.yaml", "extends: [one.yaml, two.yaml]\nmodel: {seed: 3}\n")
    write("deep/one.yaml", "model: {seed: 1, path: one}\ncache: {pages: 1}\n")
    write("deep/two.yaml", "model: {seed: 2, path: two}\n")
    write("a.yaml", "extends: deep/base.yaml\ncache: {check: true}\n")
    tree = read()
    assert tree.plain() == {
        "model": {"seed": 3, "path": "two"},
        "cache": {"pages": 1, "check": True},
    }
    assert origins(tree)["cache.pages"] == "deep/one.yaml:2"


def test_two_ways_to_one_base_are_no_circle(write) -> None:
    write("base.yaml", "model: {seed: 1}\n")
    write("b.yaml", "extends: base.yaml\n")
    write("c.yaml", "extends: base.yaml\n")
    write("a.yaml", "extends: [b.yaml, c.yaml]\n")
    assert read().plain() == {"model": {"seed": 1}}


def test_another_component_drops_the_options_of_the_first(write) -> None:
    write("base.yaml", "sampler: {use: min-p, floor: 0.2}\nrun: {text: hi}\n")
    write("same.yaml", "extends: base.yaml\nsampler: min-p\n")
    write("other.yaml", "extends: base.yaml\nsampler: default\nrun: generate\n")
    assert read("same.yaml").plain()["sampler"] == {"use": "min-p", "floor": 0.2}
    assert read("other.yaml").plain() == {
        "sampler": {"use": "default"},
        "run": {"text": "hi", "use": "generate"},  # generate is what run was by default
    }


def test_plugin_files_are_relative_to_the_file_that_names_them(write) -> None:
    path = write("deep/base.yaml", "plugins: [./mine.py, name, 'no:../other.py']\n")
    write("a.yaml", "extends: deep/base.yaml\n")
    folder = path.parent
    assert read().plain() == {
        "plugins": [str(folder / "mine.py"), "name", f"no:{folder.parent / 'other.py'}"]
    }


def test_a_packaged_configuration_is_found_by_name(write, monkeypatch) -> None:
    write("ours/tp2.yaml", "parallel: {tensor: 2}\n")
    monkeypatch.setattr(setting_files, "PACKAGED", Path("ours").resolve())
    assert packaged() == ["tp2"]
    for name in ("tp2", "tp2.yaml", "configs/tp2.yaml"):
        assert read(name).plain() == {"parallel": {"tensor": 2}}
    write("configs/tp2.yaml", "parallel: {tensor: 3}\n")
    assert read("configs/tp2.yaml").plain() == {"parallel": {"tensor": 3}}
    assert "Did you mean tp2? Configurations that ship: tp2." in refusal("tp3")
    write("a.yaml", "extends: tp2\n")
    assert read().plain() == {"parallel": {"tensor": 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  seed: 1\n  path: x\n  seed: 2\n",
         "a.yaml:4: model.seed: is set twice, first on line 2. Keep one."),
        ("model:\n\tpath: x\n", "a.yaml:2: is not YAML: a tab stands where"),
        ("model: {path: x\ncache: 3\n", "a.yaml:2: is not YAML: "),
        ("- a\n- b\n", "a.yaml:1: a configuration is a mapping of sections"),
        ("just words\n", "a.yaml:1: a configuration is a mapping of sections"),
        ("model: !!python/object:os.system {}\n", "a.yaml:1: is not YAML"),
        ("model: &m\n  path: *m\n", "a.yaml:1: is not YAML: a mapping contains itself"),
        ("? [a, b]\n: 1\n", "a.yaml:1: is not YAML: a key must be a word"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: is not YAML"),
        ("extends: 3\n", "a.yaml:1: extends: must be a file or a list of files"),
        ("extends: bse.yaml\n", "a.yaml:1: extends: bse.yaml: there is no such file. "
                                "Did you mean base.yaml?"),
        ("extends: loop.yaml\n", "loop.yaml:1: extends: runs in a circle: "
                                 "a.yaml -> loop.yaml -> a.yaml"),
        ("x:\n  y: 0x_\n", "a.yaml:2: is not YAML: '0x_' has no value"),
        ("x: " + "[" * 3000 + "]" * 3000, "a.yaml: is not YAML"),
        ("x: \0\n", "a.yaml: is not a text file"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_where_and_why(write, text: str, said: str) -> None:
    write("base.yaml", "")
    write("loop.yaml", "extends: a.yaml\n")
    write("a.yaml", text)
    assert said in refusal()


def test_files_that_are_no_files_are_refused(write, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\x80\x81\xff" * 50)
    assert "a.yaml: is not a text file" in refusal()
    assert "is a folder" in refusal(".")
    assert "b.yaml: there is no such file. Did you mean a.yaml?" in refusal("b.yaml")


def test_a_byte_order_mark_is_no_text(write, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes("\ufeffmodel: {path: ü}\n".encode())
    assert read().plain() == {"model": {"path": "ü"}}


def test_words_take_yaml_and_nested_keys() -> None:
    assert words(
        "model.path=a=b",
        "cache.pages=12",
        "cache.memory=null",
        "sampler={use: min-p, floor: 0.5}",
        "run.words.deep.er=[1, two]",
        "run.text='12'",
        "executor=",
    ) == {
        "model": {"path": "a=b"},
        "cache": {"pages": 12, "memory": None},
        "sampler": {"use": "min-p", "floor": 0.5},
        "run": {"words": {"deep": {"er": [1, "two"]}}, "text": "12"},
        "executor": {"use": None},
    }


def test_the_order_of_a_component_and_its_option_does_not_matter() -> None:
    expected = {"sampler": {"use": "min-p", "floor": 1}}
    assert words("sampler=min-p", "sampler.floor=1") == expected
    assert words("sampler.floor=1", "sampler=min-p") == expected


def test_text_that_is_no_yaml_stays_text() -> None:
    given = ["Say: 'hi' and: go", "100% *sure", "-", "# one", "[a] b", '"Hi", he said', "a: {"]
    for text in given:
        assert words(f"run.text={text}") == {"run": {"text": text}}


@pytest.mark.parametrize("word", ["seed", "=3", "a..b=3", "b.yaml", ".=1"])
def test_a_word_without_key_or_value_is_refused(word: str) -> None:
    report = Report()
    read_words([word], report)
    assert "is not key=value" in report.lines[0]
    assert repr(word) in report.lines[0]


def test_a_word_with_broken_brackets_is_refused() -> None:
    report = Report()
    read_words(["sampler={use: min-p"], report)
    assert "command line: sampler: '{use: min-p' is not YAML" in report.lines[0]


FRAGMENTS = st.lists(
    st.sampled_from(
        ["model", ": ", "\n", "  ", "- ", "{", "}", "[", "]", "&a ", "*a", "<<", "extends", "'",
         '"', "|", ">", "!", "%", "@", "?", "#", "\t", "1", "null", ",", "0x_", "...",
         "-", "${", "é"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(text=FRAGMENTS | st.text(max_size=40))
@budget(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_crashes_the_reader(text: str, write, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    read_file("a.yaml", Report())
    read_words([text], Report())
