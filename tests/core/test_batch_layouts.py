"""Batches of lists, and lists of examples: read, replaced, counted, split, selected and moved."""

import pytest
import torch

from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import to_device
from composable.batches.spec import BatchSpec

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
