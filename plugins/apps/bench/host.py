"""What a step costs on the host, at several numbers of running requests."""

from __future__ import annotations

import copy
import gc
import logging
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from plugins.apps.terminal import show_table

if TYPE_CHECKING:
    from core.config import Config

RUNNING = (16, 64, 256, 1024)
PROMPT = 64  # tokens
UNTIMED = 10  # steps before the first that is timed
SMALL = {  # nothing is computed, so the model may be small; its vocabulary stays
    "num_hidden_layers": 1,
    "layer_types": None,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def show_host_costs(config: Config) -> int:
    """Print a row for each number of requests, and what a token takes to become text."""
    from core import registry
    from core.scheduling.host_cost import measure_host
    from core.text.speed import measure_detokenizing

    scheduler = registry.schedulers.get(config.scheduler.use)
    rows = []
    for running in RUNNING:
        whole = measure_steps(config, running)
        parts = measure_host(scheduler, running)
        planning, updating = parts["plan_us"], parts["update_us"]
        rest = whole - planning - updating
        cells = [f"{us:,.0f}" for us in (whole, planning, updating, rest)]
        rows.append([str(running), *cells, f"{whole / running:.2f}"])
    header = ["running", "step us", "plan us", "update us", "batch and loop us", "us a request"]
    show_table(header, rows, right=range(6))
    print(f"{measure_detokenizing():.2f} us to turn a token into text")
    return 0


def measure_steps(config: Config, running: int, steps: int = 200) -> float:
    """Microseconds of a decode step of an engine with `running` requests, by the median."""
    from core import SamplingParams
    from core.engine import Engine
    from core.registry import registries

    log = logging.getLogger("plait")
    level = log.level
    log.setLevel(logging.ERROR)  # it would tell at length how this model differs from the real one
    tokens = steps + running + 2 * UNTIMED  # more than there are steps, so that nobody ends
    before = registries.snapshot()
    try:
        engine = Engine(without_model(config, running, PROMPT + tokens))
    finally:
        registries.restore(before)  # nobody else shall choose what computes nothing
        log.setLevel(level)
    try:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for number in range(running):
            engine.add([(number + i) % 1000 for i in range(PROMPT)], params)
        while engine.statistics()["waiting"]:
            engine.step()
        for _ in range(UNTIMED):
            engine.step()
        gc.collect()
        gc.freeze()
        times = []
        for _ in range(steps):
            start = perf_counter()
            engine.step()
            times.append(perf_counter() - start)
        return 1e6 * median(times)
    finally:
        gc.unfreeze()
        engine.close()


def without_model(config: Config, running: int, length: int) -> Config:
    """The same engine around a model that does nothing, with room for `running` requests."""
    from core import registry
    from core.config import Component
    from plugins.apps.bench.nothing import NoAttention, NoRunner

    changed = copy.deepcopy(config)
    changed.model.config = changed.model.config | SMALL
    changed.model.weights = "dummy"
    changed.model.max_length = length
    # only here: neither does what its registry promises
    registry.runners.register("nothing", NoRunner)
    registry.attention.register("nothing", NoAttention)
    changed.runner = Component("nothing")
    changed.attention = Component("nothing")
    changed.scheduler.options.max_num_seqs = running
    changed.scheduler.options.max_num_batched_tokens = 8192
    page = changed.cache.page_size if isinstance(changed.cache.page_size, int) else 16
    changed.cache.page_size = page
    changed.cache.pages = running * -(-length // page)
    return changed
