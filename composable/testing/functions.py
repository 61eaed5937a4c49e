"""The matrix of properties, for anyone's function."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import torch

from composable.testing.no_sync import HostSyncError
from composable.testing.problems import CLASSES, feature_maps, image_batch
from composable.testing.properties import PROPERTIES, Arguments, Inapplicable, Refuted, Subject
from composable.utils.reproducibility import preserve_rng

__all__ = ["Answer", "FunctionReport", "PropertyBroken", "check_function"]


class PropertyBroken(AssertionError):
    """A function lacks a property without an explanation, or has one that is explained away."""


@attrs.frozen
class Answer:
    """Whether a function has a property: "yes", "no" or "not applicable", and why."""

    says: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.says}: {self.why}" if self.why else self.says


@attrs.frozen
class FunctionReport:
    """The row of a function in the matrix of properties."""

    function: str
    answers: Mapping[str, Answer]

    def require(self, *, except_: Mapping[str, str] | None = None) -> "FunctionReport":
        """This row, if every property holds or can't be asked about.

        Args:
            except_: For a property that doesn't hold, the reason why that is right.

        Raises:
            PropertyBroken: A property doesn't hold and isn't in `except_`, or is in it and holds
                (or can't be asked about), so that the reason is out of date.
            ValueError: `except_` has a name that is no property.
        """
        explained = dict(except_ or {})
        if unknown := sorted(explained.keys() - self.answers.keys()):
            raise ValueError(f"except_ has {unknown}, and the properties are {list(self.answers)}.")
        wrong = [
            f"{name}: {answer}"
            for name, answer in self.answers.items()
            if answer.says == "no" and name not in explained
        ]
        wrong += [
            f"{name}: {self.answers[name]}, so drop it from except_, where it says {reason!r}"
            for name, reason in explained.items()
            if self.answers[name].says != "no"
        ]
        if wrong:
            raise PropertyBroken("\n  ".join([f"{self.function} is not as required:", *wrong]))
        return self

    def __str__(self) -> str:
        width = max(map(len, self.answers))
        rows = [f"  {name:<{width}}  {answer}" for name, answer in self.answers.items()]
        return "\n".join([self.function, *rows])


def check_function(
    function: Callable[..., Any],
    arguments: Callable[[int], Arguments] | Arguments | None = None,
    *,
    inputs: Callable[[int], Any] | None = None,
    name: str | None = None,
) -> FunctionReport:
    """Ask of a function whether it is pure, keeps types, compiles, maps, differentiates, ...

    Nothing is raised where the answer is no: see `FunctionReport.require`. Hyperparameters are
    given by `functools.partial`. A function that takes `generator` is given one; to compile and
    to map it is called without, since neither takes a generator in. Of a function that returns a
    module the questions about a step are asked of that module. It takes seconds, most of them in
    `torch.compile`.

    - `pure`: no argument is changed: no tensor, container or module.
    - `generator`: with one generator, the result is a function of the arguments.
    - `global_generators`: those of PyTorch, Python and NumPy don't move, nor when a module that it
      returns is called.
    - `float16`, `bfloat16`, `float64`: results that have the shape of a float argument are of its
      type; where none has, all floats are.
    - `channels_last`: images that lie in memory with the channels last come back so.
    - `compile`: `torch.compile(fullgraph=True)` gives the same.
    - `vmap`: `torch.func.vmap` gives what a loop does; of draws, the shapes.
    - `gradients`: they flow, and are those of finite differences.
    - `no_sync`: the host never waits for the device: see `NoSync`. Where there is CUDA, it is
      called there, too, under `torch.cuda.set_sync_debug_mode("error")`.
    - `batch_of_one`, `empty_batch`: are taken, and give finite numbers.

    A parameter called `draw` or `offset` is a draw: a constant that keeps its type, has no gradient
    and stays on the CPU.

    Args:
        function: Any function of tensors or modules.
        arguments: A function of the size of the batch that makes them: a tuple, or a dictionary
            of arguments by name. A tuple or dictionary itself where there is no batch. By default
            they follow from the names of the parameters: `model`, `inputs`, `images`, `targets`,
            `labels`, `losses`, `outputs`.
        inputs: What a module that it takes or returns is called on, by the size of the batch; by
            default images `[size, 3, 8, 8]`.
        name: What the row is called; by default what the function is.

    Raises:
        ValueError: There is a parameter for which nothing is given, and nothing is known.

    Example:
        >>> from composable.testing import check_function
        >>> report = check_function(F.select_using_loss).require()
        >>> print(report.answers["gradients"])
        not applicable: no result is a float
    """
    make = _default(function) if arguments is None else arguments
    subject = Subject(
        function,
        make=make if callable(make) else lambda size: make,
        inputs=inputs or (lambda size: image_batch(size)[0]),
        sized=callable(make),
    )
    with preserve_rng():
        subject.call(subject.arguments())  # what can't be called at all has no properties
        answers = {asked: _answer(question, subject) for asked, question in PROPERTIES.items()}
    return FunctionReport(name or _name(function), MappingProxyType(answers))


def _answer(question: Callable[[Subject], None], subject: Subject) -> Answer:
    try:
        question(subject)
    except Inapplicable as error:
        return Answer("not applicable", str(error))
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        ours = isinstance(error, (Refuted, HostSyncError))
        return Answer("no", said if ours else f"{type(error).__name__}: {said}")
    return Answer("yes")


def _of_size(size: int) -> dict[str, Callable[[], Any]]:
    """What a parameter of a name is given by default."""
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
            f"{_name(function)} needs {unknown}, for which there is no default: give arguments=, a "
            "function of the batch size that makes a dictionary of all its arguments, or bind "
            "them with functools.partial."
        )
    return lambda size: {name: _of_size(size)[name]() for name in needed}


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{_name(function.func)}({', '.join(given)})"
    return getattr(function, "__name__", type(function).__name__)
