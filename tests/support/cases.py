"""One case a method: what the laws, the tables and the pages are generated from.

Each file in `tests/cases` holds one `CASE`. A function or an algorithm that is exported and has
none fails with the name of the file to write.
"""

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from hypothesis import strategies as st
from torch import nn

import composable.algorithms
import composable.functional
from composable import Algorithm, Event
from composable.functional import NoEffectWarning
from composable.testing import FunctionReport, check_function
from composable.testing.functions import _default as default_arguments
from composable.testing.functions import _of_size as defaults_of_size
from composable.testing.problems import image_batch
from composable.testing.properties import Subject
from tests.support.arguments import images, seeded
from tests.support.integrations import READ_ONLY_BATCH, in_callbacks
from tests.support.invalid import BY_NAME, NO_FLAG, Invalid
from tests.support.meaning import Meaning
from tests.support.runs import Problem

Function = Callable[..., Any]
FOLDER = "tests/cases"
InvalidSets = Sequence[tuple[Mapping[str, Any], str]]
EMPTY: Mapping[Any, Any] = MappingProxyType({})
NEVER = r"(?!)"
MEAN_OF_NONE = {"empty_batch": "the mean over no examples is NaN, as for PyTorch's own losses"}


class MissingCaseError(LookupError):
    """A function, an algorithm or an argument of one that no case is about."""


# --- a function ---


@attrs.frozen(eq=False)
class FunctionCase:
    """A public function and its arguments: a row of the matrix of properties.

    Args:
        function: The function. It may have several cases; the invalid values are those of its
            first.
        options: The hyperparameters that the row is about, by name.
        of: What it is called with, in words, where the row is about that.
        needs: Further hyperparameters that have no default.
        arguments: The arguments: a function of the size of the batch, or a tuple or dictionary
            where there is no batch. By default they follow from the names of the parameters:
            `model`, `inputs`, `images`, `targets`, `labels`, `losses`, `outputs`, and those of
            the two halves of a function: `batch_size`, `size`, `draw`.
        inputs: What a module that it returns is called on, by the size of the batch; by default
            images `[size, 3, 8, 8]`.
        invalid: Invalid values of its arguments, in addition to those of the method.
        invalid_sets: Arguments that are invalid together, or with the defaults of the others,
            each with a pattern of the error message.
        expected_failures: The properties that it lacks, each with the reason.
        sought: Of a surgery: a pattern of what it looks for, as its warning says.
        lazy: Of a surgery: builds a layer that it refuses.
        removed: A pattern of the names, in the state dict, of parameters that only the original
            model has.
        renamed: A pattern of the names of those that the new model has by another name.
        added: A pattern of the names of new tensors.
        no_row: Why it is not in the matrix, if it isn't: it computes nothing, say.
    """

    function: Function
    options: Mapping[str, Any] = EMPTY
    of: str = ""
    needs: Mapping[str, Any] = EMPTY
    arguments: Any = None
    inputs: Callable[[int], Any] | None = None
    invalid: Invalid = EMPTY
    invalid_sets: InvalidSets = ()
    expected_failures: Mapping[str, str] = EMPTY
    sought: str = ""
    lazy: Callable[[], nn.Module] | None = None
    removed: str = NEVER
    renamed: str = NEVER
    added: str = NEVER
    no_row: str = ""

    @property
    def name(self) -> str:
        """The heading of the row, in Markdown."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        call = f"{self.function.__name__}({given})" if given else self.function.__name__
        return f"`{call}`".replace("'", '"') + f" of {self.of}" * bool(self.of)

    @property
    def bound(self) -> Function:
        """The function with its hyperparameters."""
        given = {**self.options, **self.needs}
        return partial(self.function, **given) if given else self.function

    @property
    def makes(self) -> Any:
        """Its arguments, if they don't follow from the names as in `check_function`."""
        return _halves(self.function) if self.arguments is None else self.arguments

    def valid(self) -> dict[str, Any]:
        """Make valid arguments, by name."""
        make = self.makes
        make = default_arguments(self.bound) if make is None else make
        given = make(4) if callable(make) else make
        if not isinstance(given, Mapping):
            given = inspect.signature(self.function).bind_partial(*given).arguments
        return {**given, **self.options, **self.needs}

    def subject(self) -> Subject:
        """Return it with its arguments, as the checks of properties take it."""
        make = default_arguments(self.bound) if self.makes is None else self.makes
        inputs = self.inputs or (lambda size: image_batch(size)[0])
        return Subject(self.bound, make if callable(make) else lambda _: make, inputs)

    def report(self) -> FunctionReport:
        """Check every property.

        Raises:
            MissingCaseError: It can't even be called.
        """
        try:
            with warnings.catch_warnings():  # a surgery that finds nothing shows nothing
                warnings.simplefilter("error", NoEffectWarning)
                return check_function(self.bound, self.makes, inputs=self.inputs, name=self.name)
        except Exception as error:
            name = self.function.__name__
            raise MissingCaseError(
                f"{name} can't be called for the matrix of properties: {error}\nGive its case in "
                f"{FOLDER} arguments, as in FunctionCase({name}, arguments=lambda n: (images(n),))."
            ) from error

    def __repr__(self) -> str:
        return self.name.replace("`", "")


def _halves(function: Function) -> Callable[[int], tuple[Any, ...]] | None:
    """Return the arguments of a function that draws, or that applies such a draw."""
    parameters = inspect.signature(function).parameters.values()
    *names, last = [p.name for p in parameters if p.default is p.empty] or [""]
    if "batch_size" in (*names, last):
        return lambda size: (size, (8, 8))[: len(names) + 1]
    if last != "draw":
        return None
    draw = getattr(composable.functional, function.__name__.replace("apply_", "draw_"))
    drawn = _halves(draw)
    if drawn is None:
        return None
    return lambda size: (
        *({**defaults_of_size(size), "images": lambda: images(size)}[name]() for name in names),
        draw(*drawn(size), generator=seeded()),
    )


# --- an algorithm ---

LAST_BITS = "by rounding"
"""The two orders are equal to rounding."""
OTHER_WEIGHTS = "in the weights"
"""The two orders train differently."""
ONE_FAILS = "one order fails"
"""One of the two orders raises an error; a list runs in the other."""
BOTH_FAIL = "both orders fail"
"""Both orders raise an error: these two can't be combined."""


@attrs.frozen(eq=False)
class AlgorithmCase:
    """An algorithm, with hyperparameters that make it act in a run of a few batches.

    Args:
        kind: Its class.
        hyperparameters: The values that each may have; all combinations must be allowed. The
            first of each make the instance that the table of pairs is about.
        meaning: The fields of the state that its function changes, as a function of the algorithm
            and the state: see `tests/support/meaning.py`.
        acts_at: The event at which it calls its function, if not at its first.
        memory: Its memory before that event, if it has one.
        neutral: Of a surgery: an instance that changes no result, or why there is none.
        invalid_sets: Hyperparameters that are invalid together, or with the defaults of the
            others, each with a pattern of the error message.
        cannot: The problems on which it can't act, each with the reason.
        sees_microbatches: Why its gradients depend on how a batch is split, if they do: it takes
            statistics of a microbatch, say, or draws for each.
        no_effect: Why it changes no result, if it changes none: it only saves time, say.
        alone: Why it is excluded from random sets and from the table of pairs, if it is: the laws
            test it by itself.
        order_matters: Why it doesn't commute with others, by the names of their classes, which
            are separated by spaces: the reason, or the reason and how the two orders differ (one
            of the four above, or a dictionary of these by the name of the problem). A pair may
            stand in the case of either.
        refused: The loops of other libraries in which it is refused, each with the reason; by
            default those in which a callback can't replace the batch that it writes.
        external: Hyperparameters for those loops, where the first values don't suit.
        external_options: Options of `adapt_loop` that it needs there.
    """

    kind: type[Algorithm]
    hyperparameters: Mapping[str, Sequence[Any]] = EMPTY
    meaning: Meaning | None = None
    acts_at: Callable[[Any], Event] | None = None
    memory: Mapping[str, Any] = EMPTY
    neutral: Algorithm | str = ""
    invalid_sets: InvalidSets = ()
    cannot: Mapping[Problem, str] = EMPTY
    sees_microbatches: str = ""
    no_effect: str = ""
    alone: str = ""
    order_matters: Mapping[str, str | tuple[str, str | Mapping[str, str]]] = EMPTY
    refused: Mapping[str, str] = attrs.field()
    external: Mapping[str, Any] = EMPTY
    external_options: Mapping[str, Any] = EMPTY

    @refused.default
    def _read_only_batch(self) -> Mapping[str, str]:
        return in_callbacks(READ_ONLY_BATCH) if "batch" in self.kind.writes else EMPTY

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.kind.__name__

    @property
    def first_values(self) -> dict[str, Any]:
        """The first value of each hyperparameter."""
        return {name: values[0] for name, values in self.hyperparameters.items()}

    @property
    def example(self) -> Algorithm:
        """The instance with the first of all values."""
        return self.kind(**self.first_values)

    @property
    def external_example(self) -> Algorithm:
        """The instance for the loops of other libraries."""
        return self.kind(**{**self.first_values, **self.external})

    @property
    def instances(self) -> st.SearchStrategy[Algorithm]:
        """A strategy for instances."""
        values = {n: st.sampled_from(list(v)) for n, v in self.hyperparameters.items()}
        return st.builds(self.kind, **values)

    def valid(self) -> dict[str, Any]:
        """Return the hyperparameters that have no default."""
        required = {f.name for f in attrs.fields(self.kind) if f.default is attrs.NOTHING}
        return {name: value for name, value in self.first_values.items() if name in required}

    def acts_on(self, problem: Problem) -> bool:
        """Return whether it can act on a problem."""
        return problem not in self.cannot

    def __repr__(self) -> str:
        return self.name


# --- a method ---

AUGMENTATION = "Data augmentation and targets"
COMPUTE = "Reduce compute per step"
SURGERY = "Model surgery"
OPTIMIZATION = "Optimization and weight averaging"
DIAGNOSTICS = "Diagnostics"
GROUPS = (AUGMENTATION, COMPUTE, SURGERY, OPTIMIZATION, DIAGNOSTICS)


@attrs.frozen(kw_only=True)
class Overview:
    """A method's row in the overview of the methods.

    Args:
        group: The table: one of `GROUPS`.
        summary: What it does: a verb phrase. The README shows that of a few methods.
        changes: What it changes in training.
        cost: What a step costs; its figures are on the card.
        evidence: "wide", "paper", "disputed" or "practice", and the source.
        use_for: When to use it.
    """

    group: str = attrs.field(validator=attrs.validators.in_(GROUPS))
    summary: str
    changes: str
    cost: str
    evidence: str
    use_for: str


@attrs.frozen(eq=False, kw_only=True)
class Case:
    """A method: its functions, its algorithm, and its row in the overview.

    Args:
        functions: The functions of its module, and others that its card is about.
        algorithm: Its algorithm. Only a file of helpers, such as single operations on images, has
            none.
        overview: Its row in the overview.
        invalid: Invalid values of the arguments of its functions and its algorithm, by name; those
            of `tests/support/invalid.py`, by name or by type, needn't be repeated.
    """

    functions: Sequence[FunctionCase]
    algorithm: AlgorithmCase | None = None
    overview: Overview | None = None
    invalid: Invalid = EMPTY
    name: str = ""

    def invalid_values(self, callable_: Function, own: Invalid = EMPTY) -> Invalid:
        """Return the invalid values of each argument of a function or an algorithm of the method.

        Raises:
            MissingCaseError: There is none for an argument.
        """
        parameters = inspect.signature(callable_).parameters
        flags = {name: NO_FLAG for name, p in parameters.items() if p.annotation is bool}
        known = {**flags, **BY_NAME, **self.invalid, **own}
        names = [name for name in parameters if name != "name"]
        if missing := [name for name in names if name not in known]:
            raise MissingCaseError(
                f"{callable_.__name__} has arguments without invalid values: {missing}. Add them "
                f"to invalid= in {FOLDER}/{self.name}.py."
            )
        return {name: known[name] for name in names}

    def __repr__(self) -> str:
        return self.name


@cache
def all_cases() -> tuple[Case, ...]:
    """Load the cases of all methods, by name.

    Raises:
        MissingCaseError: A file holds none, or an exported function or algorithm has none.
    """
    package = importlib.import_module(FOLDER.replace("/", "."))
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    cases = tuple(map(_load, names))
    check_complete(cases)
    return cases


def all_function_cases() -> Iterator[tuple[Case, FunctionCase]]:
    """List the rows of the matrix, each with its method; single operations on images come last."""
    for case in sorted(all_cases(), key=lambda case: (not case.overview, case.name)):
        for row in case.functions:
            if not row.no_row:
                yield case, row


def _load(name: str) -> Case:
    module = importlib.import_module(f"{FOLDER.replace('/', '.')}.{name}")
    if not isinstance(case := getattr(module, "CASE", None), Case):
        raise MissingCaseError(f"{FOLDER}/{name}.py must define CASE = Case(...).")
    return attrs.evolve(case, name=name)


def check_complete(cases: Sequence[Case]) -> None:
    """Check that every exported function and algorithm has a case.

    Raises:
        MissingCaseError: One has none.
    """
    functions = {one.function for case in cases for one in case.functions}
    kinds = {case.algorithm.kind for case in cases if case.algorithm}
    for exported in (*public_functions(), *exported_algorithms()):
        if exported in functions or exported in kinds:
            continue
        stem = exported.__module__.rpartition(".")[2]
        raise MissingCaseError(
            f"{exported.__module__}.{exported.__name__} has no case: write {FOLDER}/{stem}.py, or "
            f"add it to the case of its method in {FOLDER} (docs/contributing.md, step 4)."
        )


# --- what the package exports ---


def exported_algorithms() -> list[type[Algorithm]]:
    """List the algorithms that the package exports."""
    found = [getattr(composable.algorithms, name) for name in composable.algorithms.__all__]
    return [one for one in found if isinstance(one, type) and issubclass(one, Algorithm)]


def public_functions() -> list[Function]:
    """List the functions that `composable.functional` and its subpackages export."""
    packages = (composable.functional, composable.functional.images, composable.functional.layers)
    exported = (getattr(package, name) for package in packages for name in vars(package)["__all__"])
    return list(dict.fromkeys(one for one in exported if inspect.isfunction(one)))


ROOT = Path(__file__).parents[2]
METHODS = ROOT / "docs/methods"
