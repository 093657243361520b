"""One rank: its share of the model, its cache, and the step on the device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from core import registry
from core.interfaces import AttentionBackend, Kernels, Pending, Sampled, Sampler, Step
from core.layers import Attention, allocate_cache, bind
from core.observing import observers_of
from core.parallel import allocate, guard, load
from core.sampling.logprobs import prompt_logprobs
from core.sampling.one_by_one import one_by_one
from core.sampling.rows import SamplingTable
from core.setup import check_length, device_of, dtype_of, make_sampler, open_source
from core.types import StepOutput
from core.worker import batching
from core.worker.memory import affordable_pages, check_room
from core.worker.rows import RequestRows
from core.worker.staging import Staging
from core.worker.watching import Watching, observed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from torch import Tensor

    from core.config import Config
    from core.parallel import Communicator
    from core.setup import Setup
    from core.types import Batch, Limits, StepPlan, TokenLogprobs

    Progress = Callable[[int, int], None]  # elements written, elements in all

log = logging.getLogger("plait")


class Worker(Step):
    """Holds a rank's narrower model. Plans go in, sampled ids come out; the host waits for none.

    Life: `load`, then `affordable` is asked of every rank, then `prepare` with the limits that
    all of them can keep, then `launch` once a step.
    """

    def __init__(
        self,
        config: Config,
        setup: Setup,
        rank: int,
        comm: Communicator,
        device: torch.device | None = None,
    ) -> None:
        """`device`: the rank's own, where it is not the one of its number."""
        self.config, self.setup, self.rank, self.comm = config, setup, rank, comm
        self.device = device or device_of(config, rank)
        self.dtype = dtype_of(config, setup)
        self.model = setup.plan.local_model(rank)
        self._choose()

    def _choose(self) -> None:
        """Ask the chosen components whether they can serve this model, before memory is taken."""
        chosen = self.config
        self._attention: type[AttentionBackend] = registry.attention.get(chosen.attention.use)
        kernels: type[Kernels] = registry.kernels.get(chosen.kernels.use)
        asked = chosen.cache.page_size
        best = self._attention.best_page_size or next(iter(self._attention.page_sizes), 256)
        self.page_size = best if asked == "auto" else asked
        cache_dtype = chosen.cache.dtype
        self.cache_dtype: torch.dtype = (
            self.dtype if cache_dtype == "auto" else getattr(torch, cache_dtype)
        )
        wrong = [
            f"kernels: {chosen.kernels.use}: {reason}"
            for reason in kernels.rejects(self.dtype, self.device.type)
        ]
        shapes = {m.shape(self) for m in self.model.modules() if isinstance(m, Attention)}
        wrong += [
            f"attention: {chosen.attention.use}: {reason}"
            for reason in sorted({r for shape in shapes for r in self._attention.rejects(shape)})
        ]
        if wrong:
            from core.errors import UserError

            raise UserError("\n".join(wrong))
        self.kernels = kernels(chosen.kernels.options)
        if chosen.cache.pages is not None or chosen.cache.memory is not None:
            check_length(chosen, self.setup, self.page_size, self.affordable())

    def load(self, progress: Progress | None = None) -> None:
        """Allocate this rank's weights and read its bytes of the checkpoint into them."""
        torch.manual_seed(self.config.model.seed)
        allocate(self.model, self.device, self.dtype)
        source = open_source(self.config, self.setup)
        try:
            load(
                self.setup.plan.recipe(self.rank, source.index()),
                dict(self.model.named_parameters()),
                source,
                progress,
            )
        finally:
            source.close()
        guard(self.model, self.setup.plan, self.rank, self.comm)
        self.model.eval().requires_grad_(False)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers of this rank."""
        per_token = sum(
            2 * m.kv_heads * m.head_dim for m in self.model.modules() if isinstance(m, Attention)
        )
        return per_token * self.page_size * self.cache_dtype.itemsize

    def affordable(self) -> int:
        """Pages that this rank can hold, once its weights are there."""
        seqs = self.config.scheduler.options.max_num_seqs
        useful = seqs * -(-self.setup.max_length // self.page_size)
        return affordable_pages(self.config, self.device, self.page_bytes, useful)

    def prepare(self, limits: Limits) -> None:
        """Take the cache's memory, bind every layer to it, and let the runner warm up."""
        self.limits = limits
        check_room("scheduler.max_num_seqs", RequestRows.bytes(limits), self.device)
        layers = [m for m in self.model.modules() if isinstance(m, Attention)]
        caches = allocate_cache(layers, self._attention, limits, self.cache_dtype, self.device)
        self.backends = bind(
            self.model,
            self.kernels,
            self._attention,
            self.config.attention.options,
            caches,
            self,
            limits.max_length,
        )
        self.rows = RequestRows(limits, Staging(self.device))
        self.sampling = SamplingTable(
            limits.max_num_seqs,
            limits.vocab_size,
            limits.max_length,
            self.device,
            history=self.rows.history,
        )
        self.sampler: Sampler = make_sampler(self.config, self.setup, limits)
        self._watching = Watching(observers_of(self.config, self.setup), self.model, self.comm)
        self.runner = registry.runners.get(self.config.runner.use)(self.config.runner.options)
        self._prompts: dict[int, tuple[int, np.ndarray]] = {}  # rows that want prompt logprobs
        self.runner.prepare(self, limits)

    def close(self) -> None:
        """Break the circles, so that all memory is free when the worker is let go of."""
        vars(self).pop("runner", None)  # it holds the worker
        if hasattr(self, "sampling"):
            self.sampling.close()

    # the stages of a step, which a runner calls or captures

    def forward(self, batch: Batch) -> Tensor:
        hidden: Tensor = self.model(batch)
        return hidden

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.model.logits(hidden[batch.sample_index])  # type: ignore[operator]
        return logits

    def sample(self, logits: Tensor, batch: Batch) -> Sampled:
        try:
            sampled: object = self.sampler(logits, batch.rows)
        except Exception:
            # ranks must agree on every id, and a graph takes no detours
            if self.comm.size > 1 or (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
                raise
            log.exception("the sampler failed; each request is now asked about alone")
            sampled = one_by_one(self.sampler, logits, batch.rows)
        if not isinstance(sampled, Sampled):
            entry = registry.samplers.entry(self.config.sampler.use)
            got = type(sampled).__name__
            raise TypeError(f"{entry.path} of {entry.provider} returned a {got}, not a Sampled")
        batch.rows.record(sampled.ids)
        return sampled

    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        """All three, one after the other; a step that samples nothing ends with the first."""
        hidden = self.forward(batch)
        if len(batch.sample_index) == 0:  # chunks of prompts, none of which ends here
            return hidden, Sampled(ids=batch.sample_index)
        return hidden, self.sample(self.logits(hidden, batch), batch)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        """Start a step. Returns at once on CUDA; on a CPU the step is done on return."""
        self.sampling.release(plan.released)
        for row in plan.released.tolist():
            self._prompts.pop(row, None)
        self._watching.release(plan.released)
        self.rows.apply(plan)
        self.sampling.admit(plan.admitted)
        for admission in plan.admitted:
            if admission.params.prompt_logprobs is not None:
                prompt = admission.tokens[: admission.prompt_length]
                self._prompts[admission.row] = (admission.params.prompt_logprobs, prompt)
        self._watching.admit(plan.admitted)
        asked = self._watching.of_step(plan)
        batch = batching.build(plan, self.rows, self.sampling)
        for backend in self.backends:
            backend.plan(batch.attention)
        run = self.run if asked else self.runner.run
        (hidden, sampled), extras = observed(lambda: run(batch), batch, asked)
        about_prompts = self._about_prompts(plan, hidden) if self._prompts else {}
        return _Launched(plan, sampled, about_prompts, extras)

    def _about_prompts(self, plan: StepPlan, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        """Log probabilities of the prompt tokens that follow the tokens of this step."""
        found = {}
        ends = np.cumsum(plan.counts)
        for b, row in enumerate(plan.rows.tolist()):
            if row not in self._prompts:
                continue
            wanted, prompt = self._prompts[row]
            start, count = int(plan.starts[b]), int(plan.counts[b])
            targets = prompt[start + 1 : start + count + 1]
            if len(targets):
                first = int(ends[b]) - count
                logits = self.model.logits(hidden[first : first + len(targets)])  # type: ignore[operator]
                ids = torch.from_numpy(targets.astype(np.int64)).to(self.device)
                found[b] = prompt_logprobs(logits, ids, wanted)
        return found


class _Launched(Pending):
    """Ids on their way to the host, in a pinned buffer of their own."""

    def __init__(
        self,
        plan: StepPlan,
        sampled: Sampled,
        about_prompts: dict[int, list[TokenLogprobs]],
        extras: Mapping[str, Mapping[int, Any]],
    ) -> None:
        self._extras = extras
        self._plan, self._sampled, self._about_prompts = plan, sampled, about_prompts
        self._event: torch.cuda.Event | None = None
        ids = sampled.ids
        if ids.device.type == "cuda":
            self._ids = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
            self._ids.copy_(ids, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._ids = ids

    def done(self) -> bool:
        return self._event is None or self._event.query()

    def result(self) -> StepOutput:
        if self._event is not None:
            self._event.synchronize()
        plan, sampled = self._plan, self._sampled
        errors = {}
        if sampled.errors:
            sampled_rows = np.flatnonzero(plan.sample).tolist()
            errors = {sampled_rows[s]: text for s, text in sampled.errors.items()}
        return StepOutput(
            number=plan.number,
            ids=self._ids.to(torch.int32).numpy(),
            logprobs=sampled.logprobs or {},
            prompt_logprobs=self._about_prompts,
            errors=errors,
            extras={name: dict(seen) for name, seen in self._extras.items()},
        )
