"""Train a small language model of Transformers on the text of this library, in two ways.

The model is built from a configuration and the text is the documentation beside this script, so
nothing is downloaded. A plain run and a composed recipe are trained on the same bytes for the same
number of steps, and their perplexities on a held-out part are compared:

    python examples/language_model.py              # about a minute on two cores
    python examples/language_model.py --steps 400
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composable import Trainer
from composable.algorithms import EMA, Alibi, GradientClipping, SeqLengthWarmup
from composable.metrics import perplexity, token_accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install Transformers: pip install ".[huggingface]".')

LENGTH = 128
DOCS = Path(__file__).parent.parent / "docs"

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "composed": {
        "algorithms": [
            Alibi(max_sequence_length=LENGTH, train_sequence_length_scaling=1.0),
            SeqLengthWarmup(duration=0.3, min_seq_length=32, max_seq_length=LENGTH),
            GradientClipping("norm", 1.0),
            EMA(half_life="10ba"),
        ],
        "decay_norms_and_biases": False,
        "grad_accum": 2,
    },
}


def paragraphs() -> list[dict[str, Tensor]]:
    """Return the paragraphs of the documentation as bytes, padded to one length."""
    text = "\n\n".join(page.read_text() for page in sorted(DOCS.glob("*.md")))
    found = [part.encode()[:LENGTH] for part in text.split("\n\n") if len(part) > 1]
    examples = []
    for part in found:
        ids = torch.zeros(LENGTH, dtype=torch.long)
        ids[: len(part)] = torch.tensor(list(part)) + 1  # 0 is padding
        mask = (ids > 0).long()
        labels = ids.masked_fill(ids == 0, -100)
        examples.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return examples


def language_model(seed: int) -> GPT2LMHeadModel:
    """Build a GPT-2 of two layers over bytes."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "vocab_size": 257}
    with seed_context(seed):
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0))


def main() -> None:
    """Train both recipes and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    examples = paragraphs()
    held_out, training = examples[::10], [one for i, one in enumerate(examples) if i % 10]
    print(f"{len(training)} paragraphs to train on, {len(held_out)} held out")
    for name, recipe in RECIPES.items():
        start = time.perf_counter()
        trainer = Trainer(
            language_model(options.seed),
            train_dataloader=DataLoader(training, batch_size=32, shuffle=True, drop_last=True),
            eval_dataloader=DataLoader(held_out, batch_size=32),
            eval_interval="1dur",
            metrics={"perplexity": perplexity, "accuracy": partial(token_accuracy, shift=True)},
            optimizers=partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.1),
            schedulers=cosine(warmup="0.1dur"),
            max_duration=f"{options.steps}ba",
            seed=options.seed,
            **recipe,
        )
        results = trainer.fit().metrics["eval"]
        print(
            f"{name:9} perplexity of a byte {results['perplexity']:.2f}, accuracy "
            f"{results['accuracy']:.1%}, {time.perf_counter() - start:.0f} s"
        )


if __name__ == "__main__":
    main()
