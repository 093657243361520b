"""The command line: what it prints, what it never imports, and how it ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core import __version__
from core.run import main
from tests.thirdparty.installed import HERE, ROOT, Site

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line here: -> status, stdout, stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(list(argv))
        return status, *capsys.readouterr()

    return run


def process(
    *argv: str, command: tuple[str, ...] = ("-m", "core.run")
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command, *argv], capture_output=True, text=True, env=env, cwd=ROOT
    )


@pytest.mark.parametrize("flag", ["--help", "--list-plugins", "--version"])
def test_answers_come_without_torch(flag: str) -> None:
    code = (
        "import sys; from core.run import main; status = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(status)"
    )
    seen = process(flag, command=("-c", code))
    assert seen.returncode == 0, seen.stderr
    imported = set(seen.stderr.split())
    assert not imported & {"torch", "transformers", "omegaconf", "numpy", "rich"}
    assert ("plugins.apps" in imported) == (flag == "--list-plugins")


@pytest.mark.speed
@pytest.mark.parametrize("flag", ["--help", "--list-plugins", "--version"])
def test_answers_come_quickly(flag: str) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        process(flag)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.4, seconds


def test_help_lists_sections_flags_and_configurations(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for word in ("--print-config", "-p NAME", "  scheduler ", "  extends ", "qwen3-tp2"):
        assert word in out


def test_help_of_a_section_explains_its_keys(run: Run, isolated) -> None:
    status, out, _ = run("--help", "cache")
    assert status == 0
    assert "cache.page_size: a whole number or auto (default: auto)\n      tokens in a page;" in out


def test_help_of_a_component_lists_what_can_be_chosen(run: Run, parts, site: Site) -> None:
    site.install("good", "1.2")
    parts.samplers.register("odd", "plait_absent:X")
    status, out, _ = run("--help", "sampler")
    assert status == 0
    assert "good: keeps tokens above a floor (plait-good 1.2)\n  sampler.floor: a number" in out
    assert "[needs plait_absent]" in out
    assert "odd: plait_absent:X (this process)\n  cannot be imported: ModuleNotFoundError" in out
    status, _, err = run("--help", "smapler")
    assert (status, "Did you mean sampler?" in err) == (2, True)


def test_the_listing_tells_what_is_ready_missing_blocked_and_broken(run: Run, site: Site) -> None:
    site.install("good", "1.2", requires=["plait>=9"])
    site.install("clash")
    site.install("broken", "0.3")
    site.install("watcher")
    site.install("raising")
    status, out, err = run("--list-plugins", "-p", "watcher", "-p", "no:raising")
    assert (status, err) == (0, "")
    plugins, components = (
        [" ".join(line.split()).split(" ", width) for line in part.splitlines()[1:]]
        for part, width in zip(out.split("\n\n"), (3, 4), strict=True)
    )
    assert [row[:3] for row in plugins] == [
        ["broken", "plait-broken", "0.3"],
        ["clash", "plait-clash", "0.1"],
        ["good", "plait-good", "1.2"],
        ["raising", "plait-raising", "0.1"],
        ["watcher", "plait-watcher", "0.1"],
    ]
    states = [row[3] for row in plugins]
    assert states[0].startswith("failed: ModuleNotFoundError: No module named 'plait_absent'")
    assert states[1:] == ["ready", f"made for plait >=9, this is {__version__}", "blocked", "named"]
    assert components == [
        ["sampler", "good", "plait-clash", "0.1", "claimed twice"],
        ["sampler", "good", "plait-good", "1.2", "claimed twice keeps tokens above a floor"],
        ["sampler", "hungry", "plait-good", "1.2", "needs plait_absent"],
    ]


def test_the_listing_reads_the_plugins_of_a_configuration(run: Run, site: Site, write) -> None:
    site.install("watcher")
    write("a.yaml", "plugins: [watcher]\n")
    status, out, _ = run("a.yaml", "--list-plugins")
    assert status == 0
    assert "named" in out
    assert run("nope.yaml", "--list-plugins")[0] == 2


def test_a_terminal_gets_a_drawn_table(site: Site) -> None:
    site.install("good")
    parent, child = pty.openpty()
    env = {**site.environment(), "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.Popen(
        [sys.executable, "-m", "core.run", "--list-plugins"],
        stdout=child,
        stderr=child,
        env=env,
        cwd=ROOT,
    )
    os.close(child)
    out = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the other end closed
            break
        if not piece:
            break
        out += piece
    os.close(parent)
    assert done.wait() == 0
    assert "━" in out.decode()
    assert "plait-good 0.1" in out.decode()


def test_an_app_runs_and_gives_the_status(run: Run, parts) -> None:
    words = ["model.path=x", "run=recite", "run.text=good day"]
    assert run(*words) == (0, "good day\n", "")
    assert run(*words, "run.status=7")[0] == 7


def test_flags_may_stand_anywhere(run: Run, parts, write) -> None:
    write("a.yaml", "model: {path: x}\n")
    status, out, _ = run("a.yaml", "--print-config", "run=recite", "--strict", "run.text=a")
    assert status == 0
    assert "  path: x  # a.yaml:1\n" in out
    assert "  device: cpu  # auto: none here\n" in out
    assert "  text: a  # command line\n" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a configuration: python -m core.run CONFIG"),
        (["nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["model.path=x", "--max-model-len", "3"], "Settings are written key=value, without"),
        (["model.path=x", "-p", "nowhere"], "no plugin is called 'nowhere'"),
        (["model.path=x", "-p"], "expected one argument"),
        (["model.path=x", "run=recite", "run.txt=1"], "Did you mean 'text'?"),
        (["model.path=x", "a.yaml"], "'a.yaml' is not key=value"),
    ],
)
def test_a_users_mistake_ends_with_two_and_no_traceback(run: Run, parts, argv, said: str) -> None:
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_our_fault_ends_with_one_and_a_traceback(run: Run, parts) -> None:
    words = ["model.path=x", "run=recite", "run.fault=oh"]
    status, _, err = run(*words)
    assert status == 1
    assert "RuntimeError: oh" in err
    assert "Traceback" in err
    assert "This is a fault of Plait, not of your configuration." in err


def test_our_fault_with_plugins_in_use_names_them(run: Run, parts, write) -> None:
    write("mine.py", "")
    status, _, err = run("model.path=x", "run=recite", "run.fault=oh", "-p", "./mine.py")
    assert status == 1
    assert "RuntimeError: oh" in err
    said = r"It came up in Plait's code, with plugin 'mine' \(.*mine.py\) in use: try without it"
    assert re.search(said, err)


def test_a_plugins_fault_names_the_plugin(run: Run, parts, write) -> None:
    write(
        "mine.py",
        "from core.interfaces import App\n"
        "from core.registry import apps\n"
        "@apps.register('crash')\n"
        "class Crash(App):\n"
        "    def run(self, config):\n"
        "        return 1 // 0\n",
    )
    status, _, err = run("model.path=x", "run=crash", "-p", "./mine.py")
    assert status == 1
    assert "ZeroDivisionError" in err
    last = err.rstrip().splitlines()[-1]
    assert last.startswith("This is a fault of plugin 'mine'")
    assert "mine.py, line 6. Tell its authors." in last


def test_notes_about_plugins_follow_any_error(run: Run, parts, site: Site) -> None:
    site.install("broken", "0.3")
    note = "note: plugin 'broken' (plait-broken 0.3) did not load: ModuleNotFoundError"
    for words in (["run.fault=oh"], ["run.fault=oh", "model.sed=1"]):
        _, _, err = run("model.path=x", "run=recite", *words)
        assert err.count(note) == 1


def test_ctrl_c_ends_with_130(run: Run, parts) -> None:
    status, out, err = run("model.path=x", "run=recite", "run.fault=interrupt")
    assert (status, out, err) == (130, "", "")


def test_a_real_process_ends_like_the_function(site: Site, write) -> None:
    wrong = process("nowhere.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr
    write("wait.py", (HERE / "waiting_app.py").read_text())
    child = subprocess.Popen(
        [sys.executable, "-m", "core.run", "-p", "./wait.py", "--help", "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=site.environment(),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"waiting\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, b"")


@pytest.mark.parametrize("module", ["argparse", "core.registry", "pluggy", "core.plugins.blame"])
def test_ctrl_c_while_it_imports_itself_ends_with_130(module: str, tmp_path: Path) -> None:
    """Half of the time until something happens goes into imports."""
    press = (
        "import os, signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
    )
    tmp_path.joinpath("sitecustomize.py").write_text(press)
    places = f"{tmp_path}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", "core.run", "--list-plugins"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": places},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_reader_that_leaves_is_no_error() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "core.run", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141
