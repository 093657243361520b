"""A sampler, registered by path."""

from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.samplers.register(
        "good", "plait_good_sampler:Good", summary="keeps tokens above a floor"
    )
    registries.samplers.register("hungry", "plait_good_sampler:Good", needs=("plait_absent",))
