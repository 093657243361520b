"""Ranks that are processes: what happens when one of them ends, and what stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, EngineDead, SamplingParams, UserError
from core.parallel.switches import MULTICAST_OFF
from tests.acceptance.leftovers import listening
from tests.tiny import save_tiny

PROMPT = list(b"The wind")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pair(checkpoint: Path, device: str) -> Iterator[LLM]:
    """An engine of two ranks for tests that leave it as it is."""
    cache = {"page_size": 4, "pages": 80}
    with LLM(checkpoint, tensor_parallel_size=2, device=device, cache=cache) as llm:
        yield llm


def answer(llm: LLM, **given: Any) -> list[int]:
    params = SamplingParams(**{"max_tokens": 6, "temperature": 0, "ignore_eos": True} | given)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return output.outputs[0].token_ids


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_killed_rank_is_named_within_ten_seconds_and_nothing_stays(checkpoint, device):
    llm = LLM(checkpoint, tensor_parallel_size=2, device=device)
    (process,) = llm.engine.executor._ranks._processes.values()
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    stream = llm.stream(PROMPT, params)
    next(stream)
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(EngineDead, match=r"rank 1 .* was killed by SIGKILL"):
        for _ in stream:
            pass
    assert time.monotonic() - began < 10
    with pytest.raises(EngineDead):
        llm.generate(PROMPT, params)
    llm.close()
    assert not running(process.pid)


def test_signals_to_a_whole_service_are_left_to_the_engine(pair):
    """systemd, say, sends them to every process, and answers get their time to end all the same."""
    expected = answer(pair)
    (process,) = pair.engine.executor._ranks._processes.values()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    assert answer(pair) == expected


def test_ranks_meet_where_only_this_machine_can_reach(pair):
    local = "0100007F"  # 127.0.0.1
    assert {address.partition(":")[0] for address in listening()} == {local}


def test_a_request_that_cannot_be_sent_is_refused_and_no_other_suffers(pair):
    with pytest.raises(UserError, match=r"^prompt 0: extra_args: they cannot be sent: "):
        answer(pair, extra_args={"key": lambda: 0})
    assert answer(pair, extra_args={"key": [1, "a"]}) == answer(pair)


def test_a_rank_that_is_killed_while_the_ranks_join(checkpoint, tmp_path):
    began = time.monotonic()
    with pytest.raises(EngineDead, match=r"rank 1 \(process \d+\) was killed by SIGKILL"):
        LLM(
            checkpoint,
            tensor_parallel_size=2,
            device="cpu",
            plugins=[written(tmp_path, DIES_JOINING)],
        )
    assert time.monotonic() - began < 20


def test_multicast_is_off_in_a_rank_before_it_imports_anything(checkpoint, monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    with LLM(checkpoint, tensor_parallel_size=2, device="cpu") as llm:
        (process,) = llm.engine.executor._ranks._processes.values()
        began_with = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
    for name, value in MULTICAST_OFF.items():
        assert f"{name}={value}" in began_with
        assert os.environ[name] == value


def test_multicast_is_off_under_torchrun_before_torch_is_imported():
    script = (
        "import os, sys; from core.run import main; assert main(['--list-plugins']) == 0; "
        "assert 'torch' not in sys.modules; print(os.environ['NCCL_NVLS_ENABLE'], file=sys.stderr)"
    )
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "1"}
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert said.stderr.splitlines()[-1] == "0", said.stderr


def test_the_rank_with_the_least_memory_sets_the_pages(checkpoint, tmp_path):
    settings = {"plugins": [written(tmp_path, LESS)], "attention": "sdpa"}
    with LLM(checkpoint, tensor_parallel_size=2, device="cpu", **settings) as llm:
        assert llm.engine.limits.pages == 7
        (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=5), use_tqdm=False)
        assert output.outputs[0].token_ids


@pytest.mark.parametrize("place", ["load", "prepare"])
def test_a_rank_without_memory_ends_all_with_its_sentence(checkpoint, tmp_path, place):
    settings = {"plugins": [written(tmp_path, FULL[place])]}
    if place == "prepare":
        settings["runner"] = "full"
    began = time.monotonic()
    with pytest.raises(UserError, match=r"cpu has no memory for (the weights of rank 1|the cache)"):
        LLM(checkpoint, tensor_parallel_size=2, device="cpu", **settings)
    assert time.monotonic() - began < 60


def written(folder: Path, text: str) -> str:
    plugin = folder / "memory.py"
    head = 'RANK = "plugins.executors.rank_process" in open("/proc/self/cmdline").read()\n'
    plugin.write_text(head + textwrap.dedent(text))
    return str(plugin)


DIES_JOINING = """
    import os, signal
    from core import parallel
    if RANK:
        parallel.connect = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
"""
LESS = """
    from core import worker
    if RANK:
        worker.affordable_pages = lambda *_: 7
"""
FULL = {
    "load": """
        import torch
        from core import worker
        if RANK:
            def full(*_):
                raise torch.OutOfMemoryError("none left")
            worker.allocate = full
    """,
    "prepare": """
        import torch
        from core.registry import runners
        from plugins.runners.eager import Eager

        @runners.register("full")
        class Full(Eager):
            def prepare(self, step, limits):
                if RANK:
                    raise torch.OutOfMemoryError("none left")
                super().prepare(step, limits)
    """,
}


def test_a_rank_that_raises_shows_its_traceback(checkpoint, device, tmp_path):
    plugin = tmp_path / "breaks.py"
    plugin.write_text(
        textwrap.dedent(
            """
            import os
            from core.interfaces import Sampled, Sampler
            from core.registry import samplers

            @samplers.register("breaks")
            class Breaks(Sampler):
                def __call__(self, logits, rows):
                    if "plugins.executors.rank_process" in open("/proc/self/cmdline").read():
                        raise ZeroDivisionError("rank 1 cannot count")
                    return Sampled(rows.draw(logits))
            """
        )
    )
    settings = {"plugins": [str(plugin)], "sampler": "breaks", "device": device}
    with (  # a step that is captured fails before there is a request
        pytest.raises(EngineDead, match=r"(?s)rank 1 failed:.*rank 1 cannot count"),
        LLM(checkpoint, tensor_parallel_size=2, **settings) as llm,
    ):
        llm.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)


def test_ranks_end_with_a_killed_parent(checkpoint, tmp_path):
    script = tmp_path / "parent.py"
    # no `if __name__ == "__main__"`: starting ranks does not import the script again
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            from core import LLM
            llm = LLM({str(checkpoint)!r}, tensor_parallel_size=2, device="cpu")
            print(*(p.pid for p in llm.engine.executor._ranks._processes.values()), flush=True)
            time.sleep(60)
            """
        )
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(pid)


def test_a_size_that_cannot_work_is_refused_before_anything_starts(checkpoint, device):
    with pytest.raises(UserError, match=r"P6 .*1 to 4"):
        LLM(checkpoint, tensor_parallel_size=5, device=device)


@pytest.mark.parametrize("size", [1, 2])
def test_threads_are_set_while_the_engine_lives(checkpoint, size):
    before = torch.get_num_threads()
    with LLM(
        checkpoint,
        tensor_parallel_size=size,
        device="cpu",
        executor={"use": "local", "threads": before + 1},
    ):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
