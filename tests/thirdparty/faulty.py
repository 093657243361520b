"""A plugin with a fault in one place of our choice, which is fine everywhere else."""

from __future__ import annotations

from pathlib import Path

from tests.thirdparty.installed import Site

NAME, VERSION = "plait-faulty", "0.7"
WATCHING_PLACES = ("step_done", "request_done", "engine_stopped")
OFFERING_PLACES = ("find_model", "open_weights", "open_tokenizer")
HOOK_PLACES = ("configure", "observers", "engine_started", *WATCHING_PLACES, *OFFERING_PLACES)
ENTRY_PLACES = ("import", "register", "hang", *HOOK_PLACES)  # in the module of the entry point

FAIL = """\
PLACE = "{place}"


def fail(place):
    if place == PLACE:
        {fault}

"""
RAISES = 'raise ValueError(f"no luck in {place}")'
HANG = """
def hang():
    import time
    while True:
        try:
            time.sleep(30)
        except Exception:  # as a loop that tries again does
            pass


if PLACE == "hang":
    hang()

"""
ENTRY = """
from core.hooks import hookimpl

fail("import")


@hookimpl
def register(registries):
    registries.attention.register("faulty", {attention})
    registries.samplers.register("faulty", {sampler})
    registries.schedulers.register("faulty", {scheduler})
    registries.processors.register("faulty", {processor})
    registries.sharding.register("faulty", {strategy})
    fail("register")
"""
HOOK = """

@hookimpl
def {hook}():
    fail("{hook}")
"""
PARTS = """
from core.interfaces import AttentionBackend, LogitsProcessor, Sampled, Sampler
from core.parallel import Guard, Sharding
from core.scheduling import QueueScheduler

fail("target")


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
        return {"in": self.axis}

    @property
    def guard(self):
        return Faulty
"""
CLASSES = {
    "attention": "Attention",
    "sampler": "FaultySampler",
    "scheduler": "FaultyScheduler",
    "processor": "Processor",
    "strategy": "Strategy",
}


def _entry(place: str, classes: dict[str, str]) -> str:
    hook = HOOK.format(hook=place) if place in HOOK_PLACES else ""
    return ENTRY.format(**classes) + hook


def install(site: Site, place: str, fault: str = RAISES) -> None:
    """Install plait-faulty 0.7, whose `fault`, a statement, is in `place` ("" for nowhere)."""
    fail = FAIL.format(place=place, fault=fault)
    paths = {kind: f'"plait_faulty_parts:{name}"' for kind, name in CLASSES.items()}
    site.folder.joinpath("plait_faulty.py").write_text(fail + HANG + _entry(place, paths))
    site.folder.joinpath("plait_faulty_parts.py").write_text(fail + PARTS)
    site.metadata(NAME, VERSION, {"faulty": "plait_faulty"})


def one_file(folder: Path, place: str, fault: str = RAISES) -> Path:
    """The same as a single file. -> its path."""
    path = folder / "faulty.py"
    path.write_text(FAIL.format(place=place, fault=fault) + HANG + PARTS + _entry(place, CLASSES))
    return path
