"""Check which properties a function has."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import torch

from composable._support.table import format_table
from composable.testing.no_sync import HostSyncError
from composable.testing.problems import CLASSES, feature_maps, image_batch
from composable.testing.properties import (
    PROPERTIES,
    Arguments,
    NotApplicableError,
    PropertyFailed,
    Subject,
)
from composable.utils.reproducibility import preserve_rng

__all__ = ["Answer", "FunctionReport", "PropertyViolation", "check_function"]


class PropertyViolation(AssertionError):
    """A function lacks a property that is not in `except_`, or has one that is."""


@attrs.frozen
class Answer:
    """The result of a check: "yes", "no" or "not applicable", and the reason."""

    verdict: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@attrs.frozen
class FunctionReport:
    """The properties of a function."""

    function: str
    answers: Mapping[str, Answer]

    def require(self, *, except_: Mapping[str, str] | None = None) -> "FunctionReport":
        """Return this report if every property holds, is not applicable, or is in `except_`.

        Args:
            except_: The properties that are expected to fail, with the reason.

        Raises:
            PropertyViolation: A property fails and is not in `except_`, or is in `except_` and does
                not fail, so the reason is outdated.
            ValueError: A name in `except_` is not a property.
        """
        explained = dict(except_ or {})
        if unknown := sorted(explained.keys() - self.answers.keys()):
            raise ValueError(
                f"except_ contains {unknown}: each name must be one of {list(self.answers)}."
            )
        wrong = [
            f"{name}: {answer}"
            for name, answer in self.answers.items()
            if answer.verdict == "no" and name not in explained
        ]
        wrong += [
            f"{name}: {self.answers[name]}; remove it from except_, where its reason is {reason!r}"
            for name, reason in explained.items()
            if self.answers[name].verdict != "no"
        ]
        if wrong:
            raise PropertyViolation(
                "\n  ".join([f"{self.function} has unexpected properties:", *wrong])
            )
        return self

    def __str__(self) -> str:
        rows = [(name, str(answer)) for name, answer in self.answers.items()]
        return f"{self.function}\n{format_table(rows, indent='  ')}"


def check_function(
    function: Callable[..., Any],
    arguments: Callable[[int], Arguments] | Arguments | None = None,
    *,
    inputs: Callable[[int], Any] | None = None,
    name: str | None = None,
) -> FunctionReport:
    """Check whether a function is pure, preserves dtypes, compiles, maps, differentiates, ...

    A failed property does not raise: see `FunctionReport.require`. Bind hyperparameters with
    `functools.partial`. A parameter `generator` receives a generator, except for `compile` and
    `vmap`, which do not support generators. If the function returns a module, the properties of a
    step are checked on that module. The check takes seconds, most of them in `torch.compile`.

    - `pure`: no argument is modified: no tensor, container or module.
    - `generator`: with the same generator, the result depends only on the arguments.
    - `global_generators`: the generators of PyTorch, Python and NumPy are not used, not even when a
      returned module is called.
    - `float16`, `bfloat16`, `float64`: results with the shape of a floating-point argument have its
      dtype; if there are none, all floating-point results do.
    - `channels_last`: images in channels-last memory format keep this format.
    - `compile`: `torch.compile(fullgraph=True)` gives the same result.
    - `vmap`: `torch.func.vmap` gives the result of a loop; for random results, the same shapes.
    - `gradients`: gradients exist, and match finite differences.
    - `no_sync`: the host never synchronizes with the device: see `NoSync`. It is also called with
      tensors on the device "meta", if it runs there, where copies from the host are seen, and if
      CUDA is available, on a CUDA device with `torch.cuda.set_sync_debug_mode("error")`.
    - `batch_of_one`, `empty_batch`: such batches are accepted, and give finite results.

    A parameter called `draw` or `offset` is a random draw: a constant that keeps its dtype, has no
    gradient and stays on the CPU.

    Args:
        function: Any function of tensors or modules.
        arguments: A function of the batch size that returns a tuple of arguments or a dictionary of
            arguments by name, or such a tuple or dictionary if there is no batch. Default: derived
            from the names of the parameters: `model`, `inputs`, `images`, `targets`, `labels`,
            `losses`, `outputs`.
        inputs: A function of the batch size that returns the inputs for a module that the function
            takes or returns. Default: images `[size, 3, 8, 8]`.
        name: The name in the report. Default: the name of the function.

    Raises:
        ValueError: There is no argument and no default for a parameter.

    Example:
        >>> from composable.testing import check_function
        >>> report = check_function(F.select_using_loss).require()
        >>> print(report.answers["gradients"])
        not applicable: no result is a floating-point tensor
    """
    make = _default(function) if arguments is None else arguments
    subject = Subject(
        function,
        make=make if callable(make) else lambda size: make,
        inputs=inputs or (lambda size: image_batch(size)[0]),
        sized=callable(make),
    )
    with preserve_rng():
        subject.call(subject.arguments())  # raise if it cannot be called at all
        answers = {asked: _answer(check, subject) for asked, check in PROPERTIES.items()}
    return FunctionReport(name or _name(function), MappingProxyType(answers))


def _answer(check: Callable[[Subject], None], subject: Subject) -> Answer:
    try:
        check(subject)
    except NotApplicableError as error:
        return Answer("not applicable", str(error))
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        ours = isinstance(error, (PropertyFailed, HostSyncError))
        return Answer("no", line if ours else f"{type(error).__name__}: {line}")
    return Answer("yes")


def _of_size(size: int) -> dict[str, Callable[[], Any]]:
    """Return the default arguments by the name of the parameter."""
    images, labels = image_batch(size)
    return {
        "model": feature_maps,
        "inputs": lambda: images,
        "images": lambda: images,
        "targets": lambda: labels,
        "labels": lambda: labels,
        "losses": lambda: images.flatten(1).abs().mean(1) if size else torch.zeros(0),
        "outputs": lambda: torch.randn(size, CLASSES),
    }


def _default(function: Callable[..., Any]) -> Callable[[int], Arguments]:
    empty = inspect.Parameter.empty
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name != "generator"
    ]
    known = _of_size(1)
    if unknown := [name for name in needed if name not in known]:
        raise ValueError(
            f"{_name(function)} requires {unknown}, which have no default: pass arguments=, a "
            "function of the batch size that returns a dictionary of all arguments, or bind them "
            "with functools.partial."
        )
    return lambda size: {name: _of_size(size)[name]() for name in needed}


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{_name(function.func)}({', '.join(given)})"
    return getattr(function, "__name__", type(function).__name__)
