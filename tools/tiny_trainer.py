"""The tiny model's shape, its batches and its training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

STARTED = time.monotonic()
CONTEXT = 1024


@dataclass(frozen=True)
class Recipe:
    """What one trial varies."""

    optimizer: str = "muon"  # or "adamw"
    lr: float = 3e-3
    decay: float = 0.1
    dropout: float = 0.1
    epochs: float = 60.0
    batch: int = 64  # rows of CONTEXT tokens
    chat: float = 0.1  # share of chat rows

    @staticmethod
    def parse(text: str, default: Recipe) -> Recipe:
        """`lr=0.002,dropout=0.2` changes those two fields."""
        types = {f.name: type(getattr(default, f.name)) for f in fields(Recipe)}
        pairs = [part.split("=") for part in text.split(",") if part]
        return replace(default, **{name: types[name](value) for name, value in pairs})


def say(*parts: object) -> None:
    """Print at once, with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}]", *parts, flush=True)


def model_config(tokenizer: Tokenizer) -> Qwen3Config:
    """8 layers of width 256, 8 query and 4 key/value heads of 64 (8 * 64 is not 256 on purpose)."""
    return Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        attention_bias=False,
        rms_norm_eps=1e-6,
        initializer_range=0.02,
        bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )


@dataclass
class Data:
    """Token streams and rows, all on the training device."""

    tokenizer: Tokenizer
    prose: torch.Tensor  # [N]
    chat: torch.Tensor  # [rows, CONTEXT + 1], every row begins with a conversation
    validation: torch.Tensor  # [rows, CONTEXT + 1]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def epoch(self, share: float, generator: torch.Generator) -> torch.Tensor:
        """Rows [R, CONTEXT + 1] of one pass over the prose, cut at a new offset, chat mixed in."""
        shift = int(torch.randint(CONTEXT, (1,), generator=generator))
        shift = min(shift, max(len(self.prose) - CONTEXT - 1, 0))
        count = (len(self.prose) - shift - 1) // CONTEXT
        starts = torch.arange(count, device=self.device)[:, None] * CONTEXT + shift
        rows = self.prose[starts + torch.arange(CONTEXT + 1, device=self.device)]
        wanted = min(int(count * share / (1 - share)) + 1, len(self.chat))
        picked = torch.randperm(len(self.chat), generator=generator)[:wanted]
        rows = torch.cat([rows, self.chat[picked.to(self.device)]])
        return rows[torch.randperm(len(rows), generator=generator).to(self.device)]


class Trainer:
    """One model, compiled once; `run` trains it afresh for a recipe."""

    def __init__(self, data: Data, seed: int, compiled: bool) -> None:
        self.data, self.seed = data, seed
        torch.manual_seed(seed)
        self.model = Qwen3ForCausalLM(model_config(data.tokenizer)).to(data.device)
        self.first = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.rate = torch.zeros((), device=data.device)  # a tensor: no recompilation for a change
        for layer in self.model.model.layers:
            layer.self_attn.register_forward_hook(self._drop)
            layer.mlp.register_forward_hook(self._drop)
        self.model.model.embed_tokens.register_forward_hook(self._drop)
        self.loss = torch.compile(self._loss) if compiled else self._loss

    def _drop(self, module: torch.nn.Module, _inputs: object, output):
        if not module.training:
            return output
        whole = output[0] if isinstance(output, tuple) else output
        kept = (torch.rand_like(whole) >= self.rate) * whole / (1 - self.rate).to(whole.dtype)
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.long()
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            logits = self.model(input_ids=rows[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of the validation rows, in nats a token."""
        self.model.eval()
        rows = self.data.validation
        parts = [
            self._loss(rows[i : i + 32]) * len(rows[i : i + 32]) for i in range(0, len(rows), 32)
        ]
        self.model.train()
        return float(sum(parts)) / max(len(rows), 1)

    def optimizers(self, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """Decay for matrices alone; Muon, if asked, for the matrices inside the layers."""
        named = list(self.model.named_parameters())
        inner = [p for n, p in named if p.ndim == 2 and "layers" in n]
        table = [p for n, p in named if p.ndim == 2 and "layers" not in n]
        norms = [p for _, p in named if p.ndim == 1]
        groups = [
            {"params": table, "weight_decay": recipe.decay},
            {"params": norms, "weight_decay": 0.0},
        ]
        made: list[torch.optim.Optimizer] = []
        if recipe.optimizer == "muon":
            adjust = "match_rms_adamw"  # so that one learning rate serves both
            decay = recipe.decay
            made.append(torch.optim.Muon(inner, lr=1.0, weight_decay=decay, adjust_lr_fn=adjust))
        else:
            groups.append({"params": inner, "weight_decay": recipe.decay})
        fused = self.data.device.type == "cuda"
        made.append(torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=fused))
        return made

    def batches(self, recipe: Recipe) -> Iterator[tuple[torch.Tensor, float]]:
        """Endless batches [batch, CONTEXT + 1], each with the epochs seen so far."""
        generator = torch.Generator().manual_seed(self.seed)
        epoch = 0
        while True:
            rows = self.data.epoch(recipe.chat, generator)
            size = min(recipe.batch, len(rows))
            for i in range(0, len(rows) - size + 1, size):
                yield rows[i : i + size], epoch + i / len(rows)
            epoch += 1

    def run(self, recipe: Recipe, steps: int, deadline: float) -> tuple[float, dict, dict]:
        """Train; returns the best validation loss, the weights that gave it, and a record.

        `steps` 0 means: as many as the epochs ask for or as fit before the deadline.
        """
        self.model.load_state_dict(self.first)
        self.model.train()
        self.rate.fill_(recipe.dropout)
        torch.manual_seed(self.seed)
        rows = len(self.data.prose) / CONTEXT / (1 - recipe.chat)
        total = steps or math.ceil(recipe.epochs * rows / recipe.batch)
        warm = min(100, total // 10 + 1)
        optimizers = self.optimizers(recipe)
        best, weights, timed, losses = math.inf, {}, 0.0, []
        curve: list[tuple[int, float, float]] = []
        for step, (batch, epoch) in enumerate(self.batches(recipe)):
            if step == 20:
                self._wait()
                timed = time.monotonic()
            if step == warm and not steps and step > 20:
                self._wait()
                second = (time.monotonic() - timed) / (step - 20)
                fits = step + int(0.96 * (deadline - time.monotonic()) / second)
                total = max(min(total, fits), step + 2)
                say(f"{second * 1e3:.1f} ms a step, {batch.numel() / second:,.0f} tokens a second,")
                say(f"so {total} steps, {total * recipe.batch / rows:.1f} epochs")
            scale = min((step + 1) / warm, max(total - step, 0) / max(total - warm, 1))
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.lr * scale
            loss = self.loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            done = step + 1 >= total or (not steps and time.monotonic() > deadline)
            if done or (step + 1) % max(total // 16, 50) == 0:
                train, held = float(torch.stack(losses).mean()), self.validate()
                losses = []
                curve.append((step + 1, round(train, 4), round(held, 4)))
                say(f"step {step + 1}/{total} epoch {epoch:.1f} train {train:.4f} valid {held:.4f}")
                if held < best:
                    best = held
                    weights = {k: v.clone() for k, v in self.model.state_dict().items()}
            if done:
                record = {"recipe": recipe.__dict__, "steps": total, "passes": epoch}
                record |= {"curve": curve, "best": best}
                return best, weights, record
        raise AssertionError("the batches never end")

    def _wait(self) -> None:
        if self.data.device.type == "cuda":
            torch.cuda.synchronize()
