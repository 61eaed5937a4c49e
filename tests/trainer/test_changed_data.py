"""A resume with other data is a warning, and one with the same data is quiet."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composable.resume import ChangedRunWarning
from tests.support.data import batches, noisy_loader, shuffling_loader
from tests.support.runs import make_trainer

NAMED = "the data differ from the saved run's: the first batch of epoch {} is another one"


def rebatched(data):
    """Return as many batches of the same sizes, of which each has examples of another one."""
    inputs, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    inputs, labels = inputs.roll(1, 0), labels.roll(1, 0)
    size = len(data[0][0])
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def dataset(*, reverse=False):
    inputs, labels = (torch.cat(parts) for parts in zip(*batches(24, 4), strict=True))
    return (
        TensorDataset(inputs.flip(0), labels.flip(0)) if reverse else TensorDataset(inputs, labels)
    )


def loader(*, reverse=False, **options):
    return DataLoader(dataset(reverse=reverse), batch_size=4, **options)


def resume(folder, data, other, *, at, **options):
    """Train up to a batch, and resume with other data."""
    options = {"max_duration": "3ep", **options}
    first = make_trainer(None, data, **options)
    first.fit(duration=at)
    first.save_checkpoint(folder / "saved")
    trainer = make_trainer(None, other, load_path=folder / "saved", **options)
    trainer.fit(duration="3ba")


@pytest.mark.parametrize(("at", "epoch"), [("2ba", 0), ("8ba", 1), ("1ep", 0)])
@pytest.mark.parametrize(
    ("data", "other"),
    [
        (batches(24, 4), batches(24, 4)[::-1]),
        (batches(24, 4), rebatched(batches(24, 4))),
        (loader(), loader(reverse=True)),
        (loader(shuffle=True), loader(shuffle=True, reverse=True)),
        (loader(num_workers=1), loader(num_workers=1, reverse=True)),
    ],
    ids=["reversed", "re-batched", "dataset", "shuffled", "workers"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_other_data_of_the_same_length_are_a_warning(tmp_path, data, other, at, epoch, count):
    if count == 2:
        at, epoch = {"2ba": ("1ba", 0), "8ba": ("4ba", 1), "1ep": ("1ep", 0)}[at]
    with pytest.warns(ChangedRunWarning, match=NAMED.format(epoch)):
        resume(tmp_path, data, other, at=at, accumulate_batches=count)


@pytest.mark.parametrize("at", ["2ba", "8ba", "1ep"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: batches(24, 4),
        loader,
        lambda: loader(shuffle=True),
        lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
        lambda: loader(shuffle=True, num_workers=1, persistent_workers=True),
        noisy_loader,
        shuffling_loader,
    ],
)
def test_the_same_data_are_quiet(tmp_path, make, at):
    resume(tmp_path, make(), make(), at=at)


def test_streams_are_not_read_again(tmp_path):
    reads = itertools.count()

    class Counted(torch.utils.data.IterableDataset):
        def __iter__(self):
            next(reads)
            return iter(dataset())

    options = {"max_duration": "3ep"}
    trainer = make_trainer(None, DataLoader(Counted(), batch_size=4), **options)
    trainer.fit(duration="1ep")
    trainer.save_checkpoint(tmp_path / "saved")
    resumed = make_trainer(
        None, DataLoader(Counted(), batch_size=4), load_path=tmp_path / "saved", **options
    )
    resumed.fit(duration="1ep")

    assert next(reads) == 2


def test_one_batch_is_read_again(tmp_path):
    asked = []

    class Asked(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            asked.append(index)
            return dataset()[index]

    options = {"max_duration": "1ep"}
    trainer = make_trainer(None, DataLoader(Asked(), batch_size=4), **options)
    trainer.fit(duration="4ba")
    trainer.save_checkpoint(tmp_path / "saved")
    asked.clear()
    make_trainer(
        None, DataLoader(Asked(), batch_size=4), load_path=tmp_path / "saved", **options
    ).fit(duration="2ba")

    assert asked == [*range(4), *range(16, 24)]
