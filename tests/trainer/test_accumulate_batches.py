"""`accumulate_batches`: several batches of the loader make one step."""

import attrs
import pytest
import torch
from torch.testing import assert_close

from composable import Algorithm, Control, Event, choose
from composable.algorithms import (
    EMA,
    SAM,
    GradientClipping,
    MixUp,
    SelectiveBackprop,
)
from composable.checkpoint import MismatchError
from composable.core.key import Key
from composable.data import seeded_batches
from composable.data.grouping import BatchGroup
from composable.functional import mixup
from composable.loggers import InMemoryLogger
from composable.optim import cosine
from composable.resume import ChangedRunWarning
from composable.utils.reproducibility import preserve_rng
from tests.support.data import batches, noisy_loader, stream
from tests.support.models import mlp, same
from tests.support.observers import Asks, Trace, Watch
from tests.support.runs import make_trainer, trained


@attrs.frozen
class FreezesFirst(Algorithm):
    """Freezes the first layer."""

    events = frozenset({Event.BEFORE_TRAIN_BATCH})
    writes = frozenset({"frozen"})

    def apply(self, event, state):
        return state.evolve(frozen=frozenset({"0.weight", "0.bias"}))


DOUBLE = torch.float64
METHODS = {
    "none": list,
    "clipping": lambda: [GradientClipping("norm", 0.1)],
    "average": lambda: [EMA("2ba")],
    "sam": lambda: [SAM()],
    "frozen layers": lambda: [FreezesFirst()],
}


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("count", "n"), [(24, 2), (24, 3), (26, 2), (22, 4)])
def test_equals_microbatches_of_one_batch_bit_for_bit(make, count, n):
    whole = trained(mlp(dropout=0.3), batches(count, 4 * n), microbatch_size=4, algorithms=make())

    grouped = trained(mlp(dropout=0.3), batches(count, 4), accumulate_batches=n, algorithms=make())
    assert same(grouped, whole)


@pytest.mark.parametrize("precision", ["amp_bf16", "amp_fp16"])
def test_equals_microbatches_in_a_precision(precision):
    options = {"precision": precision, "algorithms": [SAM()]}
    whole = trained(mlp(), batches(24, 8), microbatch_size=4, **options)

    assert same(trained(mlp(), batches(24, 4), accumulate_batches=2, **options), whole)


def gradients(loader, **options):
    watch = Watch(
        Event.AFTER_TRAIN_BATCH,
        read=lambda s: ({n: g.clone() for n, g in s.current_gradients().items()}, s.loss),
    )
    model = mlp(dtype=DOUBLE)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    make_trainer(
        model, loader, optimizers=still, callbacks=watch, max_duration="1ep", **options
    ).fit()
    return watch.values


def test_events_counts_and_schedule_are_those_of_steps():
    trace, memory = Trace(), InMemoryLogger()
    trainer = make_trainer(
        loader=batches([4, 4, 4, 4, 2]),
        accumulate_batches=2,
        grad_accum=2,
        callbacks=trace,
        loggers=memory,
        schedulers=cosine(),
        count_tokens=lambda batch: 10 * len(batch[1]),
        eval_dataloader=batches(4),
        eval_interval="2ba",
    )
    state = trainer.fit()

    now = state.timestamp
    assert (now.epoch, now.batch, now.sample, now.token, state.epoch_length) == (2, 6, 36, 360, 3)
    counts = {event: trace.events.count(event) for event in Event}
    assert counts[Event.BEFORE_DATALOADER] == 6 + 2
    assert counts[Event.AFTER_DATALOADER] == counts[Event.BEFORE_TRAIN_BATCH] == 10
    assert counts[Event.BEFORE_FORWARD] == 20
    assert counts[Event.BATCH_START] == counts[Event.BATCH_END] == 6
    assert counts[Event.EVAL_START] == 3
    samples = [
        now.sample
        for e, now in zip(trace.events, trace.timestamps, strict=True)
        if e is Event.BATCH_END
    ]
    assert samples == [8, 16, 18, 26, 34, 36]
    plain = InMemoryLogger()
    make_trainer(loader=batches([8, 8, 2]), schedulers=cosine(), loggers=plain).fit()
    assert memory.series("lr-SGD") == plain.series("lr-SGD")


def test_an_algorithm_acts_on_each_batch_with_random_numbers_of_its_own():
    loader, watch = batches(8, 4), Watch(Event.BATCH_START, read=lambda s: s.batch)
    after = Watch(Event.AFTER_TRAIN_BATCH, read=lambda s: s.batch)
    make_trainer(
        loader=loader,
        accumulate_batches=2,
        algorithms=MixUp(),
        callbacks=[watch, after],
        max_duration="1ba",
    ).fit()

    assert [x.batches for x in watch.values] == [tuple(loader)]
    key = Key(17)
    for i, (inputs, targets) in enumerate(loader):
        own = (key.fold("batch", i) if i else key).fold("MixUp", 0).generator()
        expected = mixup(inputs, targets, generator=own)
        assert torch.equal(after.values[0].batches[i][0], expected.inputs)


def doubled(event):
    """Return an algorithm that doubles the loss at an event."""

    class Doubled(Algorithm):
        events = frozenset({event})
        writes = frozenset({"loss_fn"})

        def apply(self, _, state):
            inner = state.loss_fn
            return state.evolve(loss_fn=lambda outputs, batch: 2 * inner(outputs, batch))

    return Doubled()


@pytest.mark.parametrize(
    "event", [Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH]
)
def test_a_changed_loss_belongs_to_its_batch(event):
    loader = batches(12, 4, dtype=DOUBLE)  # the last step has one batch
    once = gradients(loader, accumulate_batches=2)
    twice = gradients(loader, accumulate_batches=2, algorithms=doubled(event))

    for (_, whole), (_, changed) in zip(once, twice, strict=True):
        assert_close(changed, 2 * whole)


def test_selected_examples_have_the_weight_of_what_is_left():
    watch = Watch(Event.AFTER_TRAIN_BATCH, read=lambda s: [len(b[1]) for b in s.batch.batches])
    selects = SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0)
    make_trainer(
        loader=batches([8, 4]),
        accumulate_batches=2,
        algorithms=[selects, SAM()],
        callbacks=watch,
        max_duration="1ep",
    ).fit()
    assert watch.values == [[4, 2]]


def test_batches_are_those_of_seeded_batches():
    watch = Watch(Event.AFTER_DATALOADER, read=lambda state: state.inputs)
    make_trainer(loader=noisy_loader(22), accumulate_batches=4, callbacks=watch).fit()

    with preserve_rng():  # an epoch has two steps of four batches, of which the last has two
        first = list(seeded_batches(noisy_loader(22), 17, epoch=0))
        second = list(seeded_batches(noisy_loader(22), 17, epoch=1, first_step=2 * 4))
    expected = [inputs for inputs, _ in first + second]
    assert len(watch.values) == len(expected) == 12
    assert all(map(torch.equal, watch.values, expected))


def test_the_number_changes_only_where_a_step_begins(tmp_path):
    def build(n, **options):
        return make_trainer(loader=batches(16), accumulate_batches=n, **options)

    build(2, save_folder=tmp_path / "steps", save_interval="1ba").fit()
    build(2, save_folder=tmp_path / "epochs").fit()
    with pytest.raises(
        MismatchError, match=r"accumulate_batches=2 and .*; with 4 and None, no step"
    ):
        build(4, load_path=tmp_path / "steps" / "ep0-ba1")
    with pytest.warns(ChangedRunWarning, match=r"accumulate_batches: 2 -> 4"):
        resumed = build(4, load_path=tmp_path / "epochs" / "ep1-ba2")
    assert resumed.fit().timestamp.batch == 3


def test_ends_an_epoch_between_steps():
    ends = Asks(Event.BATCH_END, 0, Control.END_EPOCH)
    state = make_trainer(
        loader=stream(20), accumulate_batches=2, callbacks=ends, max_duration="2ep"
    ).fit()
    assert (state.timestamp.batch, state.epoch_length) == (1 + 3, None)


def test_one_composes_nothing():
    run = make_trainer(accumulate_batches=1)._run
    assert run.after_dataloader is None
    assert not run.microbatches.split


def test_a_group_has_no_input():
    seen = []

    def reads(event, state, logger):
        if event is Event.BATCH_START:
            assert type(state.batch) is BatchGroup
            with pytest.raises(ValueError, match="accumulate_batches"):
                seen.append(state.inputs)

    make_trainer(accumulate_batches=2, callbacks=reads).fit()


@attrs.frozen(repr=False)
class Note(Algorithm):
    """Records the batches in which it acts."""

    seen: list = attrs.field(factory=list, kw_only=True)
    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.AFTER_LOSS, Event.AFTER_TRAIN_BATCH})
    reads = frozenset({"timestamp"})
    writes = frozenset()

    def apply(self, event, state):
        self.seen.append((state.timestamp.batch, self.name))
        return state


def test_choose_draws_one_part_for_all_batches_of_a_step():
    seen = []
    parts = [Note(name=name, seen=seen) for name in ("one", "other")]
    options = {"accumulate_batches": 3, "max_duration": "8ep"}
    make_trainer(mlp(), batches(24, 4), algorithms=[choose(parts)], **options).fit()

    assert len(set(seen)) == 16  # each of the 16 steps has one part,
    assert {name for _, name in seen} == {"one", "other"}  # and both were drawn
