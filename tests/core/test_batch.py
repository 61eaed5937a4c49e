"""Batches of any shape are read, rebuilt, split, selected and moved, and never changed."""

import dataclasses
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping, MutableMapping
from functools import partial
from types import MappingProxyType, SimpleNamespace

import attrs
import pytest
import torch

from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import (
    count_examples,
    microbatch_sizes,
    select_examples,
    split_batch,
    to_device,
)
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
    Counter(x=X, y=Y),
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


@pytest.mark.parametrize("batch", [(X,), [X], {"inputs": X}], ids=name_of)
def test_a_part_that_a_batch_lacks_is_not_replaced(batch):
    spec = BatchSpec("inputs", "targets") if isinstance(batch, dict) else BatchSpec()

    with pytest.raises(ValueError, match=r"target_key=.* is not in the batch, which is a "):
        spec.replace(batch, targets=Y)


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


MAPPINGS = {
    dict: "dict",
    Counter: "Counter",
    OrderedDict: "OrderedDict",
    UserDict: "UserDict",
    partial(defaultdict, int): "defaultdict",
}


@pytest.mark.parametrize(
    ("batch", "spec", "message"),
    [
        *(
            (kind(x=X), BatchSpec("x", "y"), rf"'y' is not in .*, which is a {name} with the keys")
            for kind, name in MAPPINGS.items()
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
    if isinstance(batch, Mapping) and "x" in batch:  # to which a key could be added
        with pytest.raises(ValueError, match=f"target_key={message}"):
            spec.replace(batch, targets=Y)


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


def test_outputs_of_transformers_are_trees():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    batch = outputs.CausalLMOutput(logits=torch.arange(4.0).reshape(2, 2))

    new = map_tensors(lambda tensor: tensor + 1, batch)
    first, second = split_batch(batch, [1, 1])

    assert {type(one) for one in (new, first, second)} == {type(batch)}
    assert new.logits is new["logits"]
    assert torch.equal(new.to_tuple()[0], batch.logits + 1)
    assert (first.logits.tolist(), second.logits.tolist()) == ([[0, 1]], [[2, 3]])
    assert batch.logits.sum() == 6


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


# --- lists, and lists of examples ---

COUNT = 3


def picture(i):
    return torch.full((3, 4 + i, 5), float(i))


def boxes(i):
    return {"boxes": torch.full((i, 4), float(i)), "label": i, "id": torch.tensor(i)}


IMAGES, TARGETS = [picture(i) for i in range(COUNT)], [boxes(i) for i in range(COUNT)]
EQUAL = torch.rand(COUNT, 3, 4, 5)
CLASSES = torch.arange(COUNT)
PAIRS = list(zip(IMAGES, TARGETS, strict=True))
NAMED = [{"image": image, "target": target} for image, target in PAIRS]
NAMES = BatchSpec("image", "target")

LISTS = {
    "lists": ((IMAGES, TARGETS), BatchSpec()),
    "tuples": ((tuple(IMAGES), tuple(TARGETS)), BatchSpec()),
    "list of lists": ([IMAGES, TARGETS], BatchSpec()),
    "by name": ({"image": IMAGES, "target": TARGETS, "names": ["a", "b", "c"]}, NAMES),
    "by path": (
        {"x": {"views": [IMAGES, IMAGES]}, "y": TARGETS},
        BatchSpec(["x", "views", -1], "y"),
    ),
    "tensor and objects": ((EQUAL, TARGETS), BatchSpec()),
    "tensor and masks": ((EQUAL, [image[0] for image in IMAGES]), BatchSpec()),
    "texts": ((["a", "bc", "d"], CLASSES), BatchSpec()),
    "images and classes": ((IMAGES, CLASSES), BatchSpec(batch_layout="lists")),
    "texts and numbers": ((("a", "b", "c"), (0, 1, 2)), BatchSpec(batch_layout="lists")),
    "equal sizes": ((list(EQUAL), list(EQUAL)), BatchSpec(batch_layout="lists")),
    "whole batch": ((IMAGES, TARGETS), BatchSpec(lambda batch: batch[0], batch_layout="lists")),
}
EXAMPLES = {
    "named": (NAMED, NAMES),
    "nested": ([{"x": {"image": one["image"]}, "target": one["target"]} for one in NAMED],
               BatchSpec(["x", "image"], "target")),
    "pairs": (PAIRS, BatchSpec(batch_layout="examples")),
    "tuple of pairs": (tuple(PAIRS), BatchSpec(batch_layout="examples")),
}  # fmt: skip
ALL = {**LISTS, **EXAMPLES}
every = pytest.mark.parametrize(("batch", "spec"), ALL.values(), ids=ALL)


def plain(tree):
    """Turn tensors into lists, so that batches can be compared."""
    return map_tensors(lambda tensor: tensor.tolist(), tree)


@every
def test_counts_examples(batch, spec):
    assert spec.count(batch) == COUNT


@every
@pytest.mark.parametrize("sizes", [[1, 1, 1], [2, 1], [3]])
def test_split_parts_are_the_examples_in_order(batch, spec, sizes):
    parts = spec.split(batch, sizes)

    assert [spec.count(part) for part in parts] == sizes
    assert all(type(part) is type(batch) for part in parts)
    for read in (spec.inputs, spec.targets):
        joined = [one for part in parts for one in plain(list(read(part)))]
        assert joined == plain(list(read(batch)))


@every
def test_selects_examples(batch, spec):
    chosen = spec.select(batch, torch.tensor([2, 0]))

    for read in (spec.inputs, spec.targets):
        whole = plain(list(read(batch)))
        assert plain(list(read(chosen))) == [whole[2], whole[0]]


@every
def test_replaced_targets_are_in_a_new_batch(batch, spec):
    before, new = plain(batch), [torch.ones(i) for i in range(COUNT)]

    replaced = spec.replace(batch, targets=new)

    assert type(replaced) is type(batch)
    assert plain(list(spec.targets(replaced))) == plain(new)
    assert plain(spec.inputs(replaced)) == plain(spec.inputs(batch))
    assert plain(batch) == before


@every
def test_every_tensor_moves(batch, spec):
    moved = to_device(batch, torch.device("meta"))

    assert all(tensor.is_meta for tensor in tensors_of(moved))
    assert spec.count(moved) == COUNT


def test_images_with_a_target_object_each_are_lists():
    batch = ([torch.rand(3, 8, 8)], [{"boxes": torch.rand(3, 4)}])

    assert BatchSpec().count(batch) == 1


def test_other_values_are_in_every_part():
    batch = {
        "image": IMAGES,
        "target": TARGETS,
        "names": ["a", "b", "c"],
        "scale": 2.0,
        "note": "x",
    }

    first, second = NAMES.split(batch, [1, 2])

    assert (first["names"], second["names"]) == (["a"], ["b", "c"])
    assert [(part["scale"], part["note"]) for part in (first, second)] == [(2.0, "x")] * 2


ROWS = {
    "two inputs": ([torch.rand(6, 4), torch.rand(6, 2)], torch.arange(6)),
    "two of each": ([torch.rand(6, 4), torch.rand(6, 2)], [torch.arange(6), torch.arange(6)]),
    "two inputs of a batch of two": ([torch.rand(2, 4), torch.rand(2, 2)], torch.arange(2)),
    "numbers": (torch.rand(3, 4), [0, 1, 2]),
    "without a target": ([torch.rand(6, 4), torch.rand(6, 2)],),
}


@pytest.mark.parametrize("batch", ROWS.values(), ids=ROWS)
def test_lists_of_tensors_with_a_row_per_example_stay_rows(batch):
    spec, count = BatchSpec(), next(tensors_of(batch)).shape[0]

    assert spec.count(batch) == count
    assert [spec.count(part) for part in spec.split(batch, [1, count - 1])] == [1, count - 1]


def test_inputs_of_other_lengths_are_rows_as_the_targets():
    batch = ([torch.rand(2, 4), torch.arange(4)], torch.arange(2))

    assert BatchSpec().count(batch) == 2


AMBIGUOUS = {
    "images and classes": (IMAGES[:2], CLASSES[:2]),
    "images and masks": (IMAGES[:2], [torch.rand(4, 5), torch.rand(5, 5)]),
    "two boxes in each of two": (torch.rand(2, 2, 4), [{"boxes": torch.rand(2, 4)}] * 2),
}


@pytest.mark.parametrize("batch", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_batch_with_two_readings_is_an_error_that_names_the_option(batch):
    with pytest.raises(ValueError, match=r"batch_layout='lists' to the Trainer .* 'tensors'"):
        BatchSpec().split(batch, [1, 1])

    lists, rows = BatchSpec(batch_layout="lists"), BatchSpec(batch_layout="tensors")
    assert [lists.count(part) for part in lists.split(batch, [1, 1])] == [1, 1]
    assert rows.count(batch) == next(tensors_of(batch)).shape[0]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: BatchSpec(batch_layout="rows"), "batch_layout='rows' must be one of"),
        (
            lambda: BatchSpec(batch_layout="examples").inputs({"x": EQUAL}),
            "batch_layout='examples' needs batches that are lists of examples, not a dict",
        ),
        (
            lambda: BatchSpec(batch_layout="lists").split((IMAGES, TARGETS[:2]), [1, 2]),
            r"batch\[1\] has 2 items and the input has 3 examples",
        ),
        (
            lambda: NAMES.replace(NAMED, inputs=IMAGES[:2]),
            "input_key='image' can't be replaced by 2 values in 3 examples",
        ),
        (lambda: NAMES.inputs([{"picture": EQUAL}]), "input_key='image' is not in the batch"),
    ],
)
def test_error_says_what_to_do(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize(
    "batch",
    [
        {"a": IMAGES, "b": EQUAL, "y": TARGETS},
        [{"a": a, "b": b, "y": y} for a, b, y in zip(IMAGES, EQUAL, TARGETS, strict=True)],
    ],
    ids=["lists", "examples"],
)
def test_several_inputs_are_counted_split_and_replaced(batch):
    spec = BatchSpec(("a", "b"), "y")

    first, second = spec.split(batch, [1, 2])
    replaced = spec.replace(batch, inputs=([1, 2, 3], [4, 5, 6]))

    assert (spec.count(batch), spec.count(second)) == (COUNT, 2)
    for part, of_part in ((first, slice(0, 1)), (second, slice(1, 3))):
        assert plain(list(spec.inputs(part)[0])) == plain(IMAGES[of_part])
        assert plain(list(spec.inputs(part)[1])) == plain(list(EQUAL[of_part]))
        assert plain(spec.targets(part)) == plain(TARGETS[of_part])
    assert spec.inputs(replaced) == ([1, 2, 3], [4, 5, 6])
    assert plain(spec.targets(replaced)) == plain(TARGETS)
