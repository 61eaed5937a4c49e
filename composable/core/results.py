"""The results of evaluations, by their names."""

from typing import Any

from composable._other_trainers import METRICS, advice_on

LOGGED = "metrics/"
"""The beginning of the name under which a result is logged."""


class Results(dict[str, Any]):
    """Results by evaluator and metric, which are also found by their names.

    Example:
        >>> from composable.core.results import Results
        >>> results = Results({"eval": {"accuracy": 0.5}})
        >>> results["eval"]["accuracy"], results["metrics/eval/accuracy"], results["eval/accuracy"]
        (0.5, 0.5, 0.5)
        >>> results == {"eval": {"accuracy": 0.5}}
        True
    """

    def __missing__(self, name: object) -> Any:
        """Return the result of a name, such as "metrics/eval/accuracy" or "eval/accuracy"."""
        own = name.removeprefix(LOGGED) if isinstance(name, str) else ""
        for label, results in self.items():
            metric = own.removeprefix(f"{label}/")
            if metric != own and metric in results:
                return results[metric]
        raise KeyError(f"{name}{advice}" if (advice := advice_on(own, METRICS)) else name)


def is_better(mode: str, value: float, best: float | None, min_delta: float = 0.0) -> bool:
    """Return whether a value is better than the best one by more than `min_delta`.

    NaN never is, and any other value is better than None.
    """
    if best is None:
        return value == value
    return (best - value if mode == "min" else value - best) > min_delta
