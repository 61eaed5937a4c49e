"""The laws of shorter sequences, and of the schedule of their length."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import pytest
import torch

from composable._support.tree import named_tensors
from composable.functional import set_sequence_length, warmed_up_length

EXAMPLES, TOKENS = 3, 7


def batch(**more):
    """Three texts of 7, 4 and 1 tokens, padded to 7, with labels and a class each."""
    ids = torch.arange(1, EXAMPLES * TOKENS + 1).reshape(EXAMPLES, TOKENS)
    mask = (torch.arange(TOKENS) < torch.tensor([[7], [4], [1]])).long()
    return {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "labels": torch.where(mask.bool(), ids, -100),
        "class": torch.tensor([0, 1, 2]),
        "name": ["a", "b", "c"],
        **more,
    }


all_options = pytest.mark.parametrize(
    "options", [{}, {"truncate": False}, {"preserve_end_of_sequence": True}], ids=str
)


def test_truncation_keeps_the_first_tokens_of_every_sequence():
    short = set_sequence_length(batch(), 3)

    assert short["labels"].tolist() == [[1, 2, 3], [8, 9, 10], [15, -100, -100]]
    assert torch.equal(short["class"], batch()["class"])
    assert short["name"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([1, 1, 1, 1, 0], [0, 1, 3]),
        ([0, 1, 1, 1, 1], [1, 2, 4]),
        ([0, 0, 1, 1, 1], [2, 3, 4]),  # the whole text
        ([0, 0, 0, 1, 0], [1, 2, 3]),
        ([0, 0, 0, 0, 0], [0, 1, 4]),  # nothing but padding is not padded
    ],
)
def test_preserves_the_last_token_that_is_not_padding(mask, expected):
    texts = {"input_ids": torch.arange(5)[None], "attention_mask": torch.tensor([mask])}

    short = set_sequence_length(texts, 3, preserve_end_of_sequence=True)

    assert short["input_ids"].tolist() == [expected]
    assert short["attention_mask"].tolist() == [[mask[i] for i in expected]]


def test_pieces_keep_the_order_of_tokens():
    ids = torch.arange(24).reshape(2, 12)

    pieces = set_sequence_length({"input_ids": ids, "y": ids[:, :1]}, 4, truncate=False)

    assert torch.equal(pieces["input_ids"], ids.reshape(-1, 4))
    assert pieces["y"].flatten().tolist() == [0, 0, 0, 12, 12, 12]


@pytest.mark.parametrize("preserved", [False, True])
def test_pieces_share_a_token_whose_label_is_learned_once(preserved):
    options = {"truncate": False, "preserve_end_of_sequence": preserved}  # pieces have all ends
    pieces = set_sequence_length(batch(), 3, **options)

    assert pieces["input_ids"][:3].tolist() == [[1, 2, 3], [3, 4, 5], [5, 6, 7]]
    assert pieces["labels"][:3].tolist() == [[1, 2, 3], [-100, 4, 5], [-100, 6, 7]]
    assert pieces["input_ids"][3:6].tolist() == [[8, 9, 10], [9, 10, 11], [9, 10, 11]]
    assert pieces["labels"][3:6].tolist() == [[8, 9, 10], [-100, -100, 11], [-100] * 3]


@pytest.mark.parametrize("name", ["mask", "pad_mask"])
def test_a_mask_whose_meaning_is_not_known_is_refused(name):
    texts = {"tokens": torch.zeros(2, 4), name: torch.ones(2, 4)}

    with pytest.raises(ValueError, match=f"'{name}' may be True for text or for padding"):
        set_sequence_length(texts, 3)


IDS = torch.arange(10).reshape(2, 5)


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ({"tags": IDS}, "int64"),  # of an unknown name
        ({"labels": IDS.byte()}, "uint8"),  # without room for ignored tokens
        ({"labels": IDS.float()}, "float32"),
        ({"labels": IDS.float(), "attention_mask": torch.ones(2, 5)}, "float32"),
    ],
)
def test_labels_that_segments_cannot_share_are_refused(labels, dtype):
    name = next(iter(labels))

    with pytest.raises(ValueError, match=rf"'{name}' of torch\.{dtype} must be signed integers"):
        set_sequence_length({"input_ids": IDS, **labels}, 3, truncate=False)

    whole = set_sequence_length({"input_ids": IDS, **labels}, 5, truncate=False)
    assert torch.equal(whole[name], labels[name])


def test_labels_of_an_unknown_name_may_be_passed():
    short = set_sequence_length({"tokens": IDS, "tags": IDS}, 3, truncate=False, labels=IDS)

    assert short["tags"][:2].tolist() == [[0, 1, 2], [-100, 3, 4]]


def test_regression_targets_are_split_into_pieces_that_do_not_overlap():
    texts = {"input_ids": torch.zeros(1, 4), "labels": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}

    assert set_sequence_length(texts, 2, truncate=False)["labels"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"'labels' of torch\.float32 must be signed integers"):
        set_sequence_length({**texts, "attention_mask": torch.ones(1, 4)}, 2, truncate=False)


@all_options
def test_cuts_embeddings_and_no_other_tensors(options):
    more = {
        "embeddings": torch.randn(EXAMPLES, TOKENS, 2),
        "image": torch.zeros(EXAMPLES, 9, 9),
        "scale": torch.tensor(2.0),
        "table": torch.zeros(TOKENS, 5),
    }

    short = set_sequence_length(batch(**more), 3, **options)

    rows = len(short["input_ids"])
    assert short["embeddings"].shape == (rows, 3, 2)
    assert short["image"].shape == (rows, 9, 9)
    assert short["scale"] is more["scale"]
    assert short["table"].shape == (TOKENS, 5)


@all_options
@pytest.mark.parametrize("length", [TOKENS, TOKENS + 1])
def test_returns_short_sequences_unchanged(options, length):
    texts = batch()

    assert set_sequence_length(texts, length, **options) is texts


@all_options
def test_shortened_tensors_are_contiguous(options):
    short = set_sequence_length(batch(), 3, **options)

    assert all(short[name].is_contiguous() for name in ("input_ids", "labels", "attention_mask"))


class Fixed(dict):
    """A mapping of a type of its own."""


@dataclass
class Texts:
    """A container that is neither a mapping nor a sequence."""

    texts: dict
    labels: torch.Tensor


Pair = namedtuple("Pair", ["texts", "labels"])
LABELS = batch()["labels"]


@pytest.mark.parametrize("options", [{}, {"truncate": False}], ids=str)
@pytest.mark.parametrize(
    "whole",
    [
        (batch(), LABELS),
        [batch(), {"y": LABELS}],
        Pair(batch(), LABELS),
        {"x": {"deep": [batch()]}, "y": LABELS},
        (LABELS, LABELS),
        UserDict(batch()),
        OrderedDict(batch()),
        Fixed(batch()),
        (MappingProxyType(batch()), 1),
        [Texts(batch(), LABELS)],
    ],
    ids=lambda whole: type(whole).__name__,
)
def test_batches_may_be_nested_in_containers_of_any_type(whole, options):
    short = set_sequence_length(whole, 3, **options)

    assert type(short) is type(whole)
    assert type(next(iter(short))) is type(next(iter(whole)))
    tensors = [dict(named_tensors(tree)) for tree in (whole, short)]
    assert all(t.shape[1] == TOKENS for t in tensors[0].values() if t.ndim > 1)
    assert all(t.shape[1] == 3 for t in tensors[1].values() if t.ndim > 1)
    if isinstance(whole, Pair) and options:  # its fields have names
        assert short.labels[2].tolist() == [-100, 6, 7]
        assert short.texts["input_ids"][2].tolist() == [5, 6, 7]


# The schedule


def test_length_grows_linearly_in_steps():
    lengths = [warmed_up_length(k / 100, max_seq_length=88) for k in range(40)]

    assert lengths[0] == 8
    assert lengths == [8 + 8 * (k // 3) for k in range(30)] + [88] * 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"duration": 0.0}, [1024] * 3),
        ({"min_seq_length": 64, "max_seq_length": 64}, [64] * 3),
        ({"min_seq_length": 8, "max_seq_length": 10}, [8, 8, 10]),
        ({"step_size": 5000}, [8, 8, 1024]),
        ({"duration": 1.0, "max_seq_length": 16}, [8, 8, 8]),
    ],
)
def test_schedule_with_extreme_options(options, expected):
    assert [warmed_up_length(t, **options) for t in (0.0, 0.29, 0.3)] == expected


@pytest.mark.parametrize("total", [30, 70, 90, 110, 1000])
def test_rounding_delays_no_step(total):
    options = {"duration": 0.3, "min_seq_length": 1, "max_seq_length": 31, "step_size": 1}
    for k in range(total):
        exact = min(1 + Fraction(k, total) / Fraction("0.3") * 30 // 1, 31)
        assert warmed_up_length(k / total, **options) == exact


@pytest.mark.parametrize("of_padding", [True, 1, 1.0, -torch.inf])
def test_a_padding_mask_of_any_dtype_marks_the_same_padding(of_padding):
    ids = torch.tensor([[0, 0, 5, 6], [0, 0, 0, 7]])
    mask = torch.where(ids == 0, of_padding, type(of_padding)(0))

    short = set_sequence_length({"input_ids": ids, "padding_mask": mask}, 2)

    assert short["input_ids"].tolist() == [[5, 6], [0, 7]]
