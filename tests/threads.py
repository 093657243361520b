"""An executor for tests, as a one-file plugin: every rank is a thread of this process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from core.errors import EngineDead
from core.interfaces import Executor, Pending
from core.parallel import ThreadGroup
from core.parallel.groups import ThreadCommunicator
from core.registry import executors
from core.setup import Setup, check_weights, device_of, limits_of
from core.types import Limits, StepOutput, StepPlan
from core.worker import Worker
from core.worker.wire import decode, encode


@executors.register("threads", summary="each rank a thread: tensor parallelism without processes")
class Threads(Executor):
    @dataclass
    class Options: ...

    def start(self, setup: Setup) -> Limits:
        config, size = self.config, self.config.parallel.tensor
        check_weights(config, setup)
        group, device = ThreadGroup(size), device_of(config, 0)
        self.workers = [
            Worker(config, setup, rank, ThreadCommunicator(group, rank), device)
            for rank in range(size)
        ]
        self.pools = [ThreadPoolExecutor(1) for _ in range(size)]
        self._everywhere(lambda worker: worker.load())
        pages = min(self._everywhere(lambda worker: worker.affordable()))
        limits = limits_of(config, setup, self.workers[0].page_size, pages)
        self._everywhere(lambda worker: worker.prepare(limits))
        return limits

    def _everywhere(self, action):
        futures = [
            pool.submit(action, worker)
            for pool, worker in zip(self.pools, self.workers, strict=True)
        ]
        return [future.result() for future in futures]

    def submit(self, plan: StepPlan) -> Pending:
        data = encode(plan)
        plans = [plan, *(decode(data) for _ in self.workers[1:])]
        return _Step(
            [
                pool.submit(worker.launch, own)
                for pool, worker, own in zip(self.pools, self.workers, plans, strict=True)
            ]
        )

    def shutdown(self) -> None:
        for pool in getattr(self, "pools", []):
            pool.shutdown()
        self.workers = []


class _Step(Pending):
    def __init__(self, futures: list[Future[Pending]]) -> None:
        self._futures = futures

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def result(self) -> StepOutput:
        outputs = [future.result().result() for future in self._futures]
        if any(output.ids.tolist() != outputs[0].ids.tolist() for output in outputs):
            raise EngineDead("the ranks sampled different ids")
        return outputs[0]
