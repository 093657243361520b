"""A hub of models on this machine, for the real client: it serves folders and notes its answers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from huggingface_hub import constants

from core.hub import hub_model
from core.run import main

ROOT = Path(__file__).parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MAIN, TAG = "main", "v1"


class Run(NamedTuple):
    """What a run said, and how it ended."""

    status: int
    out: str
    err: str


@dataclass
class Hub:
    """Models by name, a folder each."""

    models: dict[str, Path]
    home: Path  # the client's cache
    url: str = ""
    asked: list[str] = field(default_factory=list)  # requests about models
    sent: list[tuple[str, int]] = field(default_factory=list)  # files and the bytes of their bodies
    withheld: set[str] = field(default_factory=set)  # files that break off in the middle

    def bytes_of(self, suffix: str) -> int:
        """How much of files with such a name was sent."""
        return sum(size for name, size in self.sent if name.endswith(suffix))

    def run(self, *words: str) -> Run:
        """`python -m core.run` of somebody whose hub this is, in this process."""
        hub_model.cache_clear()
        out, err = io.StringIO(), io.StringIO()
        template = f"{self.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        with (
            mock.patch.dict(os.environ, self._variables()),  # for ranks
            mock.patch.multiple(
                constants,  # which the client made of the variables when it was imported
                ENDPOINT=self.url,
                HUGGINGFACE_CO_URL_TEMPLATE=template,
                HF_HUB_CACHE=str(self.home / "hub"),
                HF_HUB_OFFLINE=False,
                HF_HUB_DOWNLOAD_TIMEOUT=1,
            ),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            return Run(main([*words]), out.getvalue(), err.getvalue())

    def run_apart(self, *words: str) -> Run:
        """The same as a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "core.run", *words],
            cwd=ROOT,
            env={**os.environ, **self._variables()},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def _variables(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home), "HF_HUB_OFFLINE": "0"}


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub answers at `hub.url` within the block."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            name = "/".join(parts[2:4] if api else parts[:2])
            if parts != ["api", "agent-harnesses"]:  # what the client wants to know of its user
                hub.asked.append(f"{self.command} {self.path}")
            folder = hub.models.get(name)
            kind, revision, *rest = (parts[4:] if api else parts[2:]) + ["", ""]
            if folder is None:
                return self._say(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if (revision or MAIN) not in (MAIN, TAG, COMMIT):
                return self._say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            if kind in ("", "revision"):
                return self._json({"id": name, "sha": COMMIT, "siblings": []})
            if kind == "tree":
                return self._json([_entry(folder, file) for file in _files(folder)])
            file = folder / "/".join(rest[:-2] if len(rest) > 2 else rest).strip("/")
            if not file.is_file():
                return self._say(404, b"", {"X-Error-Code": "EntryNotFound"})
            return self._file(file)

        def _file(self, file: Path) -> None:
            body = file.read_bytes()
            more = {"ETag": f'"{_hash(body)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            status, wanted = 200, self.headers.get("Range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                whole, status = len(body), 206
                body = body[int(first) : int(last) + 1 if last else whole]
                more["Content-Range"] = f"bytes {first}-{int(first) + len(body) - 1}/{whole}"
            if self.command == "GET":
                hub.sent.append((file.name, len(body)))
            self._say(status, body, more, cut=file.name in hub.withheld)

        def _json(self, value: Any) -> None:
            self._say(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _say(
            self, status: int, body: bytes, more: dict[str, str], *, cut: bool = False
        ) -> None:
            self.send_response(status)
            for key, value in {**more, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[: len(body) // 2] if cut else body)
                self.close_connection = self.close_connection or cut

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _entry(folder: Path, file: Path) -> dict[str, Any]:
    body = file.read_bytes()
    return {
        "type": "file",
        "path": str(file.relative_to(folder)),
        "size": len(body),
        "oid": _hash(body),
    }


def _hash(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
