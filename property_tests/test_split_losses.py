"""Law: the loss of a whole is that of its parts: every loss, split, method and precision."""

from collections import Counter
from itertools import product

import pytest
import torch

from tests.support.campaign import FULL
from tests.support.losses import REFUSED
from tests.support.processes import run
from tests.support.runs import make_trainer
from tests.support.split_losses import (
    ALGORITHMS,
    LOSSES,
    OF_PROCESSES,
    PRECISIONS,
    SPLITS,
    attempt,
    attempts,
    examples,
    model,
    outcome,
    parts_of,
)

CASES = [
    (split, *others)
    for split, *others in product(SPLITS, ALGORITHMS, PRECISIONS)
    # Other batches and shards have other random numbers, so they are parts of no whole.
    if "MixUp" not in others[0] or {"grad_accum", "microbatch_size"} & SPLITS[split].keys()
]
A_FEW = [CASES[i] for i in range(0, len(CASES), 7)]
REFUSED_ALONE = [[name] for name in REFUSED] if FULL else []
ALWAYS = ["weights and squares", "by a rare count", "by a number", "by class, if any"]
NAMES = list(LOSSES) if FULL else list(dict.fromkeys([*list(LOSSES)[::9], *ALWAYS]))


def base_of(options, algorithms):
    """Return the options of a run with the same batches, and the same random numbers."""
    kept = ("accumulate_batches", "parallel") if "MixUp" in algorithms else ()
    return {name: options[name] for name in kept if name in options}


def report(outcomes, *, plain):
    """Count the outcomes, and check that none is wrong."""
    counts = Counter(outcomes.values())
    print(*(f"{count} {name}," for name, count in counts.items()))
    assert counts.keys() <= {"right", "refused", "not a loss of the method"}
    assert counts["right"]
    if plain:
        assert {name for name, one in outcomes.items() if one == "refused"} <= REFUSED.keys()


@pytest.mark.parametrize(("split", "algorithms", "precision"), CASES if FULL else A_FEW)
def test_loss_of_a_whole_is_that_of_its_parts_with_every_method(split, algorithms, precision):
    options = SPLITS[split]
    base = base_of(options, algorithms)

    outcomes = {
        name: outcome(
            name,
            attempt(name, algorithms, precision, base),
            attempt(name, algorithms, precision, options),
            PRECISIONS[precision],
        )
        for name in NAMES
    }
    report(outcomes, plain=algorithms == "plain")


@pytest.mark.parametrize("precision", PRECISIONS if FULL else ["fp32"])
@pytest.mark.parametrize("algorithms", ["plain", "LabelSmoothing"] if FULL else ["plain"])
@pytest.mark.parametrize(
    "split", OF_PROCESSES if FULL else ["processes, empty shards", "divided, all"]
)
def test_loss_of_a_whole_is_that_of_its_parts_in_two_processes(split, algorithms, precision):
    options, found = OF_PROCESSES[split], {}
    alone = REFUSED_ALONE if (algorithms, precision) == ("plain", "fp32") else []
    in_shards = {name: attempt(name, algorithms, precision, SPLITS["shards"]) for name in NAMES}
    together = [name for name, one in in_shards.items() if not isinstance(one, str)]
    for names in (together, *alone):
        first, second = run(attempts, 2, names, algorithms, precision, options)
        assert all(isinstance(first[n], str) == isinstance(second[n], str) for n in names)
        found |= first

    outcomes = {
        name: outcome(name, attempt(name, algorithms, precision, {}), one, PRECISIONS[precision])
        for name, one in found.items()
    }
    report(outcomes, plain=algorithms == "plain")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LOSSES if FULL else NAMES)
def test_evaluated_loss_of_a_whole_is_that_of_its_parts_in_every_precision(name, precision):

    def loss_of(parts):
        trainer = make_trainer(model(torch.float32), loss_fn=LOSSES[name], precision=precision)
        return trainer.eval(parts)["eval"]["loss"]

    whole = [examples(13, dtype=torch.float32)]
    parts = parts_of([5, 1, 3, 4], dtype=torch.float32)

    assert loss_of(parts) == pytest.approx(loss_of(whole), rel=PRECISIONS[precision], abs=1e-3)
