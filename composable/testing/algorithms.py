"""Check that an algorithm obeys the laws."""

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
from composable.testing.runs import Case, Violation

__all__ = ["AlgorithmReport", "LawViolation", "check_algorithm"]


class LawViolation(AssertionError):
    """An algorithm violates a law.

    Attributes:
        law: The name of the law.
        algorithm: The algorithm.
        event: The event of the violation, or None.
        where: The field or tensor of the violation, or None.
    """

    def __init__(self, law: Law, algorithm: Algorithm, violation: Violation) -> None:
        self.law, self.algorithm = law.name, algorithm
        self.event, self.where = violation.event, violation.where
        super().__init__(
            f"{algorithm!r} violates the law {law.name!r}: {law.statement}.\n"
            f"Observed: {violation.what.rstrip('.')}.\n"
            f"Hint: {law.hint}"
        )


@attrs.frozen
class AlgorithmReport:
    """The laws that were checked for an algorithm, and the others with the reason."""

    algorithm: str
    checked: tuple[str, ...]
    not_checked: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.algorithm} obeys {len(self.checked)} laws: {', '.join(self.checked)}"]
        lines += [
            f"not checked: {law}, because {reason}" for law, reason in self.not_checked.items()
        ]
        return "\n".join(lines)


def check_algorithm(
    algorithm: Algorithm | Callable[[Event, State], State],
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    dataloader: Iterable[Any] | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    microbatches: bool = False,
    no_effect: str = "",
    **options: Any,
) -> AlgorithmReport:
    """Check every law that holds for all algorithms, on a tiny problem.

    The default problem is a convolutional classifier with batch norm and dropout, trained on two
    batches of images for four epochs, with an evaluation after each. The check takes about twenty
    runs, a few seconds. The global generators are restored.

    Args:
        algorithm: The algorithm, or a function `(event, state) -> state`. Choose hyperparameters
            with which it acts within eight batches.
        model: The model to train, or a function that builds it. It is not modified.
        dataloader: Batches for training and evaluation, the same in every iteration.
        loss_fn: A function `loss_fn(outputs, targets)`. Default: cross entropy, or the model's
            `loss(outputs, batch)` if `model` is given.
        microbatches: Check that splitting batches into microbatches does not change the gradients.
            This requires that neither the algorithm nor the model depends on a batch as a whole.
        no_effect: Why no result depends on the algorithm, if none does: it only saves time, say.
            Otherwise outputs after training must differ from training without it.
        options: Other arguments of the `Trainer`: `input_key`, `optimizers`, `seed`, ...

    Returns:
        The laws that were checked, and the others with the reason.

    Raises:
        LawViolation: The algorithm violates a law. The message names the law, the observation, the
            event, the field or tensor, and a hint for fixing it.
        TypeError: `algorithm` is neither an algorithm nor a function.

    Example:
        >>> from composable.algorithms import LabelSmoothing
        >>> from composable.testing import check_algorithm
        >>> report = check_algorithm(LabelSmoothing(0.1), microbatches=True)
        >>> "order" in report.checked
        True
        >>> report.not_checked["memory"]
        'it stores nothing in state.memory'
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
        no_effect=no_effect,
        options=options,
    )
    checked, not_checked = [], {}
    for law in LAWS.values():
        verdict = law.check(case)
        if isinstance(verdict, Violation):
            raise LawViolation(law, given, verdict)
        if isinstance(verdict, NotApplicable):
            not_checked[law.name] = verdict.reason
        else:
            checked.append(law.name)
    return AlgorithmReport(repr(given), tuple(checked), MappingProxyType(not_checked))


def _maker(
    model: nn.Module | Callable[[], nn.Module] | None, default: Callable[[], nn.Module]
) -> Callable[[], nn.Module]:
    """Return a function that builds the same model each time."""
    if isinstance(model, nn.Module):
        kept = copy.deepcopy(model)
        return lambda: copy.deepcopy(kept)
    return default if model is None else model
