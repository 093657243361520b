"""One rank: its share of the model, its cache, and the step on the device."""

from __future__ import annotations

import gc
import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from core import fitting, registry
from core.fusing import Fusing, value_of
from core.interfaces import AttentionBackend, Kernels, Pending, Runner, Sampled, Sampler, Step
from core.layers import Attention, allocate_cache, bind
from core.observing import observers_of
from core.parallel import CutLogits, allocate, guard, load, weight_bytes
from core.sampling.one_by_one import one_by_one
from core.sampling.table import SamplingTable
from core.setup import check_length, device_of, dtype_of, make_sampler, open_source
from core.types import Limits
from core.worker import batching, footprint
from core.worker.cut_logits import sample_parts
from core.worker.launched import Launched
from core.worker.memory import affordable_pages, check_room, gib, out_of_memory
from core.worker.prompts import PromptLogprobs
from core.worker.rows import RequestRows
from core.worker.staging import Staging
from core.worker.watching import Watching, observed

if TYPE_CHECKING:
    from torch import Tensor

    from core.config import Config
    from core.parallel import Communicator
    from core.parallel.loading import Progress
    from core.setup import Setup
    from core.types import Batch, StepPlan

log = logging.getLogger("plait")

SHORT = 1024  # tokens of an eager step that is computed to the end: little is to be saved, and so
#               an answer is the same to the bit, whether or not more is asked of the step


class Worker(Step):
    """Holds a rank's narrower model. Plans go in, sampled ids come out; the host waits for none.

    Life: `load`, then `affordable` is asked of every rank, then `prepare` with the limits that
    all of them can keep, then `launch` once a step, and `close`.
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
        self.partial = not setup.plan.deals_tokens  # else no rank has all of those tokens
        self._fusing = Fusing()
        self._choose()
        self._frozen = False
        self._reserved_before = 0
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self._reserved_before = torch.cuda.memory_reserved(self.device)

    def _choose(self) -> None:
        """Ask the chosen components whether they can serve this model, before memory is taken."""
        chosen = self.config
        fitting.check(chosen, self.setup, self.model, self.device)
        self._attention: type[AttentionBackend] = registry.attention.get(chosen.attention.use)
        kernels: type[Kernels] = registry.kernels.get(chosen.kernels.use)
        place = fitting.place(chosen, self.setup, self._attention, self.device)
        self.page_size, self.cache_dtype = place.page_size, place.cache_dtype
        self.kernels = kernels(chosen.kernels.options)
        self.runner: Runner = registry.runners.get(chosen.runner.use)(chosen.runner.options)
        if chosen.cache.pages is not None or chosen.cache.memory is not None:
            check_length(chosen, self.setup, self.page_size, self.affordable())

    def load(self, progress: Progress | None = None) -> None:
        """Allocate this rank's weights and read its bytes of the checkpoint into them."""
        if self.comm.size > 1:  # for a sampler that draws from torch's own generator on every rank
            torch.manual_seed(self.config.model.seed)
        size = weight_bytes(self.model, self.dtype)
        with out_of_memory(
            self.device,
            f"the weights of rank {self.rank}, about {gib(size)}",
            "Spread the model over more devices with parallel.tensor, or end what else uses this "
            "one.",
        ):
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
        self.setup.plan.finalize(self.model)
        guard(self.model, self.setup.plan, self.rank, self.comm)
        self.comm.use(self.kernels)
        heads = (m for m in self.model.modules() if isinstance(m, CutLogits))
        self._head = next(heads, None)
        self.model.eval().requires_grad_(False)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers of this rank."""
        per_token = sum(
            2 * m.kv_heads * m.head_dim for m in self.model.modules() if isinstance(m, Attention)
        )
        return per_token * self.page_size * self.cache_dtype.itemsize

    def affordable(self) -> int:
        """Pages that this rank can hold, once its weights are there. On CUDA it is found out by
        running the largest steps, on every rank together."""
        seqs = self.config.scheduler.options.max_num_seqs
        useful = seqs * -(-self.setup.max_length // self.page_size)
        cache, taken = self.config.cache, None
        if self.device.type == "cuda" and cache.pages is None and cache.memory is None:
            torch.cuda.set_device(self.device)
            budget = self.config.scheduler.options.max_num_batched_tokens
            with out_of_memory(
                self.device,
                f"a step of {budget} tokens and {seqs} requests beside the weights",
                "Lower scheduler.max_num_batched_tokens or scheduler.max_num_seqs.",
            ):
                taken = footprint.measure(self, self._limits_of_one_page(), self._reserved_before)
        return affordable_pages(self.config, self.device, self.page_bytes, useful, taken)

    def _limits_of_one_page(self) -> Limits:
        options = self.config.scheduler.options
        return Limits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_length=self.setup.max_length,
            page_size=self.page_size,
            pages=1,
            vocab_size=self.setup.model_config.vocab_size,
        )

    def prepare(self, limits: Limits) -> None:
        """Take the cache's memory, bind every layer to it, and let the runner warm up."""
        size = limits.pages * self.page_bytes
        with out_of_memory(
            self.device,
            f"the cache, {gib(size)}, and what the runner prepares",
            "Lower cache.memory_fraction, cache.memory or cache.pages, whichever is set.",
        ):
            self.assemble(limits)
            caches = {m.backend: m.cache for m in self.model.modules() if isinstance(m, Attention)}
            with torch.inference_mode():
                for backend, cache in caches.items():
                    backend.warm(cache, limits)
                if self.device.type == "cuda":
                    self.sampling.warm(self.dtype)
            self.runner.prepare(self, limits)
        if self.device.type == "cuda":
            # a full collection looks at every object that torch and the model are made of
            gc.collect()
            gc.freeze()
            self._frozen = True

    def assemble(self, limits: Limits) -> None:
        """Everything that a step needs, for a cache of `limits.pages`."""
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
            self._fusing,
        )
        staging = Staging(self.device)
        self.rows = RequestRows(limits, staging)
        self.sampling = SamplingTable(
            limits.max_num_seqs + 1,
            limits.vocab_size,
            limits.max_length,
            self.device,
            history=self.rows.history,
            staging=staging,
            kernels=self.kernels,
        )
        self.sampler: Sampler = make_sampler(self.config, self.setup, limits)
        self._prompts = PromptLogprobs(staging)
        self._watching = Watching(observers_of(self.config, self.setup), self.model, self.comm)

    def disassemble(self) -> None:
        """Let go of what `assemble` made."""
        for module in self.model.modules():
            if isinstance(module, Attention):
                del module.cache, module.backend, module.fused
        self.sampler.close()
        del self.backends, self.rows, self.sampling, self.sampler
        del self._prompts, self._watching

    # the stages of a step, which a runner calls or captures

    def forward(self, batch: Batch) -> Tensor:
        if not batch.captured:
            self.plan(batch)
            if len(batch.tokens) <= SHORT:
                batch = replace(batch, wanted=None)
        with self._fusing.allowed(batch.captured):
            hidden: Tensor = self.model(batch)
        return hidden

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        if len(batch.sample_index) < len(hidden):  # else they are those of these tokens, in order
            hidden = hidden[batch.sample_index]
        parts = nullcontext() if self._head is None else self._head.in_parts()
        with self._fusing.allowed(batch.captured), parts:
            return value_of(self.model.logits(hidden))  # type: ignore[operator]

    def sample(self, logits: Tensor, batch: Batch) -> Sampled:
        try:
            sampled: object = (
                self.sampler(logits, batch.rows)
                if self._head is None
                else sample_parts(self._head, self.sampler, logits, batch.rows)
            )
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

    @torch.inference_mode()
    def launch(self, plan: StepPlan, *, eager: bool = False) -> Pending:
        """Start a step. Returns at once on CUDA; on a CPU the step is done on return.

        `eager`: without the runner, which need not be prepared.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.sampling.release(plan.released)
        self._prompts.release(plan.released)
        self._watching.release(plan.released)
        self.rows.admit(plan.admitted)
        self.sampling.admit(plan.admitted)
        self._prompts.admit(plan.admitted)
        self._watching.admit(plan.admitted)
        asked = self._watching.of_step(plan)
        eager = eager or bool(asked)
        if not eager and len(plan.rows) <= self.runner.most_decodes:
            decodes = batching.decodes(plan, self.page_size, self.sampling)
            if decodes is not None:
                # every token is the last that is known: no prompt token follows one
                return Launched(plan, self.runner.decode(decodes), {})
        self.rows.append(plan)
        whole = not self.partial or bool(asked) or self._prompts.asked(plan)
        batch = batching.build(plan, self.rows, self.sampling, self.kernels, whole=whole)
        run = self.run if eager else self.runner.run
        (hidden, sampled), extras = observed(lambda: run(batch), batch, asked)
        about_prompts = self._prompts.of_step(plan, hidden, self.model.logits)  # type: ignore[arg-type]
        return Launched(plan, sampled, about_prompts, extras)

    def close(self) -> None:
        """Drop what was captured: collectives may be in it, so before the ranks part. And break
        the circles, so that all memory is free when the worker is let go of."""
        if hasattr(self, "runner"):
            self.runner.close()
            del self.runner  # which holds this worker
        if hasattr(self, "sampling"):
            self.sampling.close()
        if self._frozen:
            self._frozen = False
            gc.unfreeze()
        if hasattr(self, "sampler"):
            try:
                self.sampler.close()
            except Exception:  # the rest of the rank is to be closed all the same
                log.exception("the sampler of rank %d did not close", self.rank)
