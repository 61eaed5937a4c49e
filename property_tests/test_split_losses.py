"""Law: the loss of a whole is that of its parts: every loss, split, method and precision."""

from collections import Counter
from itertools import product

import pytest

from tests.support.campaign import FULL, each_once
from tests.support.losses import REFUSED
from tests.support.processes import run
from tests.support.runs import DEVICE
from tests.support.split_losses import (
    ALGORITHMS,
    LOSSES,
    OF_PROCESSES,
    PRECISIONS,
    SPLITS,
    WHOLE,
    attempt,
    attempts,
    outcome,
)

CASES = [
    (split, *others)
    for split, *others in product(SPLITS, [*ALGORITHMS, *WHOLE], PRECISIONS)
    # Other batches and shards have other random numbers, so they are parts of no whole.
    if "MixUp" not in others[0] or {"grad_accum", "microbatch_size"} & SPLITS[split].keys()
]
REFUSED_ALONE = [[name] for name in REFUSED] if FULL else []
ALWAYS = ["weights and squares", "by a rare count", "by a number", "by class, if any"]
ALWAYS += ["contrastive", "clip", "dice", "two tasks"]
NAMES = list(LOSSES) if FULL else list(dict.fromkeys([*list(LOSSES)[::9], *ALWAYS]))
TWO_PROCESSES = [
    (split, *others)
    for split in (OF_PROCESSES if FULL else ["processes, empty shards", "divided, all"])
    for others in product(["plain", "LabelSmoothing"], PRECISIONS)
    if FULL or others == ("plain", "fp32")
]


def check(algorithms, outcomes):
    """Check that no outcome is wrong; with WholeLoss, or by a loss that is a mean, none refused."""
    counts = Counter(outcomes.values())
    print(*(f"{count} {name}," for name, count in counts.items()))
    assert counts.keys() <= {"right", "refused", "not a loss of the method"}
    assert counts["right"]
    refused = {name for name, one in outcomes.items() if one == "refused"}
    assert algorithms not in WHOLE or not refused
    assert algorithms != "plain" or refused <= REFUSED.keys()


@pytest.mark.parametrize(("split", "algorithms", "precision"), CASES if FULL else CASES[::9])
def test_loss_of_a_whole_is_that_of_its_parts_with_every_method(split, algorithms, precision):
    options, case = SPLITS[split], (algorithms, precision)
    # Those with the same batches, and the same random numbers.
    kept = {"accumulate_batches", "parallel"} & options.keys() if "MixUp" in algorithms else ()
    base = {name: options[name] for name in kept}

    outcomes = {
        name: outcome(
            name, attempt(name, *case, base), attempt(name, *case, options), PRECISIONS[precision]
        )
        for name in NAMES
    }
    check(algorithms, outcomes)


@pytest.mark.parametrize(
    ("split", "algorithms", "precision"),
    [*TWO_PROCESSES, *((split, "WholeLoss", "fp32") for split in OF_PROCESSES)],
)
def test_loss_of_a_whole_is_that_of_its_parts_in_two_processes(split, algorithms, precision):
    case, found, whole = (algorithms, precision), {}, algorithms in WHOLE
    alone = REFUSED_ALONE if case == ("plain", "fp32") else []
    in_shards = {} if whole else {n: attempt(n, *case, SPLITS["shards"]) for n in NAMES}
    together = [name for name in NAMES if not isinstance(in_shards.get(name), str)]
    for names in (together, *alone):
        first, second = run(attempts, 2, names, *case, OF_PROCESSES[split])
        assert all(isinstance(first[n], str) == isinstance(second[n], str) for n in names)
        assert first == second or not whole
        found |= first

    plain = ("plain" if whole else algorithms), precision
    outcomes = {
        name: outcome(name, attempt(name, *plain, {}), one, PRECISIONS[precision])
        for name, one in found.items()
    }
    check(algorithms, outcomes)


@pytest.mark.parametrize(("name", "split"), each_once(list(LOSSES), list(SPLITS)))
def test_losses_in_bfloat16_are_those_of_the_whole_to_rounding_or_refused(name, split):
    case = name, "plain", "amp_bf16"
    unsafe = DEVICE == "cuda" and name.startswith("BCELoss,")  # autocast on CUDA refuses it

    found = outcome(name, attempt(*case, {}), attempt(*case, SPLITS[split]), PRECISIONS[case[-1]])

    expected = "refused" if name in REFUSED else "right"
    assert found == ("not a loss of the method" if unsafe else expected)
