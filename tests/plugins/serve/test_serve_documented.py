"""What docs/serving.md says can be typed works, on the server that it says to start."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.plugins.serve.running import Launched

TEXT = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
LINES = re.findall(r"^    (curl .*(?:\\\n.*|\n {6,}.*)*)", TEXT, flags=re.M)


@pytest.fixture(scope="module")
def url(server: Launched) -> str:
    return server.url


def run(line: str, url: str) -> str:
    line = line.replace("http://127.0.0.1:8000", url).replace("curl ", "curl -sS --fail ", 1)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (line, done.stderr, done.stdout)
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_line_is_answered(url: str) -> None:
    assert len(LINES) == 7
    answers = {re.search(r"8000(\S+)", line)[1]: run(line, url) for line in LINES}  # type: ignore[index]
    assert json.loads(run(LINES[0], url))["choices"][0]["message"]["content"].strip()
    assert answers["/v1/chat/completions"].rstrip().endswith("data: [DONE]")  # the second of them
    assert len(json.loads(answers["/v1/completions"])["choices"][0]["logprobs"]["tokens"]) > 0
    assert json.loads(answers["/tokenize"])["count"] > 0
    assert json.loads(answers["/v1/models"])["data"][0]["id"] == "tiny"
    assert "vllm:generation_tokens_total{" in answers["/metrics"]


def test_the_lines_of_python_print_an_answer(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    exec(code.replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out.strip()


def test_metrics_that_are_named_exist(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    told = run("curl http://127.0.0.1:8000/metrics", url)
    names = re.findall(r"`(vllm:\w+)`", TEXT)
    assert len(names) > 12
    for name in names:
        assert re.search(rf"^{name}(_bucket)?{{", told, flags=re.M), name
