"""uvicorn's protocol on httptools, where that one reads a request otherwise than it is meant."""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_AHEAD = 8  # requests that wait behind another one until no more are read


class Parser(httptools.HttpRequestParser):  # type: ignore[misc]
    """A parser that reads a request with `Upgrade` like any other, as h11 does.

    llhttp ends such a request at its head: the rest is another protocol's. Here it never is (RFC
    9110, section 7.8: a server may ignore the field). The body would be taken for a request of its
    own, and it may be anybody's; Java's client asks so for HTTP/2 in its first request.
    """

    def __init__(self, protocol: ExactProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        # what comes behind `Connection: close` is not looked at: no mistake in what came before
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: bytes) -> None:
        while data:
            try:
                super().feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._protocol.plain_head() + data[upgrade.args[0] :]


class ExactProtocol(HttpToolsProtocol):
    """Requires one Host, ignores Upgrade, and hears that a client has gone while requests wait."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.parser = Parser(self)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("not one Host")  # RFC 9112, section 3.2; the client gets status 400
        super().on_headers_complete()
        if 0 < len(self.pipeline) < MOST_AHEAD:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which reads on, however many are there
        if len(self.pipeline) >= MOST_AHEAD:
            self.flow.pause_reading()

    def plain_head(self) -> bytes:
        """The head that was read last, without what asks for another protocol."""
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("this is no proxy")
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
