"""The client must not be what is measured: how many tokens a second it can read on one core."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from plugins.apps.bench.connection import Address
from plugins.apps.bench.load import Pool, closed_loop

STREAMS, TOKENS = 64, 1500
SERVER = f"""
import asyncio
event = (b'data: {{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1796040123,'
         b'"model":"tiny","choices":[{{"index":0,"text":" word","logprobs":null,'
         b'"finish_reason":null}}],"usage":null}}\\n\\n')
chunk = b'%x\\r\\n%s\\r\\n' % (len(event), event)
usage = b'data: {{"choices":[],"usage":{{"completion_tokens":{TOKENS}}}}}\\n\\n'
end = b'%x\\r\\n%s\\r\\n0\\r\\n\\r\\n' % (len(usage), usage)
async def answer(reader, writer):
    await reader.readuntil(b'\\r\\n\\r\\n')
    writer.write(b'HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n'
                 b'transfer-encoding: chunked\\r\\n\\r\\n')
    for _ in range({TOKENS}):
        writer.write(chunk)
        await asyncio.sleep(0)
    writer.write(end)
    await reader.read()
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.mark.speed
def test_a_client_reads_more_tokens_than_servers_send() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            address = Address.parse(f"http://127.0.0.1:{int(process.stdout.readline())}")
            pool = Pool(address)
            request = address.request("GET", "/v1/completions")
            start, before = time.perf_counter(), time.process_time()
            answers = asyncio.run(closed_loop(pool.ask, [request] * STREAMS, STREAMS))
            seconds, spent = time.perf_counter() - start, time.process_time() - before
        finally:
            process.kill()
    assert [len(a.tokens) for a in answers] == [TOKENS] * STREAMS
    assert [a.count for a in answers] == [TOKENS] * STREAMS
    total = STREAMS * TOKENS
    print(f"{total / seconds:,.0f} tokens a second came; {total / spent:,.0f} a second of its core")
    assert total / spent > 40_000
