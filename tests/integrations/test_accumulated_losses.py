"""The loss of a step of several microbatches in an external loop: that of the whole, or refused."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from composable import SplitLossError
from composable.algorithms import LabelSmoothing
from tests.integrations.loops import Run, own_loop
from tests.support.models import mlp, same, weights

TARGETS = torch.tensor([0, 1, 2, 2, 2, 0, 1, 2, -100, 2, -100, -100])
SGD = partial(torch.optim.SGD, lr=0.1)
SIZES = [[4, 4, 4], [5, 4, 3], [5, 4], [2, 2, 2]]


def contrastive(outputs, targets):
    one = normalize(outputs)
    return cross_entropy(one @ one.T, torch.arange(len(one)))


def root(outputs, targets):
    return mse_loss(outputs, outputs.detach() * 0).sqrt()


LOSSES = {
    "mean": cross_entropy,
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2])),
    "another ignore_index": lambda x, y: cross_entropy(x, y.clamp(min=0), ignore_index=2),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
}


def parts_of(sizes):
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    parts = (one[: sum(sizes)].split(sizes) for one in (inputs, TARGETS))
    return list(zip(*parts, strict=True))


def accumulated(loss_fn, parts, algorithms=(), **options):
    sizes = {"accumulate_batches": 3, "epochs": 1, "batches": lambda: parts}
    run = Run(algorithms, mlp, loss_fn=loss_fn, options=options, optimizer=SGD, **sizes)
    t = own_loop(run)
    return t.state.loss.item(), t.model


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_step_is_that_of_the_whole_batch(name, sizes):
    parts = parts_of(sizes)

    loss, model = accumulated(LOSSES[name], parts)

    plain = mlp()
    inputs, targets = (torch.cat(one) for one in zip(*parts, strict=True))
    expected = LOSSES[name](plain(inputs), targets)
    expected.backward()
    SGD(plain.parameters()).step()
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(weights(model), weights(plain))


@pytest.mark.parametrize("loss_fn", [contrastive, root])
def test_loss_of_the_whole_alone_is_refused_before_a_weight_changes(loss_fn):
    model, parts = mlp(), parts_of([4, 4, 4])
    t = Run(loss_fn=loss_fn).adapter(model, SGD(model.parameters()))

    epoch = t.epoch(parts, accumulate_batches=3)
    inputs, _ = next(epoch)
    with pytest.raises(SplitLossError, match="loss_mean_over="):
        t.loss(model(inputs))
    accumulated(loss_fn, parts, loss_mean_over="examples")


def of_tokens(outputs, targets):
    return cross_entropy(outputs.mT, targets)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "none in the first part"])
def test_loss_of_a_microbatch_has_the_size_of_a_mean_of_tokens(masked):
    targets = torch.arange(16).reshape(2, 8) % 3
    parts = [(torch.randn(2, 8, 4), targets) for _ in range(2)]
    if masked:
        parts[0] = parts[0][0], torch.full_like(targets, -100)
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters())
    t = Run(loss_fn=of_tokens).adapter(model, optimizer)

    found = []
    for inputs, labels in t.epoch(parts, accumulate_batches=2):
        outputs = model(inputs)
        found.append((t.loss(outputs), of_tokens(outputs, labels)))
        (found[-1][0] / 2).backward()
        if len(found) == 2:
            optimizer.step()

    (one, mean), (other, second) = found
    size = 8 if masked else 1  # of the examples, of which none has a weight
    assert one.item() == (0 if masked else pytest.approx(mean.item()))
    assert other.item() == pytest.approx(size * second.item())
    expected = second if masked else (mean + second) / 2
    assert t.state.loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("algorithms", [[], [LabelSmoothing()]], ids=str)
def test_batches_without_labels_change_no_weight(algorithms):
    parts = [(inputs, torch.full_like(targets, -100)) for inputs, targets in parts_of([4, 4, 4])]

    _, model = accumulated(cross_entropy, parts, algorithms)

    assert same(weights(model), weights(mlp()))
