"""Batches of any shape are read, rebuilt and split, and never changed."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import MutableMapping
from types import MappingProxyType, SimpleNamespace

import attrs
import pytest
import torch

from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import count_examples, microbatch_sizes, select_examples, split_batch
from composable.batches.spec import BatchSpec

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Data:
    x: object
    y: object


@dataclasses.dataclass(frozen=True)
class FrozenData:
    x: object
    y: object


@attrs.frozen
class Attrs:
    x: object
    y: object


@attrs.frozen
class PrivateAttrs:
    x: object
    _y: object


class Wrapped(MutableMapping):
    """A mapping that keeps its items in a dictionary of its own."""

    def __init__(self, items):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2])

BY_POSITION = [(X, Y), [X, Y], Pair(X, Y)]
BY_NAME = [
    {"x": X, "y": Y},
    OrderedDict(x=X, y=Y),
    UserDict(x=X, y=Y),
    defaultdict(list, x=X, y=Y),
    Wrapped({"x": X, "y": Y}),
    Pair(X, Y),
    Data(X, Y),
    FrozenData(X, Y),
    Attrs(X, Y),
    SimpleNamespace(x=X, y=Y),
]


def name_of(batch):
    return type(batch).__name__


@pytest.mark.parametrize(
    ("batch", "spec"),
    [
        *((batch, BatchSpec()) for batch in BY_POSITION),
        *((batch, BatchSpec("x", "y")) for batch in BY_NAME),
        *((batch, BatchSpec(-2, -1)) for batch in BY_POSITION),
        ({"x": X, "y": Y}, BatchSpec((lambda b: b["x"], lambda b, new: {**b, "x": new}), "y")),
    ],
    ids=name_of,
)
def test_replaced_parts_are_in_a_new_batch_of_the_same_kind(batch, spec):
    new = spec.replace(batch, inputs="new x", targets="new y")
    other = spec.replace(batch, targets="new y")

    assert type(new) is type(batch)
    assert (spec.inputs(new), spec.targets(new)) == ("new x", "new y")
    assert (spec.inputs(other), spec.targets(other)) == (X, "new y")
    assert spec.inputs(batch) is X  # the old one stays
    assert spec.targets(batch) is Y


def test_tensor_is_its_own_input():
    assert BatchSpec().inputs(X) is X


@pytest.mark.parametrize(
    ("batch", "spec", "message"),
    [
        ((X, Y), BatchSpec(lambda batch: batch[0] * 2), "can only read the batch"),
        (7, BatchSpec(), "can't be replaced in a int;"),
    ],
)
def test_replacing_what_can_only_be_read_is_an_error_that_suggests_two_functions(
    batch, spec, message
):
    with pytest.raises(ValueError, match=rf"input_key=.* {message}.*\(get, set"):
        spec.replace(batch, inputs=X)


def test_function_reads_a_part():
    assert torch.equal(BatchSpec(lambda batch: batch[0] * 2).inputs((X, Y)), X * 2)


def test_a_path_goes_down_into_the_batch():
    batch = {"views": [X, X + 1], "meta": Attrs(None, (Y, "a"))}
    spec = BatchSpec(["views", 1], ["meta", "y", 0])

    new = spec.replace(batch, inputs="new x", targets="new y")

    assert torch.equal(spec.inputs(batch), X + 1)
    assert spec.targets(batch) is Y
    assert new == {"views": [X, "new x"], "meta": Attrs(None, ("new y", "a"))}
    assert batch["views"][1] is not new["views"][1]
    assert batch["meta"].y[0] is Y


@pytest.mark.parametrize(
    ("batch", "spec", "message"),
    [
        (
            {"x": X},
            BatchSpec("x", "y"),
            r"'y' is not in the batch, which is a dict with the keys",
        ),
        ((X,), BatchSpec(), "1 is not in the batch, which is a tuple of 1"),
        (X, BatchSpec(), r"1 is not in the batch, which is a tensor of shape \(3, 2\)"),
        ((X, Y), BatchSpec("x", "y"), "'y' is not in the batch, which is a tuple of 2"),
        (7, BatchSpec(), "1 is not in the batch, which is a int"),
        ({"a": [Y]}, BatchSpec(0, ["a", 3]), "3 is not in the batch, which is a list of 1"),
    ],
)
def test_a_missing_part_is_told_with_what_the_batch_is(batch, spec, message):
    with pytest.raises(ValueError, match=f"target_key={message}.*Pass the target_k"):
        spec.targets(batch)


# --- trees ---

TREES = [*BY_POSITION, *BY_NAME[:-1], PrivateAttrs(X, Y)]


@pytest.mark.parametrize("tree", [*TREES, MappingProxyType({"x": X, "y": Y})], ids=name_of)
def test_map_tensors_maps_every_tensor(tree):
    new = map_tensors(lambda t: t + 1, tree)

    assert [t.tolist() for t in tensors_of(new)] == [(X + 1).tolist(), (Y + 1).tolist()]
    assert [t.tolist() for t in tensors_of(tree)] == [X.tolist(), Y.tolist()]


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_every_operation_keeps_the_kind_of_the_batch(tree):
    first, second = split_batch(tree, [1, 2])
    some = select_examples(tree, torch.tensor([0, 2]), 3)

    assert {type(one) for one in (first, second, some, map_tensors(abs, tree))} == {type(tree)}
    rows = [[t.tolist() for t in tensors_of(part)] for part in (first, second, some)]
    assert rows == [
        [X[:1].tolist(), [0]],
        [X[1:].tolist(), [1, 2]],
        [X[[0, 2]].tolist(), [0, 2]],
    ]
    assert next(tensors_of(first)).data_ptr() == X.data_ptr()


def test_examples_are_the_rows_of_the_first_tensor_with_rows():
    assert count_examples(X) == 3
    assert count_examples({"scale": torch.tensor(2.0), "x": [X]}) == 3


@pytest.mark.parametrize("inputs", [torch.tensor(1.0), ["a", "b"], {}, None])
def test_what_has_no_rows_can_not_be_counted(inputs):
    with pytest.raises(ValueError, match=r"inputs is .*Check input_key"):
        count_examples(inputs)


# --- splitting and selecting ---


WHOLE = {
    "scale": torch.tensor(2.0),
    "task": "abc",
    "count": 5,
    "none": None,
    "few": (1, 2),  # not one an example
    "size": (224, 192, 3),
    "pair": (Pair("a", None), {"b": 3}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_values_that_are_not_one_per_example_are_in_every_part(name):
    batch = {"x": X, "names": ["a", "b", "c"], name: WHOLE[name]}

    *parts, some = *split_batch(batch, [1, 2]), select_examples(batch, torch.tensor([2]), 3)

    assert all(part[name] == WHOLE[name] for part in (*parts, some))
    assert [part["names"] for part in (*parts, some)] == [["a"], ["b", "c"], ["c"]]
    assert map_tensors(abs, batch)[name] == WHOLE[name]
    assert batch["names"] == ["a", "b", "c"]


def test_tensors_with_other_rows_stay_whole_when_examples_are_selected():
    few = Y[:2]

    assert select_examples({"x": X, "few": few}, torch.tensor([1]), 3)["few"] is few


def test_named_tuples_of_strings_stay_whole():
    parts = split_batch({"x": Y[:2], "pair": Pair("a", "b")}, [1, 1])

    assert [part["pair"] for part in parts] == [Pair("a", "b")] * 2


def test_the_strings_of_a_loader_split_with_the_tensors():
    data = [(X[i], i, name) for i, name in enumerate("abc")]
    (batch,) = torch.utils.data.DataLoader(data, batch_size=3)

    assert [part[2] for part in split_batch(batch, [1, 2])] == [("a",), ("b", "c")]
    assert select_examples(batch, torch.tensor([0, 2]), 3)[2] == ("a", "c")


def test_the_place_of_a_tensor_that_does_not_split_is_named():
    with pytest.raises(
        ValueError,
        match=r"batch\['a'\]\[0\] has 2 rows and the input has 3 examples.*one row per example",
    ):
        split_batch({"x": X, "a": [torch.zeros(2)]}, [2, 1])


@pytest.mark.parametrize(
    ("count", "options", "sizes"),
    [
        (8, {"parts": 2, "size": None}, [4, 4]),
        (7, {"parts": 2, "size": None}, [4, 3]),
        (7, {"parts": 3, "size": None}, [3, 3, 1]),
        (2, {"parts": 4, "size": None}, [1, 1]),
        (7, {"parts": None, "size": 3}, [3, 3, 1]),
        (7, {"parts": None, "size": 9}, [7]),
        (7, {"parts": 1, "size": None}, [7]),
    ],
)
def test_microbatches_are_even_and_the_last_is_short(count, options, sizes):
    assert microbatch_sizes(count, **options) == sizes


CALLS = {
    "map_tensors": lambda batch: map_tensors(torch.neg, batch),
    "count_examples": count_examples,
    "split_batch": lambda batch: split_batch(batch, [2, 2]),
    "select_examples": lambda batch: select_examples(batch, torch.tensor([0]), 4),
}


def nested(depth):
    batch = torch.zeros(4)
    for _ in range(depth):
        batch = [batch]
    return batch


def within_itself():
    batch = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize("name", CALLS)
def test_refuses_deep_batches(name):
    CALLS[name](nested(100))

    for batch in (nested(2000), within_itself()):
        with pytest.raises(ValueError, match=r"recursion limit of .* contains itself"):
            CALLS[name](batch)
