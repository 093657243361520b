"""Executor for one machine: rank 0 in the caller's process, each other in its own."""

from __future__ import annotations

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed import TCPStore

from core.errors import EngineDead, UserError
from core.interfaces import Executor, Pending
from core.parallel import Communicator, Solo, connect
from core.parallel.switches import check_allocator, set_switches
from core.progress import loading_bar, told_if_slow
from core.setup import Setup, check_weights, device_of, limits_of
from core.types import Limits, StepPlan
from core.worker import Worker
from core.worker.memory import give_back_memory
from core.worker.wire import encode
from plugins.executors.rank_process import HOST, Assignment
from plugins.executors.ranks import Ranks
from plugins.executors.steps import Explain, Failed, InThread, Watched, alone

if TYPE_CHECKING:
    from core.config import Config


class Local(Executor):
    """Runs `parallel.tensor` ranks on this machine; starts no process for a single one."""

    @dataclass
    class Options:
        overlap: Literal["auto", "on", "off"] = field(
            default="auto",
            metadata={
                "help": "plan a step while another one runs; auto: on with CUDA, off on a CPU"
            },
        )
        threads: int | None = field(
            default=None,
            metadata={
                "help": "CPU threads of each rank; null: torch's own, shared out among the "
                "ranks of a CPU. Fewer are faster for a small model, or beside other programs"
            },
        )

    options: Options

    def __init__(self, options: Options, config: Any) -> None:
        super().__init__(options, config)
        self._ranks: Ranks | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._threads_before: int | None = None

    def start(self, setup: Setup) -> Limits:
        config, size = self.config, self.config.parallel.tensor
        device = device_of(config, 0)
        device_of(config, size - 1)
        check_weights(config, setup)
        threads = self._set_threads(size, device)
        if size == 1:
            self._comm: Communicator | None = Solo()
            self._explain: Explain = alone(device)
        else:
            if device.type == "cuda":
                check_allocator()
            set_switches()
            store = _store()
            self._ranks = ranks = Ranks(size, threads)
            self._explain = ranks.explain
            assignment = Assignment(_pinned(config, setup), size, store.port)
            ranks.send(pickle.dumps(assignment))
            ranks.collect("here")  # who waits for one in `connect` waits for long
            comm = self._guarded(
                lambda: ranks.unless_one_fails(
                    lambda: connect(store, 0, size, device, address=HOST)
                )
            )
            self._comm = comm
            ranks.on_failure = comm.abort
            ranks.check()  # who failed before that has aborted nothing
        self._worker = self._guarded(lambda: Worker(config, setup, 0, self._comm))
        with told_if_slow("read the weights"), loading_bar() as bar:

            def progress(done: int, total: int) -> None:
                bar(done, total)
                if self._ranks is not None:
                    self._ranks.check()

            self._guarded(lambda: self._worker.load(progress))
        with told_if_slow("ran the largest steps, for their memory"):
            pages = [self._guarded(self._worker.affordable)]
        if self._ranks:
            pages += [reply[1] for reply in self._ranks.collect("loaded")]
        limits = limits_of(config, setup, self._worker.page_size, min(pages))
        if self._ranks:
            self._ranks.send(pickle.dumps(limits))
        with told_if_slow("made the cache, and what steps run in"):
            self._guarded(lambda: self._worker.prepare(limits))
        if self._ranks:
            self._ranks.collect("ready")
        if self.options.overlap == "on" and device.type == "cpu":
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="plait rank 0")
        self._immediate = self.options.overlap == "off" and device.type != "cpu"
        return limits

    def _set_threads(self, size: int, device: torch.device) -> int:
        """Set this process's CPU threads for as long as the engine lives. -> those of each rank."""
        before, threads = torch.get_num_threads(), self.options.threads
        if threads is not None and threads < 1:
            raise UserError(f"executor.threads is {threads}. Give 1 or more, or null.")
        if threads is None:
            threads = max(before // size, 1) if device.type == "cpu" else before
        if threads != before:
            self._threads_before = before
            torch.set_num_threads(threads)
        return threads

    def _guarded(self, action: Any) -> Any:
        """Rank 0's own part of the start. When it fails because another rank did, say that."""
        try:
            return action()
        except Exception as error:
            if self._ranks is not None and not isinstance(error, EngineDead):
                if isinstance(error, UserError):
                    raise
                self._ranks.explain(error)
            raise

    def submit(self, plan: StepPlan) -> Pending:
        try:
            if self._ranks is not None:
                self._ranks.send(encode(plan))
            if self._thread is not None:
                pending: Pending = InThread(self._thread.submit(self._worker.launch, plan))
            else:
                pending = self._worker.launch(plan)
            if self._immediate:
                pending.result()
        except EngineDead:
            raise
        except Exception as error:
            pending = Failed(error)
        except BaseException:
            if self._ranks is not None:  # the others are within the step, and wait for this one
                self._ranks.fail(EngineDead("rank 0 was interrupted in a step. Make a new engine."))
            raise
        return Watched(pending, self._explain, self._ranks)

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=self._ranks is None or self._ranks.failure is None)
            self._thread = None
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None
        if (worker := getattr(self, "_worker", None)) is not None:
            worker.close()
            self._worker = worker = None  # type: ignore[assignment]
        # the group goes last: captured graphs hold on to it
        if (comm := getattr(self, "_comm", None)) is not None:
            comm.close()
            self._comm = None
        give_back_memory()


def _store() -> TCPStore:
    """Where ranks meet. torch by itself listens on every address of the machine, and asks nobody
    who he is."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def _pinned(config: Config, setup: Setup) -> Config:
    """`config` for ranks that ask later: a branch of the hub may have moved by then."""
    if setup.checkpoint.hub is None:
        return config
    model = replace(config.model, path=str(setup.checkpoint.path), revision=None)
    return replace(config, model=model)
