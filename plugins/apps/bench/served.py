"""Workloads on a server: each at every load asked for, with a line of JSON and a summary each."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from plugins.apps.bench.connection import Address, Answer
from plugins.apps.bench.load import Pool, arrival_times, closed_loop, open_loop
from plugins.apps.bench.measure import fold
from plugins.apps.bench.serving_report import Load, figures, summary
from plugins.apps.bench.workloads import TEMPERATURE, Item, Workload, workload, workloads
from plugins.apps.output_files import append_line, write_text

if TYPE_CHECKING:
    from plugins.apps.bench.app import Bench

WARM_UP = "decode:4:16:16:99"
BUSY = 0.9  # share of a core above which the client may be what is measured


@dataclass
class Server:
    """What a run must know of the server that it asks."""

    address: Address
    model: str
    label: str
    salt: bool
    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(self.address)

    def request(self, item: Item, salt: str) -> bytes:
        """The request for a workload's item: token ids in, exactly so many tokens out."""
        body = {
            "model": self.model,
            "prompt": item.prompt,
            "max_tokens": item.output,
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "top_k": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.salt:
            body["cache_salt"] = salt
        return self.address.request("POST", "/v1/completions", body)


def bench_server(options: Bench.Options) -> int:
    """Everything that `run.url` asks for. -> exit status: 1 if requests failed."""
    loads = _loads(options)
    works = [
        fold(work, options.vocabulary) if options.vocabulary else work
        for work in workloads(options.workloads)
    ]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(options, works, loads))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: it reads faster."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _loads(options: Bench.Options) -> list[Load]:
    """The loads that the options name. UserError for numbers that are none."""
    if not 0 < options.burstiness < math.inf:
        raise UserError(f"run.burstiness must be more than 0, not {options.burstiness}.")
    for name, values in (("concurrency", options.concurrency), ("rate", options.rate)):
        if not all(0 < value < math.inf for value in values):
            raise UserError(f"run.{name} must be more than 0, not {values}.")
    for name, number in (("rounds", options.rounds), ("vocabulary", options.vocabulary)):
        if number is not None and number < 1:
            raise UserError(f"run.{name} must be 1 or more, not {number}.")
    loads = [Load(concurrency=number) for number in options.concurrency]
    loads += [Load(rate=rate, burstiness=options.burstiness) for rate in options.rate]
    return loads or [Load()]


async def _run(options: Bench.Options, works: Sequence[Workload], loads: Sequence[Load]) -> int:
    server = await _meet(options)
    _say(f"{server.label} at {options.url} answers for {server.model!r}")
    try:
        await _warm_up(server, options)
        lines = []
        for work in works:
            for load in loads:
                for _ in range(options.repeat):
                    line, curves = await _one(server, work, load, options)
                    lines.append((line, curves))
                    _tell(line, options.out)
    finally:
        server.pool.close()
    if options.plot is not None:
        from plugins.apps.bench.plot import draw

        write_text("plot", options.plot, draw(lines))
        _say(f"the plot is in {options.plot}")
    return 1 if any(line["failed"] for line, _ in lines) else 0


async def _meet(options: Bench.Options) -> Server:
    """Ask the server what it serves. UserError when it cannot be asked."""
    key = None
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise UserError(f"run.api_key_env: {options.api_key_env} is not set.")
    assert options.url is not None
    address = Address.parse(options.url, key)
    connection = await address.connect()
    answer = await connection.ask(address.request("GET", "/v1/models"))
    connection.close()
    if answer.error:
        reason, advice = answer.error.rstrip("."), ""
        if answer.status == 401:
            advice = " Name the environment variable that holds its key in run.api_key_env."
        raise UserError(f"{options.url} does not say which models it has: {reason}.{advice}")
    entries = json.loads(bytes(connection.body))["data"]
    names = [entry["id"] for entry in entries]
    if options.model is not None and options.model not in names:
        raise UserError(f"{options.url} has no model {options.model!r}, but {', '.join(names)}.")
    label = options.label or entries[0].get("owned_by") or "server"
    return Server(address, options.model or names[0], label, options.salt)


async def _warm_up(server: Server, options: Bench.Options) -> None:
    """A few requests, untimed. UserError when the server takes no such requests."""
    work = workload(WARM_UP)
    if options.vocabulary:
        work = fold(work, options.vocabulary)
    line, _ = await _one(server, work, Load(), options)
    if line["failed"]:
        error = next(iter(line["errors"]))
        hint = " Set run.vocabulary to the number of token ids that its model has."
        raise UserError(
            f"{options.url} cannot answer the first requests: {error.rstrip('.')}."
            + (hint if "400" in error and not options.vocabulary else "")
        )


async def _one(
    server: Server, work: Workload, load: Load, options: Bench.Options
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Run a workload once. -> its figures, and the values that they are made of."""
    items = work.items
    if load.concurrency and options.rounds:
        items = items[: options.rounds * load.concurrency]
        work = Workload(work.name, items, work.shared)
    salt = uuid.uuid4().hex
    requests = [server.request(item, salt) for item in items]
    pool = server.pool
    pool.most_busy = 0
    start, before = time.perf_counter(), time.process_time()
    if load.rate:
        moments = arrival_times(len(items), load.rate, load.burstiness, options.seed)
        answers = await open_loop(pool.ask, requests, moments)
    elif work.arrives and not load.concurrency:
        answers = await open_loop(pool.ask, requests, [item.arrival for item in items])
    else:
        answers = await closed_loop(pool.ask, requests, load.concurrency or len(items))
    seconds, spent = time.perf_counter() - start, time.process_time() - before
    for item, answer in zip(items, answers, strict=True):
        _check(item, answer)
    found, values = figures(work, load, answers, seconds, options.slo, server.label)
    found["peak_concurrent_requests"] = pool.most_busy
    found["client_busy"] = round(spent / seconds, 3)
    return found, values


def _check(item: Item, answer: Answer) -> None:
    """An answer that is not as long as asked for is no success."""
    if answer.error is None and answer.count not in (None, item.output):
        answer.error = f"{answer.count} of {item.output} tokens came"
    if answer.error is None and not answer.tokens:
        answer.error = "no token came"


def _tell(line: dict[str, Any], out: str | None) -> None:
    print(json.dumps(line), flush=True)
    if out is not None:
        append_line("out", out, json.dumps(line))
    for text in summary(line):
        _say(text)
    for error, count in line["errors"].items():
        _say(f"{count} requests failed: {error}")
    if line["client_busy"] > BUSY:
        _say(
            f"This client was busy for {line['client_busy']:.0%} of the time: it may be slower "
            "than the server. Run several, or install uvloop."
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
