"""A scheduler: short prompts go first, and nobody waits for ever.

    python -m core.run configs/qwen3-tiny.yaml -p examples/one_file/shortest_first_scheduler.py \\
        scheduler=shortest-first scheduler.seconds_per_token=0.01

Each token of a prompt counts as if the request had come a little later. So a long prompt lets those
pass that come soon after it and are shorter, and those only. 0 seconds is first come, first served.
"""

from dataclasses import dataclass, field

from core.registry import schedulers
from core.scheduling import QueueScheduler


@schedulers.register("shortest-first", summary="short prompts first, weighed against waiting")
class ShortestFirst(QueueScheduler):
    @dataclass
    class Options(QueueScheduler.Options):
        seconds_per_token: float = field(
            default=0.001, metadata={"help": "how much later each token of a prompt makes it"}
        )

        def __post_init__(self):
            super().__post_init__()
            if self.seconds_per_token < 0:
                raise ValueError(f"seconds_per_token must not be below 0: {self.seconds_per_token}")

    reads_priority = False  # so that a request which sets one is told

    def order(self, request):
        # The prompt, not len(request): a request that is sent back keeps its output and its turn.
        return request.arrival + self.options.seconds_per_token * len(request.prompt)
