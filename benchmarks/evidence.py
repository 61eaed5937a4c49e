"""The comparisons that docs/evidence.md reports: one command repeats each.

    python benchmarks/evidence.py language-methods    # rotary positions with one more method
    python benchmarks/evidence.py digits              # methods alone, six of them together
    python benchmarks/evidence.py vision              # a residual network: a recipe, methods alone
    python benchmarks/evidence.py mnist               # a convolutional network and its parts
    python benchmarks/evidence.py mnist-speedrun      # the same network and the parts of a recipe
    python benchmarks/evidence.py contrastive         # two encoders: the loss of a whole batch
    python benchmarks/evidence.py ngrams              # a small GPT with hashed n-gram embeddings
    python benchmarks/evidence.py little-digits       # strong regularization, by images a class
    python benchmarks/evidence.py little-text         # the same of a small GPT, by megabytes
    python benchmarks/evidence.py --list

Each writes its study, table and plot to comparisons/<name>, or to --folder; with --store, what the
documentation shows of it goes to docs/evidence/<name>. With --costs, the stored study gets costs of
steps that are measured now, which takes a minute an arm at most, and an idle machine. They take
from ten minutes to an hour on two cores; an interrupted one resumes. Their times are CPU seconds of
one thread, so other load slows them down but does not decide.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import torch
from matplotlib.figure import Figure

import composable
from composable import Algorithm
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    TTA,
    BlurPool,
    ChannelsLast,
    ColOut,
    CutMix,
    CutOut,
    FixRes,
    GhostBatchNorm,
    GyroDropout,
    InitializeConvolutions,
    LabelSmoothing,
    LayerFreezing,
    MixUp,
    NGramEmbeddings,
    ProgressiveResizing,
    RandAugment,
    RandomTranslation,
    Rotary,
    SelectiveBackprop,
    SqueezeExcite,
    StochasticDepth,
    WeightStandardization,
    WhitenedFirstLayer,
)
from composable.comparison import Comparison, Study
from composable.comparison.design import plan_design
from composable.comparison.execution import Workers
from composable.comparison.plot import mark_result, render_figure
from composable.comparison.stages import measure_costs
from composable.comparison.study_file import Cache, read_study, write_study
from composable.optim import (
    AdamWScheduleFree,
    SGDScheduleFree,
    constant,
    warmup_stable_decay,
)
from composable.recipes import Recipe, small_resnet

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

ROTARY = "rotary positions"
TEXT: dict[str, Any] = {
    "metric": "test/loss",
    "tuning_metric": "validation/loss",
    "seeds": 4,
    "tuning_seeds": 1,
}
ADAMW = {"lr": [1e-3, 2e-3, 4e-3], "batch_size": [2]}
"""Two windows a batch are better for AdamW than one or four, for the same bytes."""


def adamw_schedule_free(lr: float = 2e-3) -> Recipe:
    """Return schedule-free AdamW with rotary positions."""
    options = {"betas": (0.9, 0.99), "weight_decay": 0.1, "warmup_steps": 10}
    return Recipe([Rotary()], partial(AdamWScheduleFree, lr=lr, **options), constant())


def language_methods() -> dict[str, Any]:
    """Compare a byte-level GPT with rotary positions to itself with one more method."""
    import byte_gpt

    methods = [
        SelectiveBackprop(),
        LayerFreezing(),
        EMA(half_life="20ba"),
        SWA(update_interval="10ba"),
        SAM(interval=4),
    ]
    names = [type(one).__name__ for one in methods]
    own_rates = {"AdamWScheduleFree": {"lr": [2e-3, 4e-3, 8e-3], "batch_size": [2]}}
    decay = Recipe([Rotary()], schedulers=warmup_stable_decay(warmup="0.05dur", decay="0.2dur"))
    return {
        "build": byte_gpt.build,
        "arms": {
            ROTARY: [Rotary()],
            **{type(one).__name__: [Rotary(), one] for one in methods},
            "AdamWScheduleFree": adamw_schedule_free,
            "warm-up, stable, decay": decay,
        },
        "baseline": ROTARY,
        "durations": [f"{n}ba" for n in (120, 240, 480)],
        "tune": {**dict.fromkeys([ROTARY, *names, "warm-up, stable, decay"], ADAMW), **own_rates},
        **TEXT,
    }


def named(methods: list[Algorithm]) -> dict[str, list[Algorithm]]:
    """Return arms of one method each, by its name."""
    return {type(one).__name__: [one] for one in methods}


def digits() -> dict[str, Any]:
    """Compare a convolutional network on digits to methods alone, and to six of them."""
    import digits as example

    six = example.methods()
    others: list[Algorithm] = [
        CutMix(),
        CutOut(),
        ColOut(),
        RandAugment(severity=3, depth=1),
        SAM(),
        SWA(),
        SqueezeExcite(min_channels=32),
        WeightStandardization(),
        GhostBatchNorm(),
        GyroDropout(),
        LayerFreezing(),
    ]
    return {
        "build": example.build,
        "arms": {
            **example.arms,
            **{f"without {type(one).__name__}": [x for x in six if x is not one] for one in six},
            **named(others),
        },
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "durations": ["3ep", "6ep", "12ep", "24ep"],
        "tune": {"lr": [0.05, 0.1, 0.2]},
        "seeds": 8,
        "tuning_seeds": 2,
    }


def resnet_muon(lr: float = 12e-3) -> Recipe:
    """Return `small_resnet` without its memory format."""
    return attrs.evolve(small_resnet(lr=lr), algorithms=())


def sgd_schedule_free(lr: float = 1.0) -> Recipe:
    """Return schedule-free SGD."""
    options = {"weight_decay": 5e-4, "warmup_steps": 25}
    return Recipe([], partial(SGDScheduleFree, lr=lr, **options), constant())


def vision() -> dict[str, Any]:
    """Compare a small residual network to a recipe, and to methods alone."""
    import residual_net

    methods = named(
        [
            ChannelsLast(),
            ProgressiveResizing(),
            FixRes(),
            BlurPool(),
            StochasticDepth(target=residual_net.BLOCKS, drop_rate=0.1),
            WhitenedFirstLayer(
                lambda: torch.stack([x for x, _ in residual_net.images()["train"]][:1000])
            ),
        ]
    )
    sgd, muon_rates = {"lr": [0.1, 0.3, 0.6]}, {"lr": [6e-3, 12e-3, 24e-3]}
    return {
        "build": residual_net.build,
        "arms": {
            "small_resnet": small_resnet,
            "Muon": resnet_muon,
            "SGDScheduleFree": sgd_schedule_free,
            **methods,
        },
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "durations": ["2ep", "4ep", "8ep"],
        "tune": {
            **dict.fromkeys(["baseline", *methods], sgd),
            "small_resnet": muon_rates,
            "Muon": muon_rates,
            "SGDScheduleFree": {"lr": [1.0, 3.0, 6.0]},
        },
        "seeds": 4,
        "tuning_seeds": 1,
    }


def mnist() -> dict[str, Any]:
    """Compare a convolutional network to four parts, together, each alone and without each."""
    import mnist as example

    parts = {
        "ChannelsLast": ChannelsLast(),
        "LabelSmoothing": LabelSmoothing(0.2),
        "WhitenedFirstLayer": WhitenedFirstLayer(example.sample),
    }
    adamw, muon = {"lr": [5e-3, 1e-2, 2e-2]}, {"lr": [12e-3, 24e-3, 48e-3]}
    without = {
        f"without {name}": partial(with_muon, [one for key, one in parts.items() if key != name])
        for name in parts
    }
    shifts = {"shift": [0]}  # not [0, 2]: one choice less that noise decides
    return {
        "build": example.build,
        "arms": {
            **{name: [one] for name, one in parts.items()},
            "Muon": partial(with_muon, []),
            "all four": partial(with_muon, list(parts.values())),
            **without,
            "without Muon": list(parts.values()),
        },
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "durations": ["1ep", "4ep"],
        "tune": {
            **dict.fromkeys(["baseline", *parts, "without Muon"], adamw | shifts),
            **dict.fromkeys(["Muon", "all four", *without], muon | shifts),
        },
        "seeds": 50,
        "tuning_seeds": 3,
    }


def mnist_speedrun() -> dict[str, Any]:
    """Compare a convolutional network with a recipe to itself without each part, and with one."""
    import mnist as example

    parts = [
        ChannelsLast(),
        LabelSmoothing(0.2),
        RandomTranslation(2),
        TTA(flip=False),
    ]
    copies = [*parts[:2], InitializeConvolutions(), *parts[2:]]
    return {
        "build": partial(example.build, shift=0),
        "arms": {
            "all parts": with_muon(parts),
            **{
                f"without {type(one).__name__}": with_muon([x for x in parts if x is not one])
                for one in parts[1:]
            },
            "without Muon": parts,
            "with InitializeConvolutions": with_muon(copies),
        },
        "baseline": "all parts",
        "metric": "test/accuracy",
        "durations": ["1ep", "4ep"],
        "seeds": 6,
        "repeat_baseline": False,
    }


def contrastive() -> dict[str, Any]:
    """Compare two encoders to themselves with the loss of a batch eight times as large."""
    import contrastive as example

    rates = [3e-3, 1e-2]
    return {
        "build": example.build,
        "arms": example.arms,
        "metric": "test/reciprocal_rank",
        "tuning_metric": "validation/reciprocal_rank",
        "mode": "max",
        "durations": ["4ep", "8ep", "16ep"],
        "tune": {
            "baseline": {"lr": rates, "batch_size": [example.MEMORY]},
            "WholeLoss": {"lr": rates, "batch_size": [8 * example.MEMORY]},
        },
        "seeds": 4,
        "tuning_seeds": 1,
    }


def ngrams() -> dict[str, Any]:
    """Compare a small GPT to itself with hashed n-gram embeddings."""
    import small_gpt

    return {
        "build": small_gpt.build,
        "arms": named([NGramEmbeddings(rows=16384)]),
        "metric": "test/nats_per_byte",
        "tuning_metric": "validation/nats_per_byte",
        "mode": "min",
        "durations": ["200ba", "400ba", "800ba"],
        "tune": {"lr": [1e-3, 2e-3, 4e-3], "embedding_lr": [12e-3, 24e-3, 48e-3]},
        "seeds": 5,
        "tuning_seeds": 1,
    }


USUAL = {"weight_decay": [0.01, 0.1], "dropout": [0.0, 0.2]}
STRONG_DROPOUT = {"dropout": [0.4, 0.6]}


def regularized(
    methods: Mapping[str, Algorithm],
    usual: dict[str, Any],
    decay: dict[str, Any],
    dropout: dict[str, Any],
) -> dict[str, Any]:
    """Return strong decay alone, with strong dropout and methods, and these without each.

    Args:
        methods: The methods that join, by name.
        usual: The hyperparameters of the baseline.
        decay: Those of strong decay.
        dropout: Those of strong dropout.
    """
    every = list(methods.values())
    both = usual | decay | dropout
    without = {name: [two for two in every if two is not one] for name, one in methods.items()}
    arms = {
        "strong decay": ([], usual | decay),
        "all": (every, both),
        "all without strong decay": (every, usual | dropout),
        "all without strong dropout": (every, usual | decay),
        **{f"all without {name}": (rest, both) for name, rest in without.items()},
    }
    return {
        "arms": {name: algorithms for name, (algorithms, _) in arms.items()},
        "tune": {"baseline": usual, **{name: grid for name, (_, grid) in arms.items()}},
    }


def little_digits() -> dict[str, Any]:
    """Compare how many images a class strong regularization is worth."""
    from benchmarks.little_data import build_digits

    methods = {"MixUp": MixUp(alpha=0.2), "LabelSmoothing": LabelSmoothing(0.1)}
    return {
        "build": build_digits,
        **regularized(methods, USUAL, {"weight_decay": [1.0, 3.0]}, STRONG_DROPOUT),
        "metric": "test/accuracy",
        "tuning_metric": "validation/accuracy",
        "data_amounts": [5, 20, 80],
        "durations": ["150ba"],
        "seeds": 20,
        "tuning_seeds": 2,
    }


def little_text() -> dict[str, Any]:
    """Compare how many megabytes of PyTorch's source strong regularization is worth."""
    from benchmarks.little_data import build_text

    methods = {"EMA": EMA(half_life="50ba")}
    return {
        "build": build_text,
        **regularized(methods, USUAL, {"weight_decay": [1.0, 10.0]}, STRONG_DROPOUT),
        "metric": "test/nats_per_byte",
        "tuning_metric": "validation/nats_per_byte",
        "mode": "min",
        "data_amounts": [0.15, 0.5, 1.5],
        "durations": ["250ba", "1000ba"],
        "seeds": 20,
        "tuning_seeds": 1,
    }


def with_muon(algorithms: list[Algorithm], lr: float = 24e-3) -> Recipe:
    """Return algorithms with the optimizer and the schedule of `small_resnet`."""
    return attrs.evolve(small_resnet(lr=lr), algorithms=algorithms)


STUDIES: dict[str, Callable[[], dict[str, Any]]] = {
    "language-methods": language_methods,
    "digits": digits,
    "vision": vision,
    "mnist": mnist,
    "mnist-speedrun": mnist_speedrun,
    "contrastive": contrastive,
    "ngrams": ngrams,
    "little-digits": little_digits,
    "little-text": little_text,
}


def compare_overlapping(**arguments: Any) -> Comparison:
    """Compare, and up to twice again with the schedules that the analysis names.

    The results of arms then overlap with those of the baseline; finished trials are reused.
    """
    found = composable.compare(**arguments)
    for _ in range(2):
        protocol, needed = found.study.protocol, dict(found.analysis.needed)
        needed.pop(protocol.repeated or "", None)
        if not needed:
            break
        schedules = {arm: [*own] for arm, own in protocol.schedules.items()}
        schedules.pop(protocol.repeated or "", None)
        for arm, duration in needed.items():
            schedules[arm].append(duration)
        found = composable.compare(**{**arguments, "durations": schedules})
    return found


def with_new_costs(study: Study, arguments: Mapping[str, Any]) -> Study:
    """Return a study with the costs of steps that this machine has now.

    Args:
        study: The study.
        arguments: Those of `composable.compare` that it was made with.
    """
    parameters = inspect.signature(composable.compare).parameters
    others = (
        "cost",
        "data_amounts",
        "workers",
        "folder",
        "data_version",
        "command",
    )
    given = {name: one.default for name, one in parameters.items()} | dict(arguments)
    design = plan_design(
        **{name: one for name, one in given.items() if name not in (*others, "progress_bar")}
    )
    with TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "trials", design.subject)
        pool = Workers(design.subject, cache, 1, Path(folder) / "logs")
        costs, notes = measure_costs(pool, study)
    if notes:
        raise RuntimeError(" ".join(notes))
    return attrs.evolve(study, costs=costs)


def store(study: Study, folder: Path, references: Mapping[str, float] | None = None) -> None:
    """Write the study and its plot, with the two results that the documentation uses."""
    names = {study.protocol.metric, study.protocol.tuning_metric}
    results = [
        attrs.evolve(
            result,
            curve=[
                attrs.evolve(
                    one, metrics={name: one.metrics[name] for name in names & one.metrics.keys()}
                )
                for one in result.curve
            ],
        )
        for result in study.results
    ]
    folder.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(attrs.evolve(study, results=results))
    write_study(comparison.study, folder / "study.json")
    figure = comparison.plot()
    draw_references(figure, references or {})
    (folder / "plot.svg").write_bytes(render_figure(figure, ".svg"))


def draw_references(figure: Figure, references: Mapping[str, float]) -> None:
    """Draw results of simpler models as lines, by their names."""
    if not references:
        return
    axes = figure.axes[-1]
    for name, result in references.items():
        mark_result(axes, result, name)
    drawn = (*axes.get_ylim(), *references.values())
    margin = 0.05 * (max(drawn) - min(drawn))
    axes.set_ylim(min(drawn) - margin, max(drawn) + margin)


def main() -> None:
    """Run one comparison, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("--list", action="store_true", help="print the names of the comparisons")
    parser.add_argument("--folder", type=Path, help="default: comparisons/<name>")
    parser.add_argument("--store", action="store_true", help="write to docs/evidence/<name>")
    parser.add_argument("--costs", action="store_true", help="measure the stored study's costs")
    parser.add_argument("--seeds", type=int, help="reported seeds; more keep those of fewer")
    parser.add_argument("--workers", type=int, help="parallel trials; default: one for each core")
    options = parser.parse_args()
    if options.list or options.study is None:
        print(*STUDIES, sep="\n")
        return
    folder = options.folder or Path("comparisons") / options.study
    settings, stored = STUDIES[options.study](), ROOT / "docs/evidence" / options.study
    if options.costs and "data_amounts" in settings:
        parser.error(f"--costs: {options.study} compares amounts of data, not time; drop it.")
    if options.costs:
        store(with_new_costs(read_study(stored / "study.json"), settings), stored)
        return
    settings |= {} if options.seeds is None else {"seeds": options.seeds}
    comparison = composable.compare(**settings, folder=folder, workers=options.workers)
    if options.store:
        store(comparison.study, stored)


if __name__ == "__main__":
    main()
