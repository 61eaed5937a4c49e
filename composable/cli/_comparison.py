"""Load the script of `composable compare`, and call `composable.compare`."""

import argparse
import ast
import importlib.util
import inspect
import shlex
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from composable._other_trainers import suggestion
from composable.cli._errors import refuse
from composable.comparison.compare import NothingToCompareError, compare

_OWN = ("script", "arms", "arm", "run", "command_line", "script_arguments")
"""The options that are not arguments of `compare`."""


class UsageError(ValueError):
    """The arguments of the command do not fit the script."""


def run_comparison(options: argparse.Namespace) -> int:
    """Run a comparison, and return the exit status."""
    path, _, function = options.script.rpartition(":")
    if not path or "/" in function or "\\" in function:  # no function, or a drive's colon
        path, function = options.script, "build"
    arguments = sys.argv
    sys.argv = [path]  # the script must not parse the command's
    try:
        return _compare(options, path, function, shlex.join(["composable", *options.command_line]))
    finally:
        sys.argv = arguments


def _compare(options: argparse.Namespace, path: str, function: str, command: str) -> int:
    try:
        script = load_script(Path(path))
        arguments = _arguments(options, script)
        named = _named(script, function, path, "a function build(algorithms, seed, ...)")
    except UsageError as error:
        return refuse(error)
    except SystemExit as error:
        text = f"{path} ended with exit code {error.code!r} while it was imported; put what it "
        return refuse(UsageError(f"{text}runs under if __name__ == '__main__'."))
    except Exception:  # raised by the script
        traceback.print_exc()
        return 2
    try:
        loop = inspect.isgeneratorfunction(named)
        compare(None if loop else named, run=named if loop else None, command=command, **arguments)
    except KeyboardInterrupt:  # compare has printed how far it is
        print(f"To resume: {command}", file=sys.stderr)
        return 130
    except NothingToCompareError as error:
        return refuse(error, 1)
    except (ValueError, TypeError, ImportError, OSError) as error:
        return refuse(error)
    return 0


def _arguments(options: argparse.Namespace, script: ModuleType) -> dict[str, Any]:
    """Return the arguments of `compare` that the command has."""
    arms = _arms(vars(options), script)
    given = {name: value for name, value in vars(options).items() if name not in _OWN}
    if "durations" in given:
        baseline = given.get("baseline", "baseline")
        given["durations"] = parse_durations(given["durations"], baseline)
    if "data_amounts" in given:
        given["data_amounts"] = parse_amounts(given["data_amounts"])
    if "tune" in given:
        given["tune"] = parse_tune(given["tune"], list(arms))
    folder = Path("comparisons") / Path(str(script.__file__)).stem
    return {"folder": folder, **given, "arms": arms}


# --- the script ---


def load_script(path: Path) -> ModuleType:
    """Execute a Python file as a module, without the block of `__name__ == "__main__"`.

    The module has the name of the file, within the package that it lies in, so that worker
    processes can import it; if they cannot, they are sent its functions.

    Raises:
        UsageError: There is no such file, or it is not a Python file.
    """
    if not path.is_file():
        raise UsageError(f"SCRIPT={path} is not a file.")
    path = path.resolve()
    packages = _packages(path)
    root = path.parents[len(packages)]
    sys.path[:0] = [str(path.parent), *([str(root)] if packages else [])]
    name = ".".join([*packages, path.stem])
    is_importable = name not in sys.modules and _is_at(name, path)
    if not is_importable:
        name = f"composable_script_{path.stem.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"SCRIPT={path} must be a Python file, NAME.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not is_importable:
        with suppress(ImportError):  # compare says that the extra is missing
            import cloudpickle

            cloudpickle.register_pickle_by_value(module)
    return module


def _packages(path: Path) -> list[str]:
    """Return the names of the packages that a file lies in, from the outermost."""
    names: list[str] = []
    while (path.parent / "__init__.py").is_file():
        path = path.parent
        names.insert(0, path.name)
    return names


def _is_at(name: str, path: Path) -> bool:
    """Return whether the import system finds a file under a name."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of a part before a dot
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path


def _named(script: ModuleType, name: str, path: str, what: str) -> Any:
    if not hasattr(script, name):
        raise UsageError(f"{path} has no {name!r}; define {what} there, or name another one.")
    return getattr(script, name)


# --- the arms ---


def _arms(options: Mapping[str, Any], script: ModuleType) -> dict[str, Any]:
    """Return the arms of the script and of the command."""
    arms: dict[str, Any] = {}
    path = str(script.__file__)
    name = options.get("arms", "arms" if hasattr(script, "arms") else None)
    if name is not None:
        given = _named(script, name, path, "a mapping from names to arms")
        if not isinstance(given, Mapping):
            raise UsageError(f"{name} of {path} is {given!r:.100}; it must be a mapping.")
        arms.update(given)
    for name, value in [_arm(text, script) for text in options.get("arm", ())]:
        if name in arms:
            raise UsageError(f"two arms have the name {name!r}; rename one.")
        arms[name] = value
    if not arms:
        raise UsageError(
            f"there are no arms: define a mapping 'arms' in {path}, or pass --arm "
            "'mixup=[MixUp()]'."
        )
    return arms


def _arm(text: str, script: ModuleType) -> tuple[str, Any]:
    import composable.algorithms
    import composable.recipes

    name, equals, expression = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--arm {text!r} must be NAME=EXPRESSION, such as 'mixup=[MixUp()]'.")
    known = {
        one: getattr(package, one)
        for package in (composable.algorithms, composable.recipes)
        for one in vars(package)["__all__"]
    }
    names = {**known, **vars(script)}
    try:
        return name.strip(), eval(expression.strip(), names)
    except Exception as error:
        similar = suggestion(error.name or "", names) if isinstance(error, NameError) else ""
        raise UsageError(f"--arm {text!r}: {type(error).__name__}: {error}{similar}") from error


# --- lists of values ---


def _items(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def parse_durations(texts: list[str], baseline: str) -> list[str] | dict[str, list[str]] | None:
    """Return the schedules: "2ep,4ep" for all arms, "mixup=4ep,8ep" for one.

    Args:
        texts: The values of the option.
        baseline: The name of the baseline, which has those for all arms.

    Raises:
        UsageError: A text has no duration, or there are two for the same arms.

    Example:
        >>> from composable.cli._comparison import parse_durations
        >>> parse_durations(["2ep,4ep"], "baseline")
        ['2ep', '4ep']
        >>> parse_durations(["2ep,4ep", "mixup=4ep,8ep"], "baseline")
        {'baseline': ['2ep', '4ep'], 'mixup': ['4ep', '8ep']}
    """
    found: dict[str, list[str]] = {}
    named = False
    for text in texts:
        arm, equals, times = text.rpartition("=")
        name = arm.strip() if equals else baseline
        if not name or not _items(times):
            raise UsageError(f"--durations {text!r} must be TIMES or ARM=TIMES, such as 2ep,4ep.")
        if name in found:
            raise UsageError(f"--durations {text!r}: arm {name!r} has schedules already.")
        found[name] = _items(times)
        named = named or bool(equals)
    return found if named else found.get(baseline)


def parse_amounts(text: str) -> list[float]:
    """Return the amounts of training data, such as 0.1 and 1 for "0.1,1".

    Raises:
        UsageError: One of them is not a number.
    """
    amounts = [_value(item) for item in _items(text)]
    if not all(isinstance(amount, (int, float)) for amount in amounts):
        raise UsageError(f"--data-amounts {text!r} must be numbers, such as 0.1,0.3,1.")
    return amounts


def parse_tune(texts: list[str], arms: list[str]) -> dict[str, Any]:
    """Return the values to try: "lr=0.1,1" for all arms, "mixup:alpha=0.1,0.2" for one.

    Raises:
        UsageError: A text is not of this form, or a hyperparameter is given twice.

    Example:
        >>> from composable.cli._comparison import parse_tune
        >>> parse_tune(["lr=0.1,1", "mixup:alpha=0.2,0.4", "kind=a,b"], ["mixup"])
        {'lr': [0.1, 1], 'mixup': {'alpha': [0.2, 0.4]}, 'kind': ['a', 'b']}
    """
    tune: dict[str, Any] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not _items(values):
            raise UsageError(f"--tune {text!r} must be NAME=VALUES, such as lr=0.01,0.1.")
        arm, colon, own = name.strip().rpartition(":")
        if colon and arm not in (*arms, "baseline"):
            raise UsageError(f"--tune {text!r}: {arm!r} must be one of the arms: {arms}.")
        place = tune.setdefault(arm, {}) if colon else tune
        if not isinstance(place, dict) or own in place:
            raise UsageError(
                f"--tune {text!r}: another --tune has this name; list all values in one."
            )
        place[own] = [_value(item) for item in _items(values)]
    return tune


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
