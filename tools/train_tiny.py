"""Train the tiny Qwen3 of models/qwen3/tiny from local/tiny-text, in minutes on one GPU.

    python -m tools.tiny_text local/tiny-text
    python -m tools.train_tiny --text local/tiny-text --out local/tiny --minutes 8

Several `--trial` options train one model each and keep the one with the lowest validation loss.
The schedule is fixed in steps once the speed is known; `--steps` gives the same steps anywhere.
Beside the model it leaves what it did (training.json), what that gave (report.json) and, from both,
the model's card.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3ForCausalLM

from core import LLM
from tools.eval_tiny import evaluate
from tools.tiny_card import model_card
from tools.tiny_chat import ChatExamples
from tools.tiny_engines import transformers_logprobs
from tools.tiny_heldout import write_excerpt
from tools.tiny_text import load
from tools.tiny_tokenizer import save_tokenizer, train_tokenizer
from tools.tiny_trainer import CONTEXT, STARTED, Data, Recipe, Trainer, model_config, say


def prepare(folder: Path, seed: int, examples: int, device: torch.device) -> Data:
    """Read the split, train the tokenizer on its training part, encode everything."""
    train, validation = load(folder / "train.json.xz"), load(folder / "validation.json.xz")
    chat = ChatExamples(seed, train, dict(load(folder / "definitions.json.xz")))
    conversations = [chat.conversation() for _ in range(examples)]
    say(f"{len(train)} blocks of prose, {len(conversations)} conversations")
    plain = [c.replace("<|im_start|>", "").replace("<|im_end|>", "") for c in conversations]
    tokenizer = train_tokenizer([text for _, text in train] + plain[: examples // 20])
    say(f"tokenizer of {tokenizer.get_vocab_size()} entries")
    end = tokenizer.token_to_id("<|endoftext|>")

    def stream(texts: list[str]) -> torch.Tensor:
        ids = [i for e in tokenizer.encode_batch_fast(texts) for i in [*e.ids, end]]
        return torch.tensor(ids, dtype=torch.int32)

    prose, held = stream([t for _, t in train]), stream([t for _, t in validation])
    rows, row = [], []
    for encoding in tokenizer.encode_batch_fast(conversations):
        row += [*encoding.ids, end]
        if len(row) > CONTEXT:
            rows.append(row[: CONTEXT + 1])
            row = []
    count = (len(held) - 1) // CONTEXT
    starts = torch.arange(count)[:, None] * CONTEXT
    say(f"{len(prose):,} tokens of prose, {len(rows)} rows of chat, {count} rows of validation")
    return Data(
        tokenizer,
        prose.to(device),
        torch.tensor(rows, dtype=torch.int32).to(device),
        held[starts + torch.arange(CONTEXT + 1)].to(device),
        device,
    )


def save(weights: dict[str, torch.Tensor], tokenizer: Tokenizer, out: Path) -> None:
    """Write the bfloat16 weights, the configurations, the tokenizer and the chat template."""
    end, turn = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>"))
    model = Qwen3ForCausalLM(model_config(tokenizer))
    model.load_state_dict(weights)
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.95, top_k=20,
        bos_token_id=end, eos_token_id=[turn, end], pad_token_id=end,
    )  # fmt: skip
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out, CONTEXT)


def command_line() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything, wall clock")
    parser.add_argument("--steps", type=int, default=0, help="exact steps, whatever the clock")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=40_000, help="conversations to make")
    parser.add_argument("--trial", action="append", help="e.g. lr=0.003,decay=0.1,dropout=0.1")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-eval", action="store_true")
    return parser


def measure(text: Path, out: Path, device: str) -> None:
    """Measure the model in `out`, and write the report and the card."""
    write_excerpt(text, out)
    torch.set_float32_matmul_precision("highest")
    with LLM(out, device=device, dtype="float32") as llm:
        report = evaluate(out, text, transformers_logprobs(out, device), llm, say)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "README.md").write_text(model_card(out, text))


def main(arguments: list[str]) -> None:
    """Command line."""
    options = command_line().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)  # or fail before the training
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    data = prepare(options.text, options.seed, options.examples, device)
    trainer = Trainer(data, options.seed, device.type == "cuda" and not options.no_compile)
    say(f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters")
    if trainer.loss != trainer._loss:
        try:
            trainer.loss(data.validation[:8].repeat(8, 1)).backward()
            say("compiled")
        except Exception as error:  # any compiler failure: training without it is only slower
            say("not compiled:", repr(error)[:300])
            trainer.loss = trainer._loss
        trainer.model.zero_grad(set_to_none=True)
    recipes = [Recipe.parse(text, Recipe()) for text in options.trial or [""]]
    best, records = math.inf, []
    for number, recipe in enumerate(recipes):
        last = STARTED + 60 * options.minutes - 50  # for saving and evaluating
        deadline = time.monotonic() + (last - time.monotonic()) / (len(recipes) - number)
        say("trial", recipe)
        reached, weights, record = trainer.run(recipe, options.steps, deadline)
        records.append(record)
        if reached < best:  # saved at once: a run cut short still leaves a whole model
            best = reached
            save(weights, data.tokenizer, options.out)
            say(f"saved {options.out}, best validation loss {best:.4f}")
    record = {"seed": options.seed, "examples": options.examples, "trials": records}
    (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    if not options.no_eval:
        measure(options.text, options.out, options.device)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1:])
