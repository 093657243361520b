"""Executor that joins the processes torchrun started: rank 0 leads, the others follow its plans."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from core.errors import EngineDead, RankDone, UserError
from core.interfaces import Executor, Pending
from core.parallel import connect
from core.parallel.switches import check_allocator, set_switches
from core.progress import loading_bar
from core.setup import Setup, check_weights, device_of, limits_of
from core.types import Limits, StepOutput, StepPlan
from core.worker import Worker
from core.worker.memory import give_back_memory
from core.worker.wire import decode, encode

FOREVER = 1e8  # seconds: a server may have nothing to do for long; a rank that ends is noticed
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Torchrun(Executor):
    """One rank a process of `torchrun --nproc-per-node N -m core.run CONFIG.yaml`.

    Every process runs the same program. In all but rank 0 the engine's constructor serves plans
    until rank 0 closes its engine, and then ends the process.
    """

    @dataclass
    class Options: ...

    def __init__(self, options: Options, config: Any) -> None:
        super().__init__(options, config)
        self._comm: Any = None
        self._plans: Any = None
        self._worker: Any = None
        self._leads = False  # whether the others wait for plans

    def start(self, setup: Setup) -> Limits:
        rank, size, local = _place()
        set_switches()
        config = self.config
        if size != config.parallel.tensor:
            raise UserError(
                f"torchrun started {size} processes and parallel.tensor is "
                f"{config.parallel.tensor}. Make them equal."
            )
        device = device_of(config, local)
        if device.type == "cuda" and size > 1:
            check_allocator()
        if rank == 0:
            check_weights(config, setup)
        store = _store(rank, size)
        # plans go from host to host: by way of the devices they would wait for the step before
        plans = PrefixStore("plans", store)
        self._plans = connect(plans, rank, size, "cpu", timeout=FOREVER)
        self._comm = connect(PrefixStore("steps", store), rank, size, device)
        self._worker = Worker(config, setup, rank, self._comm, device)
        if rank == 0:
            with loading_bar() as progress:
                self._worker.load(progress)
        else:
            self._worker.load()
        own = torch.tensor([self._worker.affordable()], device=device)
        pages = int(self._comm.all_gather(own).min())
        limits = limits_of(config, setup, self._worker.page_size, pages)
        self._worker.prepare(limits)
        if rank != 0:
            self._follow()
        self._leads = True
        return limits

    def _follow(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to handle
        while data := self._plans.broadcast_object(None):
            self._worker.launch(decode(data))
        self.shutdown()
        raise RankDone

    def submit(self, plan: StepPlan) -> Pending:
        if not self._leads:  # they would take this plan for what they wait for, or wait for ever
            raise EngineDead("rank 0 was interrupted in a step. Start the ranks anew.")
        try:
            self._plans.broadcast_object(encode(plan))
            return _Step(self._worker.launch(plan))
        except BaseException as error:
            self._leads = False  # the others are somewhere within the step
            if not isinstance(error, Exception):
                raise
            raise EngineDead(
                f"rank 0 could not go on: {error!r}. torchrun's output says which rank failed."
            ) from error

    def shutdown(self) -> None:
        if self._comm is None:
            return
        leads, self._leads = self._leads, False
        if leads:
            with suppress(RuntimeError):  # a rank that is gone needs no farewell
                self._plans.broadcast_object(b"")
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._comm.close()
        self._plans.close()
        self._comm = None
        give_back_memory()


def _place() -> tuple[int, int, int]:
    """(rank, number of ranks, rank on this machine), from the environment. Raises UserError."""
    if missing := [name for name in VARIABLES if name not in os.environ]:
        raise UserError(
            f"executor torchrun needs {', '.join(missing)} in the environment. Start with "
            "torchrun --nproc-per-node N -m core.run CONFIG.yaml, or say executor=local."
        )
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    given["LOCAL_RANK"] = os.environ.get("LOCAL_RANK", given["RANK"])
    for name, value in given.items():
        if not (value.isascii() and value.isdigit()):
            raise UserError(f"{name} is {value!r} in the environment. It must be a number.")
    return int(given["RANK"]), int(given["WORLD_SIZE"]), int(given["LOCAL_RANK"])


def _store(rank: int, size: int) -> Store:
    """A corner of torchrun's own store for this engine: a later one meets in another."""
    global _engines
    _engines += 1
    try:
        whole, _, _ = next(rendezvous("env://", rank, size))
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {rank} cannot meet the others at {place} (MASTER_ADDR, MASTER_PORT): "
            f"{str(error).splitlines()[0]}. Choose a free port, say with torchrun --master-port N."
        ) from error
    return PrefixStore(f"plait/{_engines}", whole)


_engines = 0


class _Step(Pending):
    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> StepOutput:
        try:
            return self._pending.result()
        except Exception as error:
            raise EngineDead(
                f"a step failed: {error!r}. torchrun's output says which rank failed."
            ) from error
