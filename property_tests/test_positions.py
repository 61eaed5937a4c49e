"""Law: an epoch that is resumed with another batch size has each example once, or is refused."""

import tempfile

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from composable import Event
from composable.checkpoint import MismatchError
from composable.data import BatchSizeWarmupSampler, GlobalBatchSampler, LengthGroupedBatchSampler
from tests.support.data import Stateful, examples
from tests.support.models import linear
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer
from tests.support.strategies import few

pytestmark = [
    pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning"),
    pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning"),
    pytest.mark.filterwarnings("ignore::composable.data.streams.UnshardedStreamWarning"),
]
COUNT = 24
DATA = TensorDataset(torch.arange(COUNT).repeat(4, 1).T.float(), examples(COUNT)[1])


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(DATA)


class Own(RandomSampler):
    """A sampler of a user, which may look at anything."""


def batched(sampler, *args, **options):
    return lambda size: DataLoader(
        DATA, batch_sampler=sampler(*args, batch_size=size, seed=17, **options)
    )


FOLLOWED = {
    "shuffled": lambda size: DataLoader(DATA, size, shuffle=True),
    "last dropped": lambda size: DataLoader(DATA, size, drop_last=True),
    "generator": lambda size: DataLoader(
        DATA, size, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "weighted": lambda size: DataLoader(
        DATA, size, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT, replacement=False)
    ),
    "global": batched(GlobalBatchSampler, COUNT),
    "stream": lambda size: DataLoader(Numbers(), size),
    "state": lambda size: DataLoader(Stateful(DATA), size),
    "worker": lambda size: DataLoader(Stateful(DATA), size, num_workers=1),
}
REFUSED = {
    "Own": lambda size: DataLoader(DATA, size, sampler=Own(DATA)),
    "LengthGroupedBatchSampler": batched(LengthGroupedBatchSampler, range(COUNT)),
    "BatchSizeWarmupSampler": batched(BatchSizeWarmupSampler, COUNT, min_batch_size=1, duration=12),
    "2 workers": lambda size: DataLoader(Numbers(), size, num_workers=2),
}


def resume(make, before, after, at, epochs, **options):
    """Train the examples of epochs, of which the second run trains the rest; return them."""
    seen = Watch(Event.AFTER_OPTIMIZER_STEP, read=lambda state: state.batch)
    with tempfile.TemporaryDirectory() as folder:
        saves = {"save_folder": folder, "save_interval": "1ba", "autoresume": True}
        options |= {**saves, "max_duration": f"{epochs}ep", "callbacks": [seen]}
        stop = Raise(KeyboardInterrupt(), Event.AFTER_SAVE, at)
        with pytest.raises(KeyboardInterrupt):
            make_trainer(linear(), make(before), **{**options, "callbacks": [seen, stop]}).fit()
        trainer = make_trainer(linear(), make(after), **{**options, "save_interval": "3ep"})
        began = len(seen.values)
        state = trainer.fit()
    return [batch[0][:, 0].int().tolist() for batch in seen.values], began, state


@few
@given(
    st.sampled_from(list(FOLLOWED)),
    st.sampled_from([2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 4, 8, 12]),
    st.integers(1, 8),
)
@example("shuffled", 4, 8, 2)
@example("shuffled", 4, 2, 2)
@example("shuffled", 4, 2, 8)
@example("state", 4, 8, 2)
@example("worker", 4, 2, 4)
@example("stream", 2, 8, 4)
def test_a_resume_with_another_batch_size_trains_each_example_once_or_is_refused(
    kind, before, after, at
):
    read = at * before % COUNT
    if read % after:
        words = f"saved after {read} examples, .* batch_size={before}; with 1 and {after}, no step"
        with pytest.raises(MismatchError, match=words) as caught:
            resume(FOLLOWED[kind], before, after, at, 3)
        assert len(str(caught.value).split()) <= 60
        return
    seen, began, state = resume(FOLLOWED[kind], before, after, at, 3)
    assert all(len(batch) == after for batch in seen[began:])
    whole = [i for batch in seen for i in batch]
    epochs = [whole[start : start + COUNT] for start in range(0, len(whole), COUNT)]
    assert [sorted(one) for one in epochs] == [list(range(COUNT))] * 3
    assert state.timestamp.epoch == 3
    assert state.timestamp.sample == 3 * COUNT


@pytest.mark.parametrize("name", REFUSED)
def test_an_order_that_may_follow_the_batch_size_is_refused_by_name(name):
    with pytest.raises(
        MismatchError,
        match=rf"after \d+ examples, with .* order of {name} may differ. Resume with those, or",
    ):
        resume(REFUSED[name], 4, 2, 2, 3)


@pytest.mark.parametrize(("before", "after", "fits"), [(2, 1, True), (1, 2, True), (1, 4, False)])
def test_another_number_of_accumulated_batches_is_followed_where_it_divides(before, after, fits):
    def run():
        with tempfile.TemporaryDirectory() as folder:
            options = {"save_folder": folder, "save_interval": "1ba", "autoresume": True}
            options["loader"] = DataLoader(DATA, 4)
            stop = Raise(KeyboardInterrupt(), Event.AFTER_SAVE, 2)
            with pytest.raises(KeyboardInterrupt):
                make_trainer(callbacks=stop, accumulate_batches=before, **options).fit()
            return make_trainer(accumulate_batches=after, **options).fit().timestamp

    if fits:
        assert run().sample == 2 * COUNT
    else:
        with pytest.raises(MismatchError, match=r"after 8 examples, with accumulate_batches=1 and"):
            run()
