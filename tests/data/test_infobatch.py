"""InfoBatch: unbiased pruning, and runs with it that resume in mid-epoch."""

import copy
from collections import Counter

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader

from composable import Event
from composable import algorithms as A
from composable.data import GlobalBatchSampler, Indexed, InfoBatch, InfoBatchSampler
from composable.functional import apply_infobatch, draw_infobatch, infobatch
from composable.testing import check_algorithm
from tests.support.campaign import drawn
from tests.support.data import examples
from tests.support.models import mlp, same, weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

COUNT = 24

# --- the function ---


def test_weights_make_the_pruned_sum_unbiased():
    losses = torch.tensor([0.1, 0.5, 0.3, 4.0, 0.2, 2.0], dtype=torch.float64)
    generator, total = torch.Generator().manual_seed(0), torch.zeros(6, dtype=torch.float64)

    for _ in range(4000):
        kept, weight = infobatch(losses, prune=0.25, generator=generator)
        assert kept[[3, 5]].all()
        total += kept * weight

    assert_close(total / 4000, torch.ones(6, dtype=torch.float64), rtol=0, atol=0.03)


def test_examples_without_a_loss_are_kept_and_do_not_change_the_mean():
    nan = torch.nan
    losses = torch.tensor([1.0, nan, 3.0, nan])

    kept, weight = apply_infobatch(losses, torch.ones(4, dtype=torch.bool), prune=0.75)

    assert kept.tolist() == [False, True, True, True]
    assert weight.tolist() == [4.0, 1.0, 1.0, 1.0]
    assert infobatch(torch.full((3,), nan)).kept.all()


def test_nothing_is_pruned_at_zero():
    kept, weight = infobatch(torch.rand(50), prune=0.0)

    assert kept.all()
    assert (weight == 1).all()


def test_draw_must_fit_the_losses():
    with pytest.raises(ValueError, match="must be as from draw_infobatch"):
        apply_infobatch(torch.rand(3), draw_infobatch(4))


# --- the sampler ---


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_sampler_is_the_global_one_without_the_pruned_examples(last_batch):
    options = {"batch_size": 4, "seed": 3, "last_batch": last_batch}
    sampler, plain = InfoBatchSampler(11, **options), GlobalBatchSampler(11, **options)
    assert list(sampler) == list(plain)
    sampler.kept = torch.arange(11) % 3 != 0

    batches = list(sampler)

    order = [i for batch in GlobalBatchSampler(11, batch_size=4, seed=3) for i in batch if i % 3]
    whole = len(order) if last_batch == "keep" else len(order) // 4 * 4
    assert [i for batch in batches for i in batch] == order[:whole]
    assert list(sampler.batches_from(1)) == batches[1:]


def test_sampler_has_no_length():
    with pytest.raises(TypeError, match="the number of batches of an epoch varies"):
        len(InfoBatchSampler(4, batch_size=2, seed=0))


# --- runs ---


def loader(sampler, workers=0):
    inputs, targets = examples(COUNT)
    data = Indexed(list(zip(inputs, targets, strict=True)))
    return DataLoader(data, batch_sampler=sampler, num_workers=workers)


def trainer(prune=0.5, workers=0, end=0.8, **options):
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
    more = options.pop("algorithms", [])
    return make_trainer(
        mlp(),
        loader(sampler, workers),
        algorithms=[InfoBatch(sampler, prune=prune, end=end), *more],
        max_duration="5ep",
        **options,
    )


def test_pruned_epochs_have_fewer_batches_and_the_ends_all_examples():
    watch = Watch(Event.AFTER_LOSS, read=lambda state: state.batch[2].tolist())

    state = trainer(callbacks=watch).fit()

    seen, memory = watch.values, state.memory["InfoBatch"]
    assert not memory["losses"].isnan().any()
    starts, done = [0], 0
    for n, indices in enumerate(seen):
        done += len(indices)
        if len(indices) < 4 or n == len(seen) - 1:
            starts.append(n + 1)
    assert sorted(i for batch in seen[:6] for i in batch) == list(range(COUNT))
    assert sorted(i for batch in seen[-6:] for i in batch) == list(range(COUNT))
    assert len(seen) < 5 * 6
    assert (memory["weights"] == 1).all()
    assert done == state.timestamp.sample


def test_loss_is_the_weighted_mean_and_the_losses_are_stored():
    sampler = InfoBatchSampler(COUNT, batch_size=COUNT, seed=5)
    model = mlp()
    watch = Watch(Event.AFTER_LOSS, read=lambda state: float(state.loss.detach()))
    run = make_trainer(
        model, loader(sampler), algorithms=[InfoBatch(sampler)], callbacks=watch,
        optimizers=lambda p: torch.optim.SGD(p, lr=0.0), max_duration="2ep",
    )  # fmt: skip
    inputs, targets = examples(COUNT)
    each = cross_entropy(model(inputs), targets, reduction="none").detach()

    memory = run.fit().memory["InfoBatch"]

    low = each < each.mean()
    assert torch.equal(memory["weights"], torch.where(low, 2.0, 1.0))
    assert memory["kept"][~low].all()
    kept = memory["kept"]
    assert watch.values[0] == pytest.approx(float(each.mean()))
    assert watch.values[1] == pytest.approx(float((each * memory["weights"])[kept].mean()))
    assert_close(memory["losses"], each)


def test_nothing_pruned_is_the_run_without_it():
    plain = make_trainer(
        mlp(), loader(InfoBatchSampler(COUNT, batch_size=4, seed=5)), max_duration="5ep"
    ).fit()

    assert same(weights(plain.model), weights(trainer(prune=0.0).fit().model))


@pytest.mark.parametrize("options", [{}, {"workers": 1}, {"grad_accum": 2}], ids=str)
def test_run_resumes_bit_for_bit_in_mid_epoch(options, tmp_path):
    options = {"algorithms": [A.LabelSmoothing(0.1), A.EMA(half_life="2ba")], **options}
    for batch in drawn([8, 20], 1):
        folder = tmp_path / str(batch)
        resumes_exactly(lambda **more: trainer(**options, **more).fit(), folder, batch)


def test_two_runs_of_one_sampler_are_equal():
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
    one, other = (
        make_trainer(mlp(), loader(sampler), algorithms=[InfoBatch(sampler)], max_duration="3ep")
        for _ in range(2)
    )

    assert same(weights(one.fit().model), weights(other.fit().model))


def test_microbatches_give_the_gradients_of_the_whole_batch():
    first, second = trainer().fit(), trainer(microbatch_size=3).fit()

    assert_close(weights(first.model), weights(second.model), rtol=1e-4, atol=1e-5)


def test_bfloat16_and_loss_kinds():
    state = trainer(precision="amp_bf16").fit()

    assert state.memory["InfoBatch"]["losses"].dtype is torch.float32


def test_algorithm_keeps_the_laws():
    sampler = InfoBatchSampler(COUNT, batch_size=8, seed=5)
    algorithm = InfoBatch(sampler)
    assert copy.deepcopy(algorithm).sampler is sampler

    report = check_algorithm(
        algorithm, model=mlp(), dataloader=loader(sampler), loss_fn=cross_entropy
    )

    assert "memory" in report.checked


@pytest.mark.parametrize(
    "options",
    [{"reduction": "sum"}, {"weight": torch.tensor([1.0, 9.0, 0.1])}, {"ignore_index": 0}],
    ids=str,
)
def test_loss_that_is_no_mean_over_examples_is_refused(options):
    with pytest.raises(
        ValueError, match="InfoBatch needs a loss that is a mean over examples: a batch's is "
    ):
        trainer(loss_fn=torch.nn.CrossEntropyLoss(**options)).fit()


def test_sampler_of_another_loader_is_an_error():
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
    other = InfoBatchSampler(COUNT, batch_size=4, seed=5)

    with pytest.raises(ValueError, match="the sampler of InfoBatch is not the training lo"):
        make_trainer(mlp(), loader(other), algorithms=[InfoBatch(sampler)]).fit()


def test_evaluations_by_the_same_loader_have_all_examples_and_change_nothing():
    def run(**options):
        sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
        data, counts = loader(sampler), Counter()
        watch = Watch(
            Event.EVAL_BATCH_END,
            read=lambda state: counts.update({state.timestamp.batch: len(state.targets)}),
        )
        state = make_trainer(
            mlp(),
            data,
            algorithms=[InfoBatch(sampler, prune=0.9, end=1.0)],
            callbacks=watch,
            max_duration="4ep",
            **{key: data if key == "eval_dataloader" else one for key, one in options.items()},
        ).fit()
        return state, set(counts.values()), data

    state, counts, data = run(eval_dataloader=True, eval_interval="2ba")

    assert state.timestamp.sample < 4 * COUNT
    assert counts == {COUNT}
    assert len(torch.cat([batch[1] for batch in data])) == COUNT
    assert same(weights(state.model), weights(run()[0].model))


@pytest.mark.parametrize(("last_batch", "kept"), [("drop", 3), ("keep", 0)])
def test_epoch_without_a_batch_is_an_error(last_batch, kept):
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5, last_batch=last_batch)
    sampler.kept = torch.arange(COUNT) < kept

    with pytest.raises(ValueError, match=f"epoch 0 keeps {kept} of {COUNT} examples, .*prune"):
        list(sampler)


def test_batches_without_indices_are_refused():
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
    data = list(zip(*examples(COUNT), strict=True))

    with pytest.raises(ValueError, match="InfoBatch needs the index of each example"):
        make_trainer(
            mlp(), DataLoader(data, batch_sampler=sampler), algorithms=[InfoBatch(sampler)]
        ).fit()


def test_memory_of_another_data_set_is_refused():
    sampler = InfoBatchSampler(COUNT, batch_size=4, seed=5)
    state = trainer().fit()
    fine = state.memory["InfoBatch"]

    InfoBatch(sampler).check_memory(fine, state)
    for bad in (3, {"losses": fine["losses"]}, {**fine, "kept": fine["kept"][:2]}):
        with pytest.raises(ValueError, match=r"must have (the entries|one entry)"):
            InfoBatch(sampler).check_memory(bad, state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_losses_in_low_precision_are_compared_with_their_mean(dtype):
    losses = torch.tensor([1.0, 3.0]).repeat(50_000)  # the sum is above the largest float16

    pruning = apply_infobatch(losses.to(dtype), torch.ones(len(losses)).bool())

    assert torch.equal(pruning.kept, losses == 3)
