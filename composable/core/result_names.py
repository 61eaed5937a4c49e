"""Evaluation results: their names, and whether a lower or a higher value is better."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from composable._other_trainers import METRICS, advice_on
from composable.core.results import LOGGED

_LOWER = r"loss|error|perplexity|distance|(?<![a-z])(err|mae|mse|rmse|nll|ppl|wer|cer|fid)(?![a-z])"
_HIGHER = (
    r"accuracy|precision|recall|score|"
    r"(?<![a-z])(acc|auc|auroc|f1|r2|iou|miou|map|dice|bleu|rouge|psnr|ssim|top)(?![a-z])"
)


def mode_of(metric: str, mode: Any, argument: str = "mode", name: str = "monitor") -> str:
    """Return whether a lower ("min") or a higher ("max") value of a metric is better.

    Args:
        metric: The name of the metric, which determines the mode if `mode` is None.
        mode: The mode as passed by the user.
        argument: The argument `mode` of the caller, for errors.
        name: The argument `metric` of the caller, likewise.

    Raises:
        ValueError: `mode` has another value, or is None and the name does not determine it.

    Example:
        >>> from composable.core.result_names import mode_of
        >>> mode_of("eval/loss", None), mode_of("eval/top5", None)
        ('min', 'max')
    """
    found = known_mode(metric, mode, argument)
    if found is None:
        raise ValueError(
            f"{argument}=None requires a metric whose name tells whether lower or higher is "
            "better, such as 'loss' or 'accuracy', or that declares higher_is_better, and "
            f"{name}={metric!r} does not; pass {argument}='min' or {argument}='max'."
        )
    return found


def known_mode(metric: str, mode: Any, argument: str = "mode") -> str | None:
    """Return the mode as `mode_of` does, or None if the name does not determine it.

    Raises:
        ValueError: `mode` has another value.
    """
    if isinstance(mode, str) and mode in ("min", "max"):
        return mode
    if mode is not None:
        raise ValueError(f"{argument}={mode!r} must be 'min', 'max' or None.")
    own = (metric.partition("/")[2] or metric).lower()  # without the label of the evaluator
    lower, higher = re.search(_LOWER, own), re.search(_HIGHER, own)
    if bool(lower) is bool(higher):
        return None
    return "min" if lower else "max"


def declared_modes(evaluators: Iterable[Any]) -> dict[str, str]:
    """Return the modes that metrics declare, as torchmetrics' do by `higher_is_better`.

    Args:
        evaluators: The evaluators, with their metrics.

    Returns:
        The modes by the full names of results.
    """
    named = {
        f"{evaluator.label}/{name}": getattr(metric, "higher_is_better", None)
        for evaluator in evaluators
        for name, metric in (evaluator.metrics or {}).items()
    }
    return {
        name: "max" if higher else "min" for name, higher in named.items() if type(higher) is bool
    }


def declare_modes(callbacks: Iterable[Any], evaluators: Sequence[Any]) -> None:
    """Pass the modes that metrics declare to the callbacks that compare results.

    Raises:
        ValueError: The mode of a result is unknown, or no evaluator has a result of its name.
    """
    modes = declared_modes(evaluators)
    for callback in callbacks:
        if hasattr(callback, "declare_modes"):
            argument, name = callback.watched_result
            if evaluators and name is not None:
                check_result(argument, name, evaluators)
            callback.declare_modes(modes)


def full_name(argument: str, metric: Any) -> str:
    """Return the full name of a result, "eval/accuracy".

    Args:
        argument: The argument of the caller, for errors.
        metric: The name as it is logged, "metrics/eval/accuracy", or without "metrics", or without
            the label of the evaluator, which is then "eval".

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty.

    Example:
        >>> from composable.core.result_names import full_name
        >>> {full_name("metric", one) for one in ("metrics/eval/loss", "eval/loss", "loss")}
        {'eval/loss'}
    """
    if not isinstance(metric, str):
        raise TypeError(
            f"{argument}={metric!r} must be the name of a result, such as 'metrics/eval/accuracy'."
        )
    name = metric.removeprefix(LOGGED).strip("/")
    if not name:
        raise ValueError(
            f"{argument}={metric!r} must be the name of a result, such as 'metrics/eval/accuracy'."
        )
    return name if "/" in name else f"eval/{name}"


def find_result(argument: str, name: str, metrics: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a result by its full name, or None if its evaluator has not run.

    Raises:
        ValueError: The evaluator ran, and has no such result.
    """
    named = {f"{label}/{n}": value for label, ours in metrics.items() for n, value in ours.items()}
    if name not in named and any(name.startswith(f"{label}/") for label in metrics):
        _refuse(argument, name, named)
    return named.get(name)


def check_result(argument: str, name: str, evaluators: Iterable[Any]) -> None:
    """Check that an evaluation may have a result of a full name.

    The results of an object are known when it computes them only: it may return several.

    Raises:
        ValueError: There is no such evaluator, or it has no such metric.
    """
    known = {f"{evaluator.label}/loss" for evaluator in evaluators}
    for evaluator in evaluators:
        for own, metric in (evaluator.metrics or {}).items():
            known.add(f"{evaluator.label}/{own}")
            several = hasattr(metric, "compute") or getattr(metric, "returns_several", False)
            if several and name.startswith(f"{evaluator.label}/{own}/"):
                return
    if name not in known:
        _refuse(argument, name, known)


def _refuse(argument: str, name: str, known: Iterable[str]) -> NoReturn:
    logged = sorted(f"{LOGGED}{one}" for one in known)
    one = f"one of {logged}{advice_on(name.partition('/')[2], METRICS)}"
    raise ValueError(
        f"{argument}={name!r} must be a result of an evaluation: "
        f"{one if logged else 'pass an eval_dataloader'}."
    )
