"""What each part gives: `speedrun_gpt` without each of its parts, and with each other one.

    python benchmarks/language_parts.py            # train all arms
    python benchmarks/language_parts.py --store    # measure the costs of steps, write docs/evidence

The recipe has the settings that `language.py search` chose. Every arm has them too, so a part gets
no tuning of its own beyond what its authors recommend. Connections between layers are not among
them: the recipe's model has one layer. The recipe is the baseline: an arm below 1
that lacks a part shows what the part gives, and an arm above 1 shows a part that the recipe lacks.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import nn

from composable import algorithms as methods
from composable.functional import polar_express_coefficients, prefix_tokens
from composable.optim import (
    cosine,
    one_minus_sqrt,
    warmup_stable_decay,
    with_cautious_weight_decay,
    with_ema_nesterov,
    with_momentum_warmup,
)
from composable.recipes import Recipe

sys.path.insert(0, str(Path(__file__).parent))

import language
import small_gpt
from evidence import compare_overlapping, store, with_new_costs

BASELINE = language.RECIPE
STORED = language.ROOT / "docs/evidence/language-parts"
SECONDS = (3.0, 6.0, 12.0)
"""CPU seconds of training of the schedules of each arm."""
SEEDS = 3
SHARED = ("lr", "embedding_lr", "weight_decay")
ADAMW_LR = 2e-3
"""The rate of the matrices without Muon: the best that was found by hand."""
PARTS = ("query", "key", "value")
SHORT_FIRST = methods.SeqLengthWarmup(0.5, min_seq_length=16, max_seq_length=256)
NOT_CLIPPED = methods.GradientClipping("norm", 1e9)
WRAPPERS = {
    "EMA-Nesterov": functools.partial(with_ema_nesterov, decay=0.9),
    "momentum warm-up": functools.partial(with_momentum_warmup, start=0.5, num_steps=30),
}
SCHEDULES = {
    "cosine": cosine(warmup="0.05dur"),
    "warm-up, stable, decay": warmup_stable_decay("0.5dur", shape="linear", warmup="0.05dur"),
    "decay by the square root": one_minus_sqrt(warmup="0.05dur"),
}
MUON_OPTIONS: dict[str, dict[str, Any]] = {
    "Muon: equalize_rows": {"equalize_rows": True},
    "Muon: update_floor": {"update_floor": 0.35, "weight_decay": 0.0},
    "Muon: slow_momentum": {"slow_momentum": 0.98, "slow_share": 0.5},
    "Muon: neuron_beta2": {"neuron_beta2": 0.95},
    "Muon: soap_beta2": {"soap_beta2": 0.9},
    "Muon: Polar Express": {"ns_coefficients": polar_express_coefficients()},
    "Muon: momentum 0.95": {"momentum": 0.95},
}


def added(vocabulary: int) -> dict[str, Any]:
    """Return the algorithms that the recipe does not have."""
    return {
        "QKNorm": methods.QKNorm(),
        "AttentionOutputGate": methods.AttentionOutputGate(),
        "ExclusiveSelfAttention": methods.ExclusiveSelfAttention(),
        "PartialKeyOffset": methods.PartialKeyOffset(every=1),
        "WindowWarmup": methods.WindowWarmup(min_window=16, max_window=64, every=1),
        "SquaredReLUs": methods.SquaredReLUs(target=nn.GELU),
        "InitializeProjections": methods.InitializeProjections("mimetic"),
        "ValueEmbeddings": methods.ValueEmbeddings(),
        "Smear": methods.Smear(),
        "SoftcapLogits": methods.SoftcapLogits(15.0),
        "PrefixTokens": methods.PrefixTokens(prefixes_of(vocabulary)),
        "EMA of the end": methods.EMA("10ba", ema_start="0.7dur", update_interval="10ba"),
    }


def prefixes_of(vocabulary: int) -> Any:
    """Return the prefix of each token."""
    tokenizer = small_gpt.tokenizer(vocabulary)
    return prefix_tokens([tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())])


def arms(settings: Mapping[str, Any]) -> dict[str, Recipe]:
    """Return the recipe, without each of its parts, and with each other one."""
    own = {name: settings[name] for name in (*language.TABLES, *SHARED)}
    recipe = language.speedrun(**own)
    by_role: Any = recipe.optimizers
    adamw: Any = language.ngrams(**{**own, "lr": ADAMW_LR}).optimizers

    def without(kind: type) -> Recipe:
        rest = [one for one in recipe.algorithms if not isinstance(one, kind)]
        return attrs.evolve(recipe, algorithms=rest)

    def with_muon(change: Callable[[Any], Any], **options: Any) -> Recipe:
        build = functools.partial(by_role.default, **options) if options else by_role.default
        return attrs.evolve(
            recipe, optimizers=attrs.evolve(by_role, default=Changed(build, change))
        )

    heads = {f"*.attention.{one}.weight": settings["width"] // small_gpt.HEAD for one in PARTS}
    return {
        BASELINE: recipe,
        "without NGramEmbeddings": attrs.evolve(
            without(methods.NGramEmbeddings), optimizers=by_role.default
        ),
        "Muon: heads apart": attrs.evolve(recipe, optimizers=attrs.evolve(by_role, stacked=heads)),
        "SeqLengthWarmup": attrs.evolve(
            recipe, algorithms=[*without(methods.SeqLengthWarmup).algorithms, SHORT_FIRST]
        ),
        "n-grams of two tokens only": language.speedrun(**{**own, "n": 2}),
        "without Alibi": without(methods.Alibi),
        "without Muon": attrs.evolve(recipe, optimizers=adamw),
        "without clipping": attrs.evolve(
            recipe, algorithms=[*without(methods.GradientClipping).algorithms, NOT_CLIPPED]
        ),
        **{
            name: attrs.evolve(recipe, algorithms=[*recipe.algorithms, one])
            for name, one in added(settings["vocabulary"]).items()
        },
        **{
            name: attrs.evolve(
                recipe,
                optimizers=attrs.evolve(
                    by_role, default=functools.partial(by_role.default, **options)
                ),
            )
            for name, options in MUON_OPTIONS.items()
        },
        "cautious weight decay": with_muon(with_cautious_weight_decay, weight_decay=0.1),
        **{name: with_muon(wrap) for name, wrap in WRAPPERS.items()},
        **{name: attrs.evolve(recipe, schedulers=one) for name, one in SCHEDULES.items()},
    }


@attrs.frozen
class Changed:
    """Builds an optimizer, and changes it."""

    build: Callable[[Any], Any]
    change: Callable[[Any], Any]

    def __call__(self, params: Any) -> Any:
        """Build the optimizer of parameters."""
        return self.change(self.build(params))


def comparison(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `composable.compare`."""
    settings, cost = chosen["settings"], chosen["step_seconds"]
    fixed = {name: one for name, one in settings.items() if name not in (*language.TABLES, *SHARED)}
    return {
        "build": small_gpt.build,
        "arms": arms(settings),
        "baseline": BASELINE,
        "metric": "test/nats_per_byte",
        "mode": "min",
        "durations": [f"{round(one / cost)}ba" for one in SECONDS],
        "tune": {name: [value] for name, value in fixed.items()},
        "seeds": SEEDS,
    }


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("comparisons/language-parts"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", action="store_true", help="write to docs/evidence")
    options = parser.parse_args()
    trials = json.loads((language.STORED / "search.json").read_text())
    chosen = language.best([one for one in trials if one["seconds"] == language.SECONDS[-1]])
    arguments = comparison(chosen[BASELINE])
    found = compare_overlapping(**arguments, folder=options.folder, workers=options.workers)
    if options.store:
        store(with_new_costs(found.study, arguments), STORED)


if __name__ == "__main__":
    main()
