"""Claims a name that plait-good has."""

from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.samplers.register("good", "plait_clash_sampler:Other")
