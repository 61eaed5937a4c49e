"""The laws, checked for anyone's algorithm."""

import copy
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable.core.algorithm import Algorithm
from composable.core.event import Event
from composable.core.state import State
from composable.plan.declarations import as_algorithm
from composable.testing.laws import LAWS, Law, NotApplicable
from composable.testing.problems import classifier, image_batch, smooth_classifier
from composable.testing.runs import Breach, Case

__all__ = ["AlgorithmReport", "LawBroken", "check_algorithm"]


class LawBroken(AssertionError):
    """An algorithm breaks a law.

    Attributes:
        law: The law's name.
        algorithm: The algorithm.
        event: The event at which it was seen, or None.
        where: The field or tensor in which it was seen, or None.
    """

    def __init__(self, law: Law, algorithm: Algorithm, breach: Breach) -> None:
        self.law, self.algorithm = law.name, algorithm
        self.event, self.where = breach.event, breach.where
        super().__init__(
            f"{algorithm!r} breaks the law {law.name!r}: {law.says}.\n"
            f"Seen: {breach.what.rstrip('.')}.\n"
            f"To mend it: {law.mend}"
        )


@attrs.frozen
class AlgorithmReport:
    """Which laws were checked for an algorithm, and which were not, and why."""

    algorithm: str
    checked: tuple[str, ...]
    not_checked: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.algorithm} keeps {len(self.checked)} laws: {', '.join(self.checked)}"]
        lines += [f"not checked: {law}, because {why}" for law, why in self.not_checked.items()]
        return "\n".join(lines)


def check_algorithm(
    algorithm: Algorithm | Callable[[Event, State], State],
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    dataloader: Iterable[Any] | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    microbatches: bool = False,
    **options: Any,
) -> AlgorithmReport:
    """Check every law that holds for all algorithms, on a tiny problem.

    By default that is a classifier with convolutions, a batch norm and dropout, on two batches of
    images, for four epochs with an evaluation after each: about twenty runs, in seconds. Global
    generators are left as they were.

    Args:
        algorithm: The algorithm, or a function `(event, state) -> state`. Choose hyperparameters
            with which it acts within eight batches.
        model: The model that it is tried on, or a function that makes it. It is left as it is.
        dataloader: Batches for training and evaluation, the same each time it is gone through.
        loss_fn: `loss_fn(outputs, targets)`; with a model of your own and without a loss, the
            model's `loss(outputs, batch)` is used. By default cross entropy.
        microbatches: Whether to check that microbatches make no difference: where neither the
            algorithm nor the model looks at a batch as a whole.
        options: Anything else that the `Trainer` takes: `input_key`, `optimizers`, `seed`, ...

    Returns:
        Which laws were checked, and which were not, and why.

    Raises:
        LawBroken: The algorithm breaks a law. The message names the law, what was seen, at which
            event and in which field or tensor, and how to mend it.
        TypeError: `algorithm` is neither an algorithm nor a function.

    Example:
        >>> from composable.algorithms import LabelSmoothing
        >>> from composable.testing import check_algorithm
        >>> report = check_algorithm(LabelSmoothing(0.1), microbatches=True)
        >>> "order" in report.checked
        True
        >>> report.not_checked["memory"]
        'it remembers nothing'
    """
    given = as_algorithm(algorithm)
    case = Case(
        given,
        model=_maker(model, classifier),
        lone_model=_maker(model, smooth_classifier),
        dataloader=[image_batch(6, seed=0), image_batch(4, seed=1)]
        if dataloader is None
        else dataloader,
        loss_fn=cross_entropy if model is None and loss_fn is None else loss_fn,
        microbatches=microbatches,
        options=options,
    )
    checked, not_checked = [], {}
    for law in LAWS.values():
        verdict = law.check(case)
        if isinstance(verdict, Breach):
            raise LawBroken(law, given, verdict)
        if isinstance(verdict, NotApplicable):
            not_checked[law.name] = verdict.why
        else:
            checked.append(law.name)
    return AlgorithmReport(repr(given), tuple(checked), MappingProxyType(not_checked))


def _maker(
    model: nn.Module | Callable[[], nn.Module] | None, default: Callable[[], nn.Module]
) -> Callable[[], nn.Module]:
    """A function that makes the same model each time."""
    if isinstance(model, nn.Module):
        kept = copy.deepcopy(model)
        return lambda: copy.deepcopy(kept)
    return default if model is None else model
