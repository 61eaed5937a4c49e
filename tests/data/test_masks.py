"""Recorded masks: a run with them has the batches of the run that recorded them."""

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

from composable import Event, Timestamp, during
from composable import algorithms as A
from composable.data import Indexed, ReplayMasks, load_masks
from composable.data.grouping import batches_of
from composable.data.masks import RecordedMasks, checksum_of, merge_rows, row_of
from composable.distributed import DDP
from composable.testing import check_algorithm
from tests.support.data import batches, examples, shuffling_loader
from tests.support.models import linear, mlp, same, weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer, sgd

LOADER = partial(shuffling_loader, 22, 6)


def run(*algorithms, loader=None, **options):
    """Return the state after a run, and its batches."""
    watch = Watch(Event.BATCH_START, read=lambda state: batches_of(state.batch))
    loader = LOADER() if loader is None else loader
    trainer = make_trainer(
        mlp(dropout=0.3), loader, algorithms=algorithms, callbacks=[watch], **options
    )
    return trainer.fit(), [part for batch in watch.values for pair in batch for part in pair]


def recorded(**options):
    return run(A.ProxyFilter(linear(1), sgd, interval=2), **options)


# --- checksums and masks ---


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_checksum_depends_on_every_value_and_on_the_order(dtype):
    batch = {"x": (10 * torch.rand(4, 3)).to(dtype), "y": torch.arange(4)}
    batch["x"][0, 0] = 0
    one = checksum_of(batch)

    changed = {**batch, "x": batch["x"].clone()}
    changed["x"][0, 0] = 1
    assert one == checksum_of({"x": batch["x"].clone(), "y": batch["y"]})
    assert one != checksum_of(changed)
    assert one != checksum_of({name: tensor.flip(0) for name, tensor in batch.items()})


def test_masks_of_any_size_are_kept_in_bits():
    kept = [torch.tensor([0, 4]), torch.arange(9), torch.tensor([15])]
    sizes = [5, 9, 16]
    rows = [
        row_of(i, torch.zeros(n), n, k) for i, (n, k) in enumerate(zip(sizes, kept, strict=True))
    ]

    merged = merge_rows(merge_rows(None, rows[:1]), rows[1:])
    columns = (tuple(merged[name].tolist()) for name in ("steps", "sizes", "checksums"))
    masks = RecordedMasks(17, *columns, bytes(merged["bits"].tolist()))

    assert len(masks.bits) == 1 + 2 + 2
    assert all(torch.equal(masks.kept(i), one) for i, one in enumerate(kept))


# --- runs ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad_accum": 2},
        {"microbatch_size": 1},
        {"accumulate_batches": 2},
        {"parallel": DDP(shards=2)},
        {"parallel": DDP(shards=2, exact=True), "accumulate_batches": 2},
        {"precision": "amp_bf16"},
        {"loss_fn": torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))},
    ],
    ids=str,
)
def test_replayed_run_has_the_batches_and_the_weights_of_the_recorded_one(options):
    state, seen = recorded(**options)

    again, replayed = run(ReplayMasks(load_masks(state)), **options)

    assert len(seen) == len(replayed)
    assert all(map(torch.equal, seen, replayed))
    assert same(weights(state.model), weights(again.model))


@pytest.mark.parametrize("options", [{}, {"accumulate_batches": 2, "parallel": DDP(shards=2)}])
def test_replayed_run_resumes_bit_for_bit_in_mid_epoch(options, tmp_path):
    replay = ReplayMasks(load_masks(recorded(**options)[0]))

    resumes_exactly(lambda **more: run(replay, **options, **more)[0], tmp_path, 1)


def test_masks_of_a_checkpoint_are_those_of_the_state(tmp_path):
    state, _ = recorded(save_folder=tmp_path)
    (point,) = (p for p in tmp_path.glob("ep*-ba8"))

    assert load_masks(point) == load_masks(state)


def test_masks_are_merged_after_many_steps(monkeypatch):
    plain = load_masks(recorded()[0])
    monkeypatch.setattr("composable.algorithms.proxy_filter._MOST_ROWS", 3)

    state, _ = recorded()

    assert len(state.memory["ProxyFilter"]["rows"]) == 2
    assert load_masks(state) == plain


def test_a_part_of_a_run_is_filtered_and_replayed():
    def in_part(algorithm):
        return during("0.25dur", "0.75dur", algorithm)

    state, seen = run(in_part(A.ProxyFilter(linear(1), sgd)))

    again, replayed = run(in_part(ReplayMasks(load_masks(state))))

    assert all(map(torch.equal, seen, replayed))
    assert same(weights(state.model), weights(again.model))


def test_replay_keeps_the_laws():
    data = batches([8, 6])
    options = {"model": mlp(), "dataloader": data, "loss_fn": torch.nn.functional.cross_entropy}
    state = make_trainer(
        mlp(), data, algorithms=A.ProxyFilter(linear(1), sgd), max_duration="4ep", seed=0
    ).fit()

    report = check_algorithm(ReplayMasks(load_masks(state)), seed=0, **options)

    assert "memory" in report.checked


def test_indices_of_examples_are_filtered_with_them():
    inputs, targets = examples(12)
    data = Indexed(list(zip(inputs, targets, strict=True)))
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)

    make_trainer(
        mlp(),
        DataLoader(data, batch_size=6),
        algorithms=[A.ProxyFilter(linear(1), sgd)],
        callbacks=[watch],
    ).fit()

    assert all(torch.equal(kept, inputs[index]) for kept, _, index in watch.values)


# --- another run ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 3}, "recorded with the seed 17, and this run has the seed 3: pass seed=17"),
        (
            {"max_duration": "3ep"},
            "none for step 8 .* last one is for step 7: train for as long as",
        ),
        ({"loader": batches([6, 6, 6, 4])}, "recorded on other batches than those up to step 0"),
        ({"loader": batches([4, 6])}, "one for 6 examples at step 0, and the batch has 4"),
        ({"accumulate_batches": 2}, "has 1 for a process at step 0, and this run has more than 1"),
    ],
    ids=str,
)
def test_masks_of_another_run_are_refused(options, message):
    masks = load_masks(recorded()[0])

    with pytest.raises(ValueError, match=message):
        run(ReplayMasks(masks), **options)


def test_fewer_batches_in_a_step_are_refused():
    masks = load_masks(recorded(accumulate_batches=2)[0])

    with pytest.raises(ValueError, match="has 2 for a process at step 0, and this run has 1"):
        run(ReplayMasks(masks))


def test_other_batches_are_found_at_the_end_of_the_epoch_where_the_host_must_not_wait():
    state, _ = recorded()
    replay = ReplayMasks(load_masks(state))
    known = {"step": 3, "part": 1, "wrong": torch.tensor(True)}
    state = state.remember(replay.name, known)

    for event in (Event.EPOCH_END, Event.FIT_END):
        with pytest.raises(ValueError, match="other batches than those up to step 3"):
            replay(event, state)
    right = next(iter(LOADER()))
    mask = (0,), (len(right[1]),), (int(checksum_of(right)),), b"\x01"
    with pytest.raises(ValueError, match="other batches than those up to step 0"):
        ReplayMasks(RecordedMasks(17, *mask))(
            Event.AFTER_DATALOADER, state.evolve(batch=right, timestamp=Timestamp())
        )


def test_what_has_no_masks_is_refused(tmp_path):
    state, _ = recorded()
    plain, _ = run(save_folder=tmp_path)

    with pytest.raises(ValueError, match=r"no masks of 'Other'.*record=True"):
        load_masks(state, algorithm="Other")
    for source in (plain, next(tmp_path.glob("ep*-ba*"))):
        with pytest.raises(ValueError, match="no masks of 'ProxyFilter'"):
            load_masks(source)
    with pytest.raises(TypeError, match="masks='file' must be recorded masks"):
        ReplayMasks("file")


def test_memory_of_another_algorithm_is_refused():
    state, _ = recorded()

    with pytest.raises(ValueError, match="must have the entries part, step, wrong"):
        ReplayMasks(load_masks(state)).check_memory({"step": 3}, state)
