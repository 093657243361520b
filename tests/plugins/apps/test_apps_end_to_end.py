"""The apps on a real engine, from the command line to the text."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import UserError
from core.registry import registries
from core.run import main
from core.settings import load
from plugins.apps.bench.host import measure_steps
from plugins.apps.bench.peer import Transformers
from plugins.apps.bench.workloads import workload
from tests.tiny import save_tiny

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "configs"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=256)


@pytest.fixture
def run(checkpoint: Path, device: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a configuration on the tiny checkpoint. -> standard output."""

    def run(config: str, *words: str, status: int = 0) -> str:
        place = [f"model.path={checkpoint}", f"model.device={device}", "cache.memory=16MiB"]
        found = main([str(CONFIGS / f"{config}.yaml"), *place, *words])
        out = capsys.readouterr()
        assert found == status, out.err
        return out.out if status == 0 else out.err

    return run


GREEDY = "run.params={temperature: 0.0, max_tokens: 12}"


def test_generate_streams_the_text_that_a_batch_gives(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The sea\nThe sea\n")

    streamed = run("qwen3", "run.prompt=The sea", GREEDY)
    out = tmp_path / "out.jsonl"
    run(
        "qwen3",
        "run.prompt=null",
        f"run.prompts_file={tmp_path}/prompts.txt",
        GREEDY,
        f"run.out={out}",
    )

    texts = [json.loads(line)["outputs"][0]["text"] for line in out.read_text().splitlines()]
    assert texts == [streamed.removesuffix("\n")] * 2


def test_a_file_of_answers_has_the_log_probabilities_of_the_engine(
    run: Run, checkpoint: Path, device: str, tmp_path: Path
) -> None:
    wish = {"temperature": 0.0, "max_tokens": 4, "logprobs": 2, "prompt_logprobs": 1}
    out = tmp_path / "out.jsonl"

    run("qwen3", "run.prompt=The sea", f"run.params={wish}", f"run.out={out}")

    (found,) = map(json.loads, out.read_text().splitlines())
    with LLM(checkpoint, device=device, cache={"memory": "16MiB"}) as llm:
        (expected,) = llm.generate(["The sea"], SamplingParams(**wish), use_tqdm=False)

    def listed(position: Any) -> Any:
        return position and [
            {"id": i, "text": one.decoded_token, "logprob": one.logprob, "rank": one.rank}
            for i, one in position.items()
        ]

    assert found["id"] == expected.request_id
    assert found["outputs"][0]["logprobs"] == [*map(listed, expected.outputs[0].logprobs)]
    assert found["prompt_logprobs"] == [*map(listed, expected.prompt_logprobs)]
    assert found["prompt_logprobs"][0] is None


@pytest.mark.parametrize("prompt", ["-", "Note: this", "# Title", "- one"])
def test_a_prompt_need_not_be_yaml(prompt: str) -> None:
    config = load(
        CONFIGS / "qwen3.yaml", ["model.path=x", "model.device=cpu", f"run.prompt={prompt}"]
    )

    assert config.run.options.prompt == prompt


def test_a_prompt_beyond_the_models_limit_is_refused(run: Run) -> None:
    error = run("qwen3", f"run.prompt={'x' * 300}", status=2)

    assert "256" in error


def test_a_conversation_through_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/set max_tokens=3\nagain\n/quit\nnever\n"))

    out = run("qwen3-chat", GREEDY)

    assert out.count("limit of tokens is reached") == 2
    assert "max_tokens is 3." in out


BENCH = ["model.weights=auto", "model.dtype=float32", "model.max_length=200"]


def test_bench_prints_what_it_ran(run: Run) -> None:
    out = run("qwen3-bench", *BENCH, "run.workloads=[decode:2:16:8:1]", "run.repeat=2")

    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["output_tokens"] for line in lines] == [16, 16]
    assert lines[0]["digest"] == lines[1]["digest"] != workload("decode:2:16:8:1").digest()
    assert all(line["median_tpot_ms"] > 0 for line in lines)


def test_bench_refuses_what_the_engine_cannot_hold(run: Run) -> None:
    error = run("qwen3-bench", *BENCH, "run.workloads=[decode:2:196:8:1]", status=2)

    assert "'decode:2:196:8:1' has a request of 204 tokens" in error


def test_the_peer_runs_whole_workloads_both_ways(checkpoint: Path) -> None:
    import torch

    peer = Transformers(checkpoint, torch.float32, torch.device("cpu"), weights=True)
    work = workload("uniform:5:4:9:3:9:2")
    work = type(work)(
        work.name, [type(i)([t % 256 for t in i.prompt], i.output) for i in work.items]
    )

    sides = peer.sides(2)

    assert [side.name.split()[-1] for side in sides] == ["generate", "continuous"]
    assert all(side.time(work)[0] > 0 for side in sides)


def test_the_peers_cache_holds_a_workload_or_it_is_said_that_it_cannot(checkpoint: Path) -> None:
    import torch

    asked = []

    def too_large(continuous_batching_config: Any, **settings: Any) -> None:
        asked.append(continuous_batching_config)
        raise MemoryError("17 is more than 15")

    peer = Transformers(checkpoint, torch.float32, torch.device("cpu"), weights=True)
    peer.model.continuous_batching_context_manager = too_large
    with pytest.raises(UserError, match=r"17 is more than 15\. .*run\.continuous=false"):
        peer.continuous(workload("decode:2:64:63:1"), at_once=512)

    (limits,) = asked
    assert limits.max_requests_per_batch == 2
    assert limits.num_blocks == 2 * (2 + 1)  # of 64 tokens


def test_a_step_without_a_model_takes_host_time_only(checkpoint: Path) -> None:
    config = load(CONFIGS / "qwen3-bench.yaml", ["model.device=cpu", f"model.path={checkpoint}"])

    assert 10 < measure_steps(config, 4, steps=5) < 100_000
    assert "nothing" not in registries.attention.names()


def test_a_step_that_cannot_be_measured_leaves_the_log_as_it_was(checkpoint: Path) -> None:
    config = load(CONFIGS / "qwen3-bench.yaml", ["model.device=cpu", f"model.path={checkpoint}"])
    config.kernels.use = "nowhere"  # no engine can be made
    log = logging.getLogger("plait")
    before = log.level

    with pytest.raises(UserError, match="nowhere"):
        measure_steps(config, 4, steps=5)

    assert log.level == before
    assert "nothing" not in registries.attention.names()


def test_two_ranks_write_what_one_writes(checkpoint: Path) -> None:
    def text(config: str) -> str:
        words = [f"model.path={checkpoint}", "model.device=cpu", "cache.memory=16MiB"]
        command = [sys.executable, "-m", "core.run", f"configs/{config}.yaml", *words, GREEDY]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert text("qwen3-tp2") == text("qwen3")
