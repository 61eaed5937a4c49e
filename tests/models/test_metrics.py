"""Accuracy of every shape of logits and targets."""

import pytest
import torch

from composable.metrics import Averages, accuracy

ONE_LOGIT = torch.tensor([2.0, -1.0, 3.0])
LOGITS = torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0]])
TOKENS = LOGITS.expand(4, 3, 2)  # [batch, tokens, classes]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("outputs", [(3,), (3, 1)])
@pytest.mark.parametrize("targets", [(3,), (3, 1)])
def test_one_logit_predicts_class_1_where_it_is_positive(outputs, targets, dtype):
    right = torch.tensor([1, 0, 1]).to(dtype).reshape(targets)

    assert accuracy(ONE_LOGIT.reshape(outputs), right).tolist() == [1, 1, 1]
    assert accuracy(-ONE_LOGIT.reshape(outputs), right).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        (LOGITS, [0, 1, 0], [1, 1, 0]),
        (LOGITS, [-100, 1, 0], [1, 0]),
        (ONE_LOGIT, [-100, 0, 0], [1, 0]),
        (LOGITS, [-100, -100, -100], []),
        (TOKENS, [[0, 1, 1], [0, 1, 0], [-100, 1, 0], [-100, -100, -100]], [1, 2 / 3, 1 / 2]),
        (TOKENS.mT, [[0, 1, 1], [0, 1, 0], [-100, 1, 0], [-100, -100, -100]], [1, 2 / 3, 1 / 2]),
        (ONE_LOGIT[:, None, None].expand(3, 1, 2), [[1, 1], [0, 1], [-100, 0]], [1, 0.5, 0]),
    ],
)
def test_positions_without_a_label_are_not_counted(outputs, targets, expected):
    found = accuracy(outputs, torch.tensor(targets))

    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_average_is_over_the_examples_with_a_label():
    averages = Averages({"accuracy": accuracy})
    for targets in ([0, 1, -100], [-100, -100, 0]):
        averages.update(LOGITS, torch.tensor(targets), 3)

    assert averages.compute()["accuracy"].item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (3, 2, 1), ()])
def test_rejects_targets_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"outputs of shape \(3, 4\) must be logits"):
        accuracy(torch.zeros(3, 4), torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("value", [torch.tensor(1 + 2j), torch.ones(3, dtype=torch.complex64), 1j])
def test_complex_metric_is_refused_by_its_name(value):
    averages = Averages({"phase": lambda outputs, targets: value})

    with pytest.raises(ValueError, match=r"metric 'phase' is complex.*return or log its \.real"):
        averages.update(LOGITS, torch.tensor([0, 1, 0]), 3)
