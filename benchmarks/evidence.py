"""The comparisons that docs/evidence.md reports: one command repeats each.

    python benchmarks/evidence.py language            # GPT-2's positions against recipes
    python benchmarks/evidence.py language-rotary     # rotary positions against recipes
    python benchmarks/evidence.py bert                # a BERT with AdamW against a recipe
    python benchmarks/evidence.py digits              # six methods on digits, each alone and all
    python benchmarks/evidence.py vision              # a small residual network against a recipe
    python benchmarks/evidence.py --list

Each writes its study, table and plot to docs/evidence/<name>, or to --folder. They take from ten
minutes to an hour on two cores; an interrupted one resumes. Their times are CPU seconds of one
thread, so other load slows them down but does not decide.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

import composable
from composable.algorithms import (
    Alibi,
    ChannelsLast,
    LabelSmoothing,
    ProgressiveResizing,
    Rotary,
    SeqLengthWarmup,
)
from composable.optim import Muon, linear
from composable.recipes import Recipe, small_bert, small_gpt, small_gpt_rotary, small_resnet

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

LEARNED, ROTARY = "learned positions", "rotary positions"
TEXT: dict[str, Any] = {
    "metric": "test/loss",
    "tuning_metric": "validation/loss",
    "seeds": 4,
    "tuning_seeds": 1,
}
ADAMW = {"lr": [1e-3, 2e-3, 4e-3], "batch_size": [2]}
"""Two windows a batch are better for AdamW than one or four, for the same bytes."""
MUON = {"lr": [8e-3, 16e-3, 24e-3], "batch_size": [16]}


def alibi_adamw() -> Recipe:
    """Return `small_gpt` with AdamW in the place of Muon."""
    return Recipe(small_gpt().algorithms)


def muon(lr: float = 16e-3) -> Recipe:
    """Return Muon alone, with the settings of `small_gpt`."""
    momentum = {"momentum": 0.85, "weight_decay": 0.1, "adamw_betas": (0.9, 0.99)}
    factory = partial(Muon, lr=lr, adjust_lr_fn="match_rms_adamw", adamw_lr=6e-3, **momentum)
    return Recipe([], factory, linear(warmup="0.05dur"))


def language() -> dict[str, Any]:
    """Compare a byte-level GPT with learned positions to recipes and to their parts."""
    import byte_gpt

    return {
        "build": byte_gpt.build,
        "arms": {
            LEARNED: [],
            ROTARY: [Rotary()],
            "Alibi": [Alibi(byte_gpt.CONTEXT, train_sequence_length_scaling=0.25)],
            "Muon": muon,
            "small_gpt": small_gpt,
            "small_gpt with AdamW": alibi_adamw,
        },
        "baseline": LEARNED,
        "durations": [f"{n}ba" for n in (15, 30, 60, 120, 240, 480)],
        "tune": {
            LEARNED: ADAMW,
            ROTARY: ADAMW,
            "Alibi": ADAMW,
            "Muon": {**MUON, "batch_size": [4]},
            "small_gpt": MUON,
            "small_gpt with AdamW": {"lr": [2e-3, 4e-3, 8e-3], "batch_size": [16]},
        },
        **TEXT,
    }


def language_rotary() -> dict[str, Any]:
    """Compare a byte-level GPT with rotary positions to recipes, and to a length warm-up."""
    import byte_gpt

    lengths = SeqLengthWarmup(duration=0.5, min_seq_length=32, max_seq_length=byte_gpt.CONTEXT)
    return {
        "build": byte_gpt.build,
        "arms": {
            ROTARY: [Rotary()],
            "rotary, length warm-up": [Rotary(), lengths],
            "small_gpt": small_gpt,
            "small_gpt_rotary": small_gpt_rotary,
        },
        "baseline": ROTARY,
        "durations": [f"{n}ba" for n in (30, 60, 120, 240, 480)],
        "tune": {
            ROTARY: ADAMW,
            "rotary, length warm-up": ADAMW,
            "small_gpt": MUON,
            "small_gpt_rotary": {**MUON, "batch_size": [8]},
        },
        **TEXT,
    }


def bert() -> dict[str, Any]:
    """Compare a byte-level BERT of Transformers to a recipe and to one of its parts."""
    import byte_bert

    return {
        "build": byte_bert.build,
        "arms": {
            "small_bert": small_bert,
            "small_bert with AdamW": alibi_adamw,
        },
        "durations": [f"{n}ba" for n in (30, 60, 120, 240)],
        "tune": {
            "baseline": {"lr": [1e-3, 2e-3, 4e-3], "batch_size": [4]},
            "small_bert": MUON,
            "small_bert with AdamW": {"lr": [1e-3, 2e-3, 4e-3], "batch_size": [16]},
        },
        **TEXT,
        "seeds": 3,
    }


def digits() -> dict[str, Any]:
    """Compare a convolutional network on digits to six methods, each alone and together."""
    import digits as example

    return {
        "build": example.build,
        "arms": example.arms,
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "durations": ["3ep", "6ep", "12ep", "24ep"],
        "tune": {"lr": [0.05, 0.1, 0.2]},
        "seeds": 5,
        "tuning_seeds": 1,
    }


def resnet_muon(lr: float = 12e-3) -> Recipe:
    """Return `small_resnet` without its memory format."""
    return attrs.evolve(small_resnet(lr=lr), algorithms=())


def vision() -> dict[str, Any]:
    """Compare a small residual network to a recipe, and to methods alone."""
    import residual_net

    sgd_rates, muon_rates = {"lr": [0.1, 0.3]}, {"lr": [12e-3, 24e-3]}
    return {
        "build": residual_net.build,
        "arms": {
            "small_resnet": small_resnet,
            "Muon": resnet_muon,
            "ChannelsLast": [ChannelsLast()],
            "LabelSmoothing": [LabelSmoothing(0.1)],
            "ProgressiveResizing": [ProgressiveResizing()],
        },
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "durations": ["2ep", "4ep", "8ep"],
        "tune": {
            "baseline": sgd_rates,
            "ChannelsLast": sgd_rates,
            "LabelSmoothing": sgd_rates,
            "ProgressiveResizing": sgd_rates,
            "small_resnet": muon_rates,
            "Muon": muon_rates,
        },
        "seeds": 3,
        "tuning_seeds": 1,
    }


STUDIES: dict[str, Callable[[], dict[str, Any]]] = {
    "language": language,
    "language-rotary": language_rotary,
    "bert": bert,
    "digits": digits,
    "vision": vision,
}


def main() -> None:
    """Run one comparison, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("--list", action="store_true", help="print the names of the comparisons")
    parser.add_argument("--folder", type=Path, help="default: docs/evidence/<name>")
    parser.add_argument("--workers", type=int, help="parallel trials; default: one for each core")
    options = parser.parse_args()
    if options.list or options.study is None:
        print(*STUDIES, sep="\n")
        return
    folder = options.folder or ROOT / "docs/evidence" / options.study
    settings = STUDIES[options.study]()
    print(composable.compare(**settings, folder=folder, workers=options.workers).table())


if __name__ == "__main__":
    main()
