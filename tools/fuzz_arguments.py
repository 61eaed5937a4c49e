"""Call every public callable with hostile arguments: each call must work or name the argument.

    python -m tools.fuzz_arguments                  # everything
    python -m tools.fuzz_arguments cutmix Trainer   # only these
    python -m tools.fuzz_arguments --count 3        # three values of each argument

A call passes if it returns, or raises a TypeError or ValueError whose message has the name of the
argument. It fails if it raises anything else, or if a flag accepts a value that is not a bool.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import nn

from tests.support.calls import PublicCall, public_calls, unchanged_registries

HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "2**70": lambda: 2**70,
    "0.5": lambda: 0.5,
    "nan": lambda: nan,
    "-inf": lambda: -inf,
    "1j": lambda: 1j,
    "''": lambda: "",
    "'False'": lambda: "False",
    "'-1ba'": lambda: "-1ba",
    "'1e400ep'": lambda: "1e400ep",
    "'a\\0b'": lambda: "a\0b",
    "b'x'": lambda: b"x",
    "()": tuple,
    "[]": list,
    "{}": dict,
    "[None]": lambda: [None],
    "['x', 3]": lambda: ["x", 3],
    "{'x': 3}": lambda: {"x": 3},
    "{3: None}": lambda: {3: None},
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "object": object,
    "type": lambda: int,
    "Linear type": lambda: nn.Linear,
    "lambda": lambda: lambda: None,
    "iterator": lambda: iter(()),
    "Path": lambda: Path("missing"),
    "Decimal": lambda: Decimal("0.5"),
    "Fraction": lambda: Fraction(1, 3),
    "np.float64": lambda: np.float64(0.5),
    "np.array": lambda: np.zeros((2, 2)),
    "tensor scalar": lambda: torch.tensor(0.5),
    "tensor bool": lambda: torch.tensor([True, False]),
    "tensor empty": lambda: torch.empty(0),
    "tensor 2d": lambda: torch.zeros(2, 3),
    "tensor int": lambda: torch.zeros(2, dtype=torch.int64),
    "tensor complex": lambda: torch.zeros(4, 3, 8, 8, dtype=torch.complex64),
    "tensor meta": lambda: torch.empty(4, 3, 8, 8, device="meta"),
    "tensor sparse": lambda: torch.eye(3).to_sparse(),
    "tensor nested": lambda: _nested(),
    "dtype": lambda: torch.int8,
    "device": lambda: torch.device("meta"),
    "module": lambda: nn.Linear(2, 2),
    "generator": torch.Generator,
}
"""Builders of the values, by how they are shown."""


def _nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


@attrs.frozen
class Fault:
    """A call that neither worked nor named its argument."""

    callable: str
    argument: str
    value: str
    what: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.callable}({self.argument}={self.value}): {self.what}"


def fuzz(
    call: PublicCall, *, count: int | None = None, seed: int = 0
) -> Iterator[tuple[str, str, Fault | None]]:
    """Yield the argument, the value and the fault, if any, of each call.

    `count` limits how many values each argument gets; they are drawn by `seed`.
    """
    for argument in call.arguments:
        drawn: Sequence[str] = list(HOSTILE)
        if count is not None:
            drawn = random.Random(f"{seed} {call.name} {argument}").sample(drawn, count)
        for shown in drawn:
            what = _try(call, argument, HOSTILE[shown]())
            yield argument, shown, what and Fault(call.name, argument, shown, what)


def _try(call: PublicCall, argument: str, value: Any) -> str | None:
    """Return what is wrong with the result of a call, or None."""
    valid = call.valid()
    try:
        with unchanged_registries():
            call.run({**valid, argument: value})
    except (TypeError, ValueError) as error:
        named = re.search(rf"\b{re.escape(argument)}\b", str(error))
        if named or call.passes_on(argument, value):
            return None
        return f"{type(error).__name__} without the name: {_line(error)}"
    except call.errors:
        return None
    except Exception as error:
        if call.passes_on(argument, value):
            return None
        return f"{type(error).__name__}: {_line(error)}"
    flag = isinstance(valid.get(argument), bool) and not isinstance(value, (bool, np.bool_))
    return "taken as a flag" if flag else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:150]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz from the command line, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these callables")
    parser.add_argument("--count", type=int, help="values for each argument (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    calls = [call for call in public_calls() if not given.names or call.name in given.names]
    results: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        home = Path.cwd()
        os.chdir(folder)
        try:
            for call in calls:
                for _, _, fault in fuzz(call, count=given.count, seed=given.seed):
                    results["calls"] += 1
                    if fault:
                        results["faults"] += 1
                        print(fault, flush=True)
        finally:
            os.chdir(home)
    print(f"{len(calls)} callables, {results['calls']} calls, {results['faults']} faults")
    return int(results["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
