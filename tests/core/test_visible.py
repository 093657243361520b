"""What strangers name reaches a terminal escaped: in errors, tables, logs, helps, whole runs."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from core import UserError, plugins
from core.importing import cause
from core.parallel import formats_of
from core.parallel.problems import Problem, raise_problems
from core.plugins.blame import account
from core.run import main
from core.visible import visible
from plugins.apps.plan.names import printable
from plugins.apps.terminal import show_table
from tests.tiny import save_tiny

CONTROLS = [chr(c) for c in (*range(32), *range(127, 160))]
BIDI = [*map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))]
SEPARATORS = ["\u2028", "\u2029", "\ufeff", "\u00ad", "\U000e0041"]
evil = st.sampled_from([*CONTROLS, *BIDI, *SEPARATORS])
names = st.lists(evil | st.sampled_from("ab.[31mé漢\\{"), min_size=1, max_size=12).map("".join)
lines = settings(max_examples=60)
runs = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


def clean(text: str) -> bool:
    """Whether nothing in it steers a terminal, but for ends of lines."""
    return not {*CONTROLS, *BIDI, *SEPARATORS} - {"\n", "\t"} & {*text}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@settings(max_examples=300)
@given(st.text())
def test_all_that_is_left_can_be_seen(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert visible(shown) == shown
    assert visible(text, keep="").isprintable()
    shown.encode()  # no half characters either
    if text.isprintable():
        assert shown == text


def test_it_is_escaped_as_python_writes_it() -> None:
    assert visible("a\x1b[2J\x9b\u202eé\n\t\\") == "a\\x1b[2J\\x9b\\u202eé\n\t\\"
    assert visible("a\nb", keep="") == "a\\nb"


@lines
@given(names)
def test_errors_as_python_prints_them(name: str) -> None:
    error = UserError(f"{name}: there is no such tensor.")
    assert clean(str(error))
    assert clean("".join(traceback.format_exception(error)))
    assert clean(f"{error} {UserError(error)}")
    assert error.args == (f"{name}: there is no such tensor.",)  # nothing is lost
    for other in (ValueError(name), UserError(name)):
        assert clean(cause(other) + account(other))


@lines
@given(names)
def test_logs(name: str) -> None:
    log, out = logging.getLogger("plait"), io.StringIO()
    handler = logging.StreamHandler(out)
    log.addHandler(handler)
    try:
        log.warning("%s", name)
        try:
            raise ValueError(name)
        except ValueError:
            log.exception("it failed: %s", 5)
    finally:
        log.removeHandler(handler)
    assert clean(out.getvalue())
    assert "it failed: 5\nTraceback" in out.getvalue()


@lines
@given(names, st.booleans())
def test_tables(name: str, terminal: bool) -> None:
    out = Terminal() if terminal else io.StringIO()
    with mock.patch.dict("os.environ", {"TERM": "dumb"}):  # no colours of our own
        show_table([name, "b"], [[name, "1"], ["x", name]], title=name, stream=out)
    assert clean(out.getvalue())
    if not terminal:  # which wraps what is too wide
        assert len(out.getvalue().splitlines()) == 4
    assert clean(str(printable(name)))


@lines
@given(names)
def test_a_mistake_is_told_in_one_line(name: str) -> None:
    """Else its second line would be whatever somebody likes to have said."""
    with pytest.raises(UserError) as caught:
        raise_problems([Problem("P9", f"{name} is missing."), Problem("P10", f"{name} is new.")])
    assert len(str(caught.value).splitlines()) == 2
    plugins.load()
    for stored in ({"quant_method": name}, {"quant_method": "int8", name: 3}):
        with pytest.raises(UserError) as caught:
            formats_of({"quantization_config": stored})
        assert len(str(caught.value).splitlines()) == 1


@contextlib.contextmanager
def told(terminal: bool = False) -> Iterator[list[str]]:
    """What is written in the block; the first pieces are stdout's and stderr's."""
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    found: list[str] = []
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict("os.environ", {"COLUMNS": "300", "TERM": "dumb"}),
    ):
        yield found
    found += [out.getvalue(), err.getvalue()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("checkpoint"))


@runs
@given(names)
@example("\t")  # stays in text that has lines; a problem's text has one
@example("a\nb")
def test_names_of_tensors(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    whole = file.read_bytes()
    try:
        tensors[name] = tensors.pop("model.norm.weight")
        save_file(tensors, file)
        with told() as found:
            status = main([f"model.path={folder}", "model.device=cpu", "run=plan"])
    finally:
        file.write_bytes(whole)
    assert status == 2
    assert f"checkpoint tensor {visible(name, keep='')} is read by nobody" in found[1]
    assert clean(found[0] + found[1])


@runs
@example("no/file\0.py")
@given(names)
def test_keys_of_configurations(tmp_path: Path, name: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(yaml.safe_dump({"model": {name: 1}, name: 2}), encoding="utf-8")
    with told() as found:
        status = main([str(file), f"sampler={name}", f"-p{name}"])
    assert status == 2
    assert found[1]
    assert clean(found[0] + found[1])


@runs
@given(st.lists(names, min_size=1, max_size=3))
def test_a_printed_configuration_is_clean_and_gives_the_same_again(
    tmp_path: Path, folder: Path, texts: list[str]
) -> None:
    file, again = tmp_path / "some.yaml", tmp_path / "again.yaml"
    text = "".join(texts).replace("{", "").replace("\\", "")  # no references
    run = {"use": "generate", "prompt": text}
    file.write_text(yaml.safe_dump({"model": {"path": str(folder)}, "run": run}), "utf-8")
    with told() as found:
        assert main([str(file), "--print-config"]) == 0, found
    assert clean(found[0])
    again.write_text(found[0], encoding="utf-8")
    with told() as printed:
        assert main([str(again), "--print-config"]) == 0, printed
    assert yaml.safe_load(found[0]) == yaml.safe_load(printed[0])
    assert yaml.safe_load(found[0])["run"]["prompt"] == text


@runs
@given(names, st.booleans())
def test_texts_of_plugins(tmp_path: Path, name: str, terminal: bool) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(
        "from dataclasses import dataclass, field\n"
        "from core.interfaces import Sampler\n"
        "from core.registry import samplers\n"
        f"@samplers.register({name!r}, summary={name!r})\n"
        "class Own(Sampler):\n"
        "    @dataclass\n"
        "    class Options:\n"
        f"        x: str = field(default={name!r}, metadata={{'help': {name!r}}})\n"
        "    def __call__(self, logits, rows): ...\n",
        encoding="utf-8",
    )
    bad.write_text(f"raise ValueError({name!r})\n", encoding="utf-8")
    try:
        for words in (["--list-plugins"], ["--help", "sampler"], ["sampler=nothing"]):
            with told(terminal) as found:
                main([*words, f"-p{good}"])
            assert clean(found[0] + found[1]), words
        for words in (["--strict"], []):
            with told(terminal) as found:
                assert main(["run=plan", "model.path=x", f"-p{bad}", *words]) == 2
            assert "ValueError" in found[1]
            assert clean(found[0] + found[1])
    finally:
        plugins.load()
