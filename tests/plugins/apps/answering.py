"""A server for tests of its client: it answers every request at once, with as many tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = body["max_tokens"]
        choices = [{"index": 0, "text": "a", "finish_reason": None} for _ in range(tokens)]
        choices[-1]["finish_reason"] = "length"
        events: list[Any] = [{"choices": [choice]} for choice in choices]
        events.append({"choices": [], "usage": {"completion_tokens": tokens}})
        lines = [*map(json.dumps, events), "[DONE]"]
        self._send("text/event-stream", "".join(f"data: {line}\n\n" for line in lines))

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        return None


@contextmanager
def answering() -> Iterator[str]:
    """-> the URL of a server that is gone after the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
