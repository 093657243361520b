"""A package whose plugin raises in one place of our choice, and is fine everywhere else."""

from __future__ import annotations

from tests.thirdparty.installed import Site

NAME, VERSION = "plait-faulty", "0.7"
HOOK_PLACES = ("configure", "engine_started", "step_done", "request_done", "engine_stopped")
ENTRY_PLACES = ("import", "register", *HOOK_PLACES)  # those in the module of the entry point

HOOKS = """\
{imported}
from core.hooks import hookimpl


def fail(place):
    raise ValueError(f"no luck in {{place}}")


@hookimpl
def register(registries):
    registries.attention.register("faulty", "plait_faulty_parts:Attention")
    registries.samplers.register("faulty", "plait_faulty_parts:FaultySampler")
    registries.schedulers.register("faulty", "plait_faulty_parts:FaultyScheduler")
    registries.processors.register("faulty", "plait_faulty_parts:Processor")
    registries.sharding.register("faulty", "plait_faulty_parts:Strategy")
    {register}
"""
HOOK = """

@hookimpl
def {hook}():
    fail("{hook}")
"""
PARTS = """\
from dataclasses import dataclass

{target}
from core.interfaces import AttentionBackend, LogitsProcessor, Sampled, Sampler
from core.parallel import Guard, Sharding
from core.scheduling import QueueScheduler

PLACE = "{place}"


def fail(place):
    if place == PLACE:
        raise ValueError(f"no luck in {{place}}")


class Attention(AttentionBackend):
    def __init__(self, shape, options):
        fail("init")
        super().__init__(shape, options)

    def plan(self, meta):
        fail("plan")

    @classmethod
    def rejects(cls, shape):
        fail("rejects")
        return []

    def forward(self, q, k, v, cache, meta):
        fail("forward")
        return q


class FaultySampler(Sampler):
    @dataclass
    class Options:
        def __post_init__(self):
            fail("options")

    def accepts(self, params):
        fail("accepts")
        return []

    def __call__(self, logits, rows):
        fail("call")
        return Sampled(logits.argmax(-1))


class FaultyScheduler(QueueScheduler):
    def order(self, request):
        fail("order")
        return request.arrival


class Processor(LogitsProcessor):
    def wants(self, params):
        fail("wants")
        return True

    def __call__(self, logits, rows):
        fail("process")
        return logits


class Faulty(Guard):
    def forward(self, x):
        fail("guard")
        return self._comm.all_reduce(super().forward(x))


class Strategy(Sharding):
    @property
    def dims(self):
        fail("dims")
        return {{"in": self.axis}}

    @property
    def guard(self):
        return Faulty
"""


def install(site: Site, place: str) -> None:
    """Install plait-faulty 0.7, which raises in `place` ("" for nowhere)."""
    raising = f'raise ValueError("no luck in {place}")'
    body = HOOKS.format(
        imported=raising if place == "import" else "",
        register=raising if place == "register" else "pass",
    )
    if place in HOOK_PLACES:
        body += HOOK.format(hook=place)
    site.folder.joinpath("plait_faulty.py").write_text(body)
    parts = PARTS.format(target=raising if place == "target" else "", place=place)
    site.folder.joinpath("plait_faulty_parts.py").write_text(parts)
    site.metadata(NAME, VERSION, {"faulty": "plait_faulty"})
