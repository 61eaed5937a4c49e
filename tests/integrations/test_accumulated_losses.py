"""The loss of a step of several microbatches in an external loop: that of the whole, or refused."""

from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize
from torch.utils.data import DataLoader, IterableDataset

from composable import SplitLossError
from composable.algorithms import LabelSmoothing, MixUp
from tests.integrations.loops import BY_HAND, LOOPS, Run, own_loop, trained
from tests.support.models import mlp, same, weights

TARGETS = torch.tensor([0, 1, 2, 2, 2, 0, 1, 2, -100, 2, -100, -100])
SGD = partial(torch.optim.SGD, lr=0.1)


def contrastive(outputs, targets):
    one = normalize(outputs)
    return cross_entropy(one @ one.T, torch.arange(len(one)))


def root(outputs, targets):
    return mse_loss(outputs, outputs.detach() * 0).sqrt()


def parts_of(sizes):
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    parts = (one[: sum(sizes)].split(sizes) for one in (inputs, TARGETS))
    return list(zip(*parts, strict=True))


def accumulated(loss_fn, parts, algorithms=(), accumulate_batches=3, **options):
    sizes = {"accumulate_batches": accumulate_batches, "epochs": 1, "batches": lambda: parts}
    run = Run(algorithms, mlp, loss_fn=loss_fn, options=options, optimizer=SGD, **sizes)
    t = own_loop(run)
    return t.state.loss.item(), t.model


class Stream(IterableDataset):
    def __iter__(self):
        inputs, targets = (torch.cat(one) for one in zip(*parts_of([4, 4, 4]), strict=True))
        return zip(inputs, targets, strict=True)

    def __len__(self):
        return 12


@pytest.mark.parametrize("loop", BY_HAND)
def test_last_short_step_on_a_stream_is_that_of_the_trainer(loop):
    run = Run((), mlp, accumulate_batches=2, epochs=1, optimizer=SGD)
    run = attrs.evolve(run, batches=lambda: DataLoader(Stream(), 4))

    t = LOOPS[loop](run)

    assert t.state.timestamp.batch == 2
    torch.testing.assert_close(trained(t), run.by_trainer())


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


def batches_of(t, way, parts):
    """Iterate as a loop of the user does, or as the Trainer of another library."""
    if way == "t.epoch":
        yield from t.epoch(parts, accumulate_batches=2)
        return
    t.follow(*t.state.optimizers, loader_length=2, accumulate_batches=2)
    t.start_epoch()
    t.watch_steps()
    yield from map(t.start_batch, parts)


@pytest.mark.parametrize("way", ["t.epoch", "t.start_batch"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "none in the first part"])
def test_loss_of_a_microbatch_has_the_size_of_a_mean_of_tokens(masked, way):
    targets = torch.arange(16).reshape(2, 8) % 3
    parts = [(torch.randn(2, 8, 4), targets) for _ in range(2)]
    if masked:
        parts[0] = parts[0][0], torch.full_like(targets, -100)
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters())
    t = Run(loss_fn=of_tokens).adapter(model, optimizer)

    found = []
    for inputs, labels in batches_of(t, way, parts):
        outputs = model(inputs)
        found.append((t.loss(outputs), of_tokens(outputs, labels)))
        (found[-1][0] / 2).backward()
        if len(found) == 2:
            optimizer.step()

    (one, mean), (other, second) = found
    size = {"t.epoch": 2, "t.start_batch": 32}[way] if masked else 1  # the second has all labels
    assert one.item() == (0 if masked else pytest.approx(mean.item()))
    assert other.item() == pytest.approx(size * second.item())
    expected = second if masked else (mean + second) / 2
    assert t.state.loss.item() == pytest.approx(expected.item())


def by_labels_and_examples(outputs, targets):
    return cross_entropy(outputs, targets) + 0.1 * outputs.square().mean()


@pytest.mark.parametrize(
    ("way", "algorithms", "reason"),
    [
        ("t.start_batch", [], "the loop fetches batches one by one"),
        ("t.epoch", [MixUp(interpolate_loss=True)], "MixUp may change batches"),
    ],
)
def test_terms_of_unknown_totals_are_refused_before_a_weight_changes(way, algorithms, reason):
    model = mlp()
    t = Run(algorithms, loss_fn=by_labels_and_examples).adapter(model, SGD(model.parameters()))
    parts = parts_of([4, 4])

    batches = batches_of(t, way, parts)
    inputs, _ = next(batches)
    with pytest.raises(SplitLossError, match=reason):
        t.loss(model(inputs))


def test_gradients_before_the_step_are_those_of_the_whole():
    model, parts = mlp(), parts_of([5, 4, 3])
    t = Run(loss_fn=by_labels_and_examples).adapter(model, SGD(model.parameters()))

    for inputs, _ in t.epoch(parts, accumulate_batches=4):
        (t.loss(model(inputs)) / 4).backward()

    plain = mlp()
    inputs, targets = (torch.cat(one) for one in zip(*parts, strict=True))
    by_labels_and_examples(plain(inputs), targets).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    torch.testing.assert_close(*zip(*((a.grad, b.grad) for a, b in pairs), strict=True))


@pytest.mark.parametrize("count", [2, 3])
def test_adapters_on_one_loader_have_the_terms_of_the_whole(count):
    models, parts = [mlp(), mlp()], parts_of([3, 2, 4, 1, 2])
    adapters = [
        Run(loss_fn=by_labels_and_examples).adapter(one, SGD(one.parameters())) for one in models
    ]
    t, u = adapters

    for i, (inputs, _) in enumerate(t.epoch(parts, accumulate_batches=count, others=[u]), 1):
        for one in adapters:
            (one.loss(one.model(inputs)) / count).backward()
            if i % count == 0 or i == len(parts):
                one.state.optimizers[0].step()
                one.state.optimizers[0].zero_grad()

    _, alone = accumulated(by_labels_and_examples, parts, accumulate_batches=count)
    assert same(weights(models[0]), weights(alone))
    assert same(weights(models[1]), weights(alone))


@pytest.mark.parametrize("algorithms", [[], [LabelSmoothing()]], ids=str)
def test_batches_without_labels_change_no_weight(algorithms):
    parts = [(inputs, torch.full_like(targets, -100)) for inputs, targets in parts_of([4, 4, 4])]

    _, model = accumulated(cross_entropy, parts, algorithms)

    assert same(weights(model), weights(mlp()))
