"""Runs of 1, 2 and 4 processes, compared with one another."""

import math
from functools import partial

import pytest
import torch

from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    BlurPool,
    CutOut,
    GradientClipping,
    LabelSmoothing,
    MixUp,
)
from composable.distributed import DDP
from tests.support import parallel_runs as runs
from tests.support.processes import Failed, attempt, run

METHODS = [
    MixUp(0.2),
    LabelSmoothing(0.1),
    GradientClipping("norm", 1.0),
    EMA("3ba"),
    BlurPool(),
    SAM(0.05),
    CutOut(1, 0.3),
]


def fit(options):
    return runs.fit(**options)


def compared(size, **options):
    """Run with one process and with several, and return both."""
    (alone,) = run(fit, 1, options)
    several = run(fit, size, options)
    for one in several[1:]:
        assert one["weights"] == several[0]["weights"]
        assert one["memory"] == several[0]["memory"]
        assert one["metrics"] == several[0]["metrics"]
    return alone, several[0]


EXACT = {
    "methods": {"algorithms": METHODS},
    "ragged": {"count": 33},  # the last batch has one example, for four shards
    "microbatches": {"grad_accum": 2},
    "batches": {"accumulate_batches": 2, "count": 49},
    "noise": {"kind": "noisy"},
    "workers": {"kind": "workers"},
    "stream": {"kind": "stream"},
    "list": {"kind": "list"},
    "bfloat16": {"precision": "amp_bf16", "algorithms": METHODS[:4]},
    "swa": {"algorithms": [SWA("0.5dur")]},
}


@pytest.mark.parametrize("name", EXACT)
def test_runs_of_any_number_of_processes_have_the_same_bits(name):
    alone, several = compared(4 if name in ("methods", "ragged") else 2, **EXACT[name])
    assert several == alone
    assert len(alone["losses"]) == alone["batch"]
