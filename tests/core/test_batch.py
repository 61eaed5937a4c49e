"""Batches of any shape are read, rebuilt and split, and never changed."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import MutableMapping
from types import MappingProxyType, SimpleNamespace

import attrs
import pytest
import torch

from composable.core.batch import (
    BatchSpec,
    count_examples,
    map_tensors,
    microbatch_sizes,
    select_examples,
    split_batch,
    tensors_of,
)

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


@pytest.mark.parametrize("batch", BY_POSITION, ids=name_of)
def test_parts_are_found_by_position(batch):
    spec = BatchSpec()

    assert spec.inputs(batch) is X
    assert spec.targets(batch) is Y


@pytest.mark.parametrize("batch", BY_NAME, ids=name_of)
def test_parts_are_found_by_name(batch):
    spec = BatchSpec("x", "y")

    assert spec.inputs(batch) is X
    assert spec.targets(batch) is Y


@pytest.mark.parametrize(
    ("batch", "spec"),
    [
        *((batch, BatchSpec()) for batch in BY_POSITION),
        *((batch, BatchSpec("x", "y")) for batch in BY_NAME),
        *((batch, BatchSpec(-2, -1)) for batch in BY_POSITION),
    ],
    ids=name_of,
)
def test_replacing_a_part_gives_a_new_batch_of_the_same_kind(batch, spec):
    new = spec.replace(batch, inputs="new x", targets="new y")

    assert type(new) is type(batch)
    assert (spec.inputs(new), spec.targets(new)) == ("new x", "new y")
    assert spec.inputs(batch) is X  # the old one stays
    assert spec.targets(batch) is Y


def test_replacing_one_part_leaves_the_other():
    batch = {"x": X, "y": Y, "id": "a"}

    new = BatchSpec("x", "y").replace(batch, targets=1)

    assert new == {"x": X, "y": 1, "id": "a"}


def test_a_path_goes_down_into_the_batch():
    batch = {"views": [X, X + 1], "meta": Attrs(None, (Y, "a"))}
    spec = BatchSpec(["views", 1], ("meta", "y", 0))

    new = spec.replace(batch, inputs="new x", targets="new y")

    assert torch.equal(spec.inputs(batch), X + 1)
    assert spec.targets(batch) is Y
    assert new == {"views": [X, "new x"], "meta": Attrs(None, ("new y", "a"))}
    assert batch["views"][1] is not new["views"][1]
    assert batch["meta"].y[0] is Y


def test_a_function_can_read_and_not_replace():
    spec = BatchSpec(lambda batch: batch["x"] * 2, "y")
    batch = {"x": X, "y": Y}

    assert torch.equal(spec.inputs(batch), X * 2)
    with pytest.raises(ValueError, match=r"input_key=.* can only read the batch.*\(get, set\)"):
        spec.replace(batch, inputs=X)


def test_a_pair_of_functions_reads_and_replaces():
    spec = BatchSpec((lambda b: b["x"], lambda b, value: {**b, "x": value}), "y")
    batch = {"x": X, "y": Y}

    assert spec.inputs(batch) is X
    assert spec.replace(batch, inputs=1) == {"x": 1, "y": Y}
    assert batch["x"] is X


def test_a_tensor_is_its_own_input():
    assert BatchSpec().inputs(X) is X


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
        ({"a": [Y]}, BatchSpec(0, ("a", 3)), "3 is not in the batch, which is a list of 1"),
    ],
)
def test_a_missing_part_is_told_with_what_the_batch_is(batch, spec, message):
    with pytest.raises(ValueError, match=f"target_key={message}.*Pass the target_k"):
        spec.targets(batch)


def test_what_can_not_be_replaced_asks_for_functions():
    with pytest.raises(ValueError, match=r"input_key=0 can't be replaced in a int; .*\(get, set"):
        BatchSpec().replace(7, inputs=1)


@pytest.mark.parametrize("argument", ["input_key", "target_key"])
@pytest.mark.parametrize("key", [None, 1.5, True, [], {"x"}, ["x", None], ("x", True), (len, 1)])
def test_a_key_that_finds_nothing_is_refused(argument, key):
    with pytest.raises(TypeError, match=rf"{argument}=.* must be an index \(0\), a name .*, set\)"):
        BatchSpec(**{argument: key})


# Trees


@pytest.mark.parametrize(
    "tree",
    [*BY_POSITION, *BY_NAME[:-1], PrivateAttrs(X, Y), MappingProxyType({"x": X, "y": Y})],
    ids=name_of,
)
def test_every_tensor_of_a_tree_is_mapped(tree):
    new = map_tensors(lambda t: t + 1, tree)

    assert [t.tolist() for t in tensors_of(new)] == [(X + 1).tolist(), (Y + 1).tolist()]
    assert [t.tolist() for t in tensors_of(tree)] == [X.tolist(), Y.tolist()]


def test_mapping_keeps_the_kinds_and_what_is_no_tensor():
    tree = {"a": [Pair(X, "name")], "b": (None, 3)}

    new = map_tensors(lambda t: t * 2, tree)

    assert type(new["a"][0]) is Pair
    assert new["a"][0].y == "name"
    assert new["b"] == (None, 3)
    assert torch.equal(new["a"][0].x, X * 2)


def test_examples_are_the_rows_of_the_first_tensor_with_rows():
    assert count_examples(X) == 3
    assert count_examples({"scale": torch.tensor(2.0), "x": [X]}) == 3


@pytest.mark.parametrize("inputs", [torch.tensor(1.0), ["a", "b"], {}, None])
def test_what_has_no_rows_can_not_be_counted(inputs):
    with pytest.raises(ValueError, match=r"cannot be counted: its input is .*Check input_key"):
        count_examples(inputs)


# Splitting


def test_a_batch_splits_into_views_of_its_rows():
    first, second = split_batch((X, Y), [2, 1])

    assert torch.equal(first[0], X[:2])
    assert second[1].tolist() == [2]
    assert first[0].data_ptr() == X.data_ptr()


@pytest.mark.parametrize("batch", [*BY_POSITION, *BY_NAME[:-1], PrivateAttrs(X, Y)], ids=name_of)
def test_parts_have_the_kind_of_the_whole(batch):
    parts = split_batch(batch, [1, 2])

    assert [type(part) for part in parts] == [type(batch)] * 2
    joined = [torch.cat(ts) for ts in zip(*map(tensors_of, parts), strict=True)]
    assert [t.tolist() for t in joined] == [X.tolist(), Y.tolist()]


def test_what_has_no_rows_goes_to_every_part():
    scale = torch.tensor(2.0)

    parts = split_batch({"x": X, "scale": scale, "task": "a", "n": 5, "none": None}, [2, 1])

    for part in parts:
        assert part["scale"] is scale
        assert (part["task"], part["n"], part["none"]) == ("a", 5, None)


def test_lists_of_plain_values_split_with_the_tensors():
    parts = split_batch({"x": X, "names": ["a", "b", "c"], "sizes": (1, 2)}, [1, 2])

    assert [part["names"] for part in parts] == [["a"], ["b", "c"]]
    assert [part["sizes"] for part in parts] == [(1, 2), (1, 2)]  # not one an example


SIZED = {"x": X, "size": (224, 192, 3), "pair": Pair("a", "b"), "names": ["a", "b", "c"]}


def test_a_tuple_of_numbers_is_not_one_an_example():
    for part in [*split_batch(SIZED, [1, 2]), select_examples(SIZED, torch.tensor([1]), 3)]:
        assert part["size"] == (224, 192, 3)
    assert [p["pair"] for p in split_batch({"x": Y[:2], "pair": Pair("a", "b")}, [1, 1])] == [
        Pair("a", "b")
    ] * 2


def test_the_strings_of_a_loader_split_with_the_tensors():
    data = [(X[i], i, name) for i, name in enumerate("abc")]
    (batch,) = torch.utils.data.DataLoader(data, batch_size=3)

    assert [part[2] for part in split_batch(batch, [1, 2])] == [("a",), ("b", "c")]
    assert select_examples(batch, torch.tensor([0, 2]), 3)[2] == ("a", "c")


@pytest.mark.parametrize("batch", [*BY_POSITION, *BY_NAME[:-1], PrivateAttrs(X, Y)], ids=name_of)
def test_selected_examples_come_in_the_kind_of_the_whole(batch):
    some = select_examples(batch, torch.tensor([0, 2]), 3)

    assert type(some) is type(batch)
    assert [t.tolist() for t in tensors_of(some)] == [X[[0, 2]].tolist(), [0, 2]]


def test_selecting_leaves_whole_what_has_no_value_for_each_example():
    batch = {
        "x": X,
        "scale": torch.tensor(2.0),
        "few": Y[:2],
        "task": "abc",
        "size": (1, 2),
        "ids": [7, 8, 9],
    }

    some = select_examples(batch, torch.tensor([1]), 3)

    assert some["ids"] == [8]
    assert all(some[name] is batch[name] for name in ("scale", "few", "task", "size"))
    assert batch["ids"] == [7, 8, 9]


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
