"""Train a model of Transformers with three methods: copy this file, and put in your model and text.

The text is PyTorch's own source, and the weights are random, so nothing is downloaded:

    pip install ".[huggingface]"
    python examples/language_model.py    # twenty seconds on two cores
"""

from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from composable import Algorithm, Trainer
from composable.algorithms import EMA, GradientClipping, SeqLengthWarmup
from composable.metrics import perplexity
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

FILES = sorted((Path(torch.__path__[0]) / "nn").rglob("*.py"))
LENGTH, BATCH_SIZE, DURATION, LR, SEED = 128, 16, "200ba", 3e-3, 17
SIZES = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
WARMUP = SeqLengthWarmup(duration=0.3, min_seq_length=32, max_seq_length=LENGTH)
METHODS = [WARMUP, GradientClipping("norm", 1.0), EMA(half_life="10ba")]


def loader(files: list[Path], **options: bool) -> DataLoader:
    """Return batches of the bytes of files, in rows; put your tokenizer here."""
    text = b"\n\n".join(file.read_bytes() for file in files)
    rows = torch.tensor(list(text)).unfold(0, LENGTH, LENGTH)
    return DataLoader([{"input_ids": row, "labels": row} for row in rows], BATCH_SIZE, **options)


def build(algorithms: list[Algorithm], seed: int) -> Trainer:
    """Return a Trainer that has not trained yet; the model computes its own loss."""
    with seed_context(seed):
        model = GPT2LMHeadModel(GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None))
    return Trainer(
        model,
        train_dataloader=loader([one for one in FILES if one not in FILES[::20]], shuffle=True),
        eval_dataloader=loader(FILES[::20]),
        eval_interval="1dur",
        metrics={"perplexity": perplexity},
        optimizers=partial(torch.optim.AdamW, lr=LR, weight_decay=0.1),
        schedulers=cosine(warmup="0.1dur"),
        max_duration=DURATION,
        algorithms=algorithms,
        seed=seed,
    )


if __name__ == "__main__":
    print(build(METHODS, SEED).fit().metrics["eval"])
