"""Digests of code and values: what changes them, and what does not."""

import importlib
import runpy
import sys
import threading
from collections import deque
from decimal import Decimal
from functools import partial

import attrs
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composable.algorithms import MixUp
from composable.comparison.digest import stable_digest
from tests.support.commands import run_script

WIDTH = 5


def compiled(source, **given):
    """Return the function `f` of some code."""
    namespace = {"__name__": "user", **given}
    exec(compile(source, "<user>", "exec"), namespace)
    return namespace["f"]


SAME = {
    "comments": ("def f(x):\n    return x + 1", "def f(x):\n    # more\n\n    return x + 1"),
    "an unrelated global": ("def f(x): return x", "y = 3\ndef f(x): return x"),
}
DIFFERENT = {
    "a constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "a name": ("def f(x): return abs(x)", "def f(x): return len(x)"),
    "an attribute": ("def f(x): return x.a", "def f(x): return x.b"),
    "a default": ("def f(x=1): return x", "def f(x=2): return x"),
    "a keyword default": ("def f(*, x=1): return x", "def f(*, x=2): return x"),
    "a global": ("y = 1\ndef f(): return y", "y = 2\ndef f(): return y"),
    "a helper": (
        "def g(): return 1\ndef f(): return g()",
        "def g(): return 2\ndef f(): return g()",
    ),
    "a method": (
        "class A:\n  def g(self): return 1\ndef f(): return A()",
        "class A:\n  def g(self): return 2\ndef f(): return A()",
    ),
    "a base class": (
        "class B:\n  def g(self): return 1\nclass A(B): pass\ndef f(): return A()",
        "class B:\n  def g(self): return 2\nclass A(B): pass\ndef f(): return A()",
    ),
    "a global of an inner function": (
        "y = 1\ndef f(): return lambda: y",
        "y = 2\ndef f(): return lambda: y",
    ),
    "how it takes its arguments": ("def f(x): return x", "def f(*x): return x"),
    "the lines of a try block": (  # the same bytecode from Python 3.11 on
        "def f():\n try:\n  g()\n  x = 1\n except E: x = 2\n return x",
        "def f():\n try: g()\n except E: x = 2\n else: x = 1\n return x",
    ),
    "a closure": (
        "def h(y): return lambda: y\nf = h(1)",
        "def h(y): return lambda: y\nf = h(2)",
    ),
}


@pytest.mark.parametrize("case", [*SAME, *DIFFERENT])
def test_code_has_the_same_digest_if_it_does_the_same(case):
    first, second = map(compiled, {**SAME, **DIFFERENT}[case])

    assert (stable_digest(first) == stable_digest(second)) == (case in SAME)


@attrs.frozen
class Settings:
    width: int


class Slotted:
    __slots__ = ("width",)

    def __init__(self, width):
        self.width = width


VALUES = [
    *(None, True, 1, 1.0, "1", b"1", (1,), [1], {1}, {1: 2}, {2: 1}, [[1], 2], [[1, 2]], []),
    *(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([[1.0]]), torch.tensor([1])),
    *(torch.tensor([]), MixUp(0.3), MixUp(0.4), Settings(1), Settings(2), torch.float32),
    *(partial(max, 1), partial(max, 2), partial(max, key=1), torch.optim.SGD, torch.optim.Adam),
    *(TensorDataset(torch.zeros(2)), TensorDataset(torch.zeros(3)), torch.optim.SGD.step),
    *(min, max, torch.relu, torch.tanh, str.upper, str.lower),
    *(Slotted(1), Slotted(2), range(2), range(3), Decimal(1), Decimal(2), deque([1]), deque([2])),
    *(torch.device("cpu"), torch.device("meta"), torch.channels_last, torch.contiguous_format),
    *(torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
]


def test_different_values_have_different_digests():
    assert len({stable_digest(one) for one in VALUES}) == len(VALUES)


def test_a_loader_is_described_by_its_data_and_options():
    def loader(value, size):
        return DataLoader(TensorDataset(torch.full((4,), value)), batch_size=size)

    first = stable_digest(loader(1.0, 2))
    assert first == stable_digest(loader(1.0, 2))
    assert first != stable_digest(loader(2.0, 2))
    assert first != stable_digest(loader(1.0, 4))


def test_an_object_that_cannot_be_pickled_is_described_by_its_class():
    assert (
        stable_digest(threading.Lock())
        == stable_digest(threading.Lock())
        != stable_digest(object())
    )


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package whose module `build` imports `models`, which imports `sizes`."""
    folder = tmp_path / "digested"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "build.py").write_text("from . import models\n")
    (folder / "models.py").write_text("from digested.sizes import WIDTH\n")
    (folder / "sizes.py").write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [one for one in sys.modules if one.partition(".")[0] == "digested"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["build.py", "models.py", "sizes.py"])
def test_a_module_is_described_by_its_source_and_by_what_it_imports(package, name):
    module = importlib.import_module("digested.build")
    before = stable_digest(module)
    assert stable_digest(module) == before

    with (package / name).open("a") as file:
        file.write("more = 1\n")
    assert stable_digest(module) != before


def test_an_object_that_contains_itself_has_a_digest():
    loop = []
    loop.append(loop)

    assert stable_digest(loop) != stable_digest([])


def test_the_order_of_a_mapping_does_not_count():
    assert stable_digest({"a": 1, "b": 2}) == stable_digest({"b": 2, "a": 1})


PROGRAM = """
from functools import partial
import attrs
import torch
from composable.algorithms import EMA
from composable.comparison.digest import stable_digest
names = {"b", "a", "c"}
@attrs.frozen
class Sizes:
    width: int
class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) if "x" in {"x", "y", "z"} else x
def build(algorithms, seed):
    return Model(2, Sizes(3).width), names, lambda: partial(torch.optim.SGD, lr=0.1)
print(stable_digest(build, [EMA()], Model))
"""


def test_the_digest_is_the_same_in_another_process(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    other, _ = run_script(f"import runpy; runpy.run_path({str(script)!r}, run_name='script')")
    runpy.run_path(str(script), run_name="script")

    assert capsys.readouterr().out == other
