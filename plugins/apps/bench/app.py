"""The bench app: which workloads run on whom, in which order, and what is printed of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from core.errors import Mistakes, UserError
from core.interfaces import App
from plugins.apps.bench.ways import check_read
from plugins.apps.bench.workloads import workload, workloads
from plugins.apps.output_files import check_outputs

if TYPE_CHECKING:
    import torch

    from core.config import Config
    from core.setup import Setup
    from plugins.apps.bench.comparison import Side
    from plugins.apps.bench.roofline import ModelSize
    from plugins.apps.bench.workloads import Workload

WARM_UP = "decode:1:3:8:99"


class Bench(App):
    """Times workloads of fixed token ids, as JSON lines on standard output and a table beside."""

    @dataclass
    class Options:
        workloads: list[str] = field(
            default_factory=lambda: ["standard"],
            metadata={"help": "workloads by name, such as decode:8:128:256:11, or standard"},
        )
        repeat: int = field(
            default=1, metadata={"help": "runs of each workload; the table has their median"}
        )
        peer: Literal["transformers"] | None = field(
            default=None,
            metadata={"help": "an engine that runs the same workloads in turn: transformers"},
        )
        continuous: bool = field(
            default=True, metadata={"help": "with the peer: time its continuous batching, too"}
        )
        host: bool = field(
            default=False,
            metadata={"help": "time the host's work in a step instead; reads no weights"},
        )
        out: str | None = field(
            default=None, metadata={"help": "file to which the JSON lines are added as well"}
        )
        trace: str | None = field(
            default=None,
            metadata={
                "help": "file for a profiler's trace of steps of the first workload: of those that "
                "read its prompts if it gives one token each, otherwise of those that decode; "
                "tells the device's idle time and its kernels, and times nothing else"
            },
        )
        trace_steps: int = field(default=30, metadata={"help": "steps that are traced"})
        url: str | None = field(
            default=None,
            metadata={"help": "measure the server there instead, such as http://127.0.0.1:8000"},
        )
        concurrency: list[int] = field(
            default_factory=list,
            metadata={
                "help": "with url: so many clients that wait for their answers, each in turn"
            },
        )
        rate: list[float] = field(
            default_factory=list,
            metadata={"help": "with url: so many requests a second that wait for nobody"},
        )
        burstiness: float = field(
            default=1.0,
            metadata={"help": "of the rate: 1 is a Poisson process, less comes in bursts"},
        )
        rounds: int | None = field(
            default=None,
            metadata={"help": "most requests of each concurrent client; null: the whole workload"},
        )
        slo: dict[str, float] = field(
            default_factory=dict,
            metadata={
                "help": "with url: limits in ms for goodput, such as "
                "{ttft: 200, tpot: 20, e2el: 9000}"
            },
        )
        plot: str | None = field(
            default=None, metadata={"help": "with url: SVG file for curves of the latencies"}
        )
        model: str | None = field(
            default=None, metadata={"help": "with url: the model to ask; null: the server's first"}
        )
        label: str | None = field(
            default=None, metadata={"help": "with url: what the results call the engine"}
        )
        vocabulary: int | None = field(
            default=None,
            metadata={"help": "with url: number of token ids, for models with fewer than 10,001"},
        )
        salt: bool = field(
            default=True,
            metadata={"help": "with url: send cache_salt, so that no run finds another's prompts"},
        )
        seed: int = field(default=0, metadata={"help": "of the arrival times of a rate"})
        api_key_env: str | None = field(
            default=None, metadata={"help": "with url: environment variable with the server's key"}
        )

    options: Options

    def run(self, config: Config) -> int:
        self.check()
        return self.measure(config)

    def check(self) -> None:
        """UserError with every option that is wrong by itself, or that nothing would read."""
        options, mistakes = self.options, Mistakes()
        with mistakes.noted():
            check_read(options)
        with mistakes.noted():
            check_outputs(out=options.out, plot=options.plot, trace=options.trace)
        if options.repeat < 1:
            mistakes.add(f"run.repeat must be 1 or more, not {options.repeat}.")
        mistakes.tell()

    def measure(self, config: Config) -> int:
        """Measure in the way that the options ask for. -> exit status."""
        if self.options.url is not None:
            from plugins.apps.bench.served import bench_server

            return bench_server(self.options)
        if self.options.host:
            from plugins.apps.bench.host import show_host_costs

            return show_host_costs(config)
        loads = workloads(self.options.workloads)
        if self.options.trace is not None:
            return self._trace(config, loads[0], self.options.trace)

        from core import LLM
        from core.setup import device_of, dtype_of, read_setup
        from plugins.apps.bench.comparison import Comparison, engine_side
        from plugins.apps.bench.machine import measure
        from plugins.apps.bench.measure import fold

        setup = read_setup(config)
        device, dtype = device_of(config, 0), dtype_of(config, setup)
        loads = [fold(work, setup.model_config.vocab_size) for work in loads]
        machine = measure(device, dtype)  # before the engine takes the memory
        _say(
            f"{device}: {machine.bandwidth / 1e9:.0f} GB/s, "
            f"{machine.peak / 1e12:.2f} TFLOP/s in {str(dtype).removeprefix('torch.')}"
        )
        with LLM.open(config) as llm:
            at_once = llm.engine.limits.max_num_seqs
            sides: list[Side] = [engine_side(llm)]
            if self.options.peer:
                sides += self._peer(config, setup, device, dtype, at_once)
            comparison = Comparison(
                sides,
                machine,
                # ranks on a CPU share the one machine that was measured
                model_size(setup, dtype, config.parallel.tensor if device.type == "cuda" else 1),
                at_once=at_once,
                repeat=self.options.repeat,
                out=self.options.out,
            )
            comparison.warm_up(fold(workload(WARM_UP), setup.model_config.vocab_size))
            for work in loads:
                comparison.run(work)
            comparison.show()
        return 0

    def _trace(self, config: Config, work: Workload, path: str) -> int:
        from core import LLM
        from plugins.apps.bench.measure import fold
        from plugins.apps.bench.trace import show_trace

        if self.options.trace_steps < 1 or work.arrives:
            raise UserError(
                "run.trace takes run.trace_steps of 1 or more, and a first workload whose requests "
                f"start together; {self.options.trace_steps} and {work.name!r} were given."
            )
        with LLM.open(config) as llm:
            vocabulary = llm.engine.setup.model_config.vocab_size
            show_trace(llm, fold(work, vocabulary), path, self.options.trace_steps)
        return 0

    def _peer(
        self, config: Config, setup: Setup, device: torch.device, dtype: torch.dtype, at_once: int
    ) -> Sequence[Side]:
        from plugins.apps.bench.peer import Transformers

        dummy = config.model.weights == "dummy"
        if setup.checkpoint.hub is not None and not dummy:
            setup.checkpoint.hub.fetch()
        peer = Transformers(setup.checkpoint.path, dtype, device, weights=not dummy)
        return peer.sides(at_once, continuous=self.options.continuous)


def model_size(setup: Setup, dtype: torch.dtype, ranks: int) -> ModelSize:
    """What a step of this model reads and computes."""
    import torch

    from plugins.apps.bench.roofline import ModelSize

    config = setup.model_config
    with torch.device("meta"):
        model = setup.architecture.model(config)
    products = {
        id(module.weight): module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    }
    output = config.vocab_size * config.hidden_size
    return ModelSize(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        matrices=sum(products.values()) - output,
        output=output,
        weight_bytes=dtype.itemsize,
        cache_bytes=dtype.itemsize,
        ranks=ranks,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
