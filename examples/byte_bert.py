"""A byte-level BERT of Transformers on the source of Python's standard library: masked bytes.

`build` returns a Trainer, as `composable compare` requires. The data are the windows of
`byte_gpt.py`: 15 % of the bytes of each are masked, the same ones in each run. The model has two
layers, a width of 128, 4 heads and learned positions:

    python examples/byte_bert.py --duration 400ba
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

try:
    import byte_gpt
except ModuleNotFoundError:  # imported as a part of `examples`, not run as a script
    from examples import byte_gpt

from composable import Algorithm, Evaluator, Trainer
from composable.algorithms import GradientClipping
from composable.optim import linear
from composable.utils.reproducibility import seed_context

try:
    from transformers import BertConfig, BertForMaskedLM
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install Transformers: pip install ".[huggingface]".')

MASK, SHARE = byte_gpt.BYTES, 0.15


class MaskedWindows(Dataset):
    """Windows of a text in which bytes are masked, each with its own generator."""

    def __init__(self, text: Tensor, start: int = 0, step: int = 1) -> None:
        self.windows = byte_gpt.Windows(text).rows[start::step, :-1]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.windows[index].long()
        masked = torch.rand(len(ids), generator=torch.Generator().manual_seed(index)) < SHARE
        return {
            "input_ids": ids.masked_fill(masked, MASK),
            "labels": ids.masked_fill(~masked, -100),
        }


def evaluators() -> list[Evaluator]:
    """Return the evaluators, on windows spread over the files: "validation" at the end, "test"."""
    found = []
    for name, interval in (("validation", "1dur"), ("test", "0.1dur")):
        text = byte_gpt.texts()[name]
        step = max(1, len(text) // byte_gpt.CONTEXT // byte_gpt.EVALUATED)
        spread = MaskedWindows(text, step=step)
        examples = [spread[i] for i in range(len(spread))]
        found.append(Evaluator(name, DataLoader(examples, batch_size=32), eval_interval=interval))
    return found


def byte_bert(seed: int) -> BertForMaskedLM:
    """Build the model."""
    config = BertConfig(
        vocab_size=byte_gpt.BYTES + 1,
        hidden_size=byte_gpt.WIDTH,
        num_hidden_layers=byte_gpt.LAYERS,
        num_attention_heads=byte_gpt.HEADS,
        intermediate_size=4 * byte_gpt.WIDTH,
        max_position_embeddings=byte_gpt.CONTEXT,
        hidden_dropout_prob=0.0,  # no window is seen twice
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    )
    with seed_context(seed):
        return BertForMaskedLM(config)


def build(
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    lr: float = 1e-3,
    batch_size: int = 4,
    optimizers: Any = None,
    schedulers: Any = None,
    max_duration: str = "400ba",
) -> Trainer:
    """Return a Trainer of the byte-level BERT; the arguments are those of `byte_gpt.build`."""
    algorithms = list(algorithms)
    if not any(isinstance(one, GradientClipping) for one in algorithms):
        algorithms.append(GradientClipping("norm", 1.0))
    if optimizers is None:
        optimizers = functools.partial(
            torch.optim.AdamW, lr=lr, betas=(0.9, 0.99), weight_decay=0.1, fused=True
        )
    return Trainer(
        byte_bert(seed),
        train_dataloader=DataLoader(
            MaskedWindows(byte_gpt.texts()["train"]), batch_size, shuffle=True, drop_last=True
        ),
        eval_dataloader=evaluators(),
        optimizers=optimizers,
        schedulers=linear(warmup="0.05dur") if schedulers is None else schedulers,
        algorithms=algorithms,
        max_duration=max_duration,
        seed=seed,
        progress_bar=False,
    )


def main() -> None:
    """Train once, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--duration", default="400ba")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trainer = build([], options.seed, lr=options.lr, max_duration=options.duration)
    for name, results in trainer.fit().metrics.items():
        print(f"{name}: {results['loss']:.3f} nats a masked byte")


if __name__ == "__main__":
    main()
