"""A plugin in one file: python -m core.run CONFIG -p ./one_file.py sampler=shout"""

from dataclasses import dataclass

from core.hooks import hookimpl
from core.interfaces import Sampled, Sampler
from core.registry import samplers


@samplers.register("shout", summary="from one file")
class Shout(Sampler):
    @dataclass
    class Options:
        loud: bool = True

    def __call__(self, logits, rows):
        return Sampled(ids=logits.argmax(-1))


@hookimpl
def engine_stopped(engine):
    print("stopped", engine)
