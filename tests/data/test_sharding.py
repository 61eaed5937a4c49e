"""How data are divided among processes, and what these compare of their data."""

import random
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

from composable.data import UnshardedStreamWarning
from composable.data.sharding import describe_dataset, is_local
from composable.data.stream_parts import shard_stream
from composable.distributed import Processes
from composable.utils.reproducibility import get_rng_state

PAIR = [Processes(0, 2), Processes(1, 2)]


class Stream(IterableDataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return iter(self.numbers)


class Shardable(Stream):
    def shard(self, num_shards, index):
        return Shardable(self.numbers[index::num_shards])


def parts(stream, batch_size=4, **options):
    loader = DataLoader(stream, batch_size=batch_size, **options)
    return [shard_stream(loader, one) for one in PAIR]


def test_stream_with_a_method_is_divided_into_the_same_global_batches():
    first, second = parts(Shardable(range(10)))
    assert [batch.tolist() for batch in first] == [[0, 2], [4, 6], [8]]
    assert [batch.tolist() for batch in second] == [[1, 3], [5, 7], [9]]
    assert is_local(first, 2)
    assert shard_stream(first, PAIR[0]) is first


def test_divided_stream_keeps_what_the_loader_has():
    first, _ = parts(Shardable(range(10)), drop_last=True, collate_fn=torch.tensor)
    assert [batch.tolist() for batch in first] == [[0, 2], [4, 6]]


def test_stream_of_datasets_is_split_by_its_library(monkeypatch):
    kind = type("IterableDataset", (Stream,), {"__module__": "datasets.iterable_dataset"})
    library = types.ModuleType("datasets.distributed")
    library.split_dataset_by_node = lambda one, *, rank, world_size: kind(
        one.numbers[rank::world_size]
    )
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.distributed", library)

    first, second = parts(kind(range(8)))
    assert [batch.tolist() for batch in first] == [[0, 2], [4, 6]]
    assert [batch.tolist() for batch in second] == [[1, 3], [5, 7]]


@pytest.mark.parametrize(
    ("stream", "batch_size", "text"),
    [
        (Stream(range(4)), 4, "reads all of the stream Stream.*a method shard"),
        (Shardable(range(4)), 3, "batch_size=3 of the DataLoader is not a multiple of 2"),
        (Shardable(range(4)), None, "batch_size=None"),
    ],
)
def test_stream_that_is_not_divided_is_reported_by_rank_0(stream, batch_size, text):
    loader = DataLoader(stream, batch_size=batch_size)
    with pytest.warns(UnshardedStreamWarning, match=text):
        assert shard_stream(loader, PAIR[0]) is loader
    assert shard_stream(loader, PAIR[1]) is loader
    assert shard_stream(loader, Processes()) is loader


@pytest.mark.parametrize("package", ["webdataset.compat", "streaming.base.dataset"])
def test_streams_of_packages_that_divide_themselves_are_local(package):
    kind = type("Theirs", (Stream,), {"__module__": package})
    own = type("Own", (kind,), {})
    for stream in (kind(range(4)), own(range(4))):
        loader = DataLoader(stream, batch_size=2)
        assert is_local(loader, 2)
        assert shard_stream(loader, PAIR[0]) is loader


def test_data_pipes_are_divided_by_pytorch_if_they_have_a_filter():
    pipe = IterableWrapper(range(4))
    assert is_local(DataLoader(pipe.shuffle().sharding_filter().map(float)), 2)
    assert not is_local(DataLoader(pipe.shuffle()), 2)


def test_shards_of_a_divided_stream_are_reported_by_rank_0(recwarn):
    loader = DataLoader(Shardable(range(8)), batch_size=4)
    with pytest.warns(UserWarning, match="on another number of processes"):
        divided = shard_stream(loader, PAIR[0], has_shards=True)
    with pytest.warns(UserWarning, match="the parts of Shardable follow the 2 processes"):
        assert shard_stream(divided, PAIR[0], has_shards=True) is divided
    recwarn.clear()
    shard_stream(loader, PAIR[1], has_shards=True)
    shard_stream(loader, Processes(), has_shards=True)
    shard_stream(loader, PAIR[0])
    assert not recwarn


class Drawing(Dataset):
    """Draws noise from a generator."""

    def __init__(self, draw, offset=0.0, **own):
        self.draw, self.offset = draw, offset
        self.__dict__ |= own

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return float(self.draw()) + index + self.offset


GLOBAL = {"torch": lambda: torch.rand(()), "python": random.random, "numpy": np.random.rand}


def plain(state):
    return repr({name: one.tolist() if name == "torch" else one for name, one in state.items()})


@pytest.mark.parametrize("name", GLOBAL)
def test_draws_are_the_same_and_change_no_random_state(name):
    before = plain(get_rng_state())
    first, other = (describe_dataset(DataLoader(Drawing(GLOBAL[name], x))) for x in (0.0, 1.0))
    assert plain(get_rng_state()) == before
    GLOBAL[name]()
    assert describe_dataset(DataLoader(Drawing(GLOBAL[name]))) == first != other


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_dataset_with_a_generator_of_its_own_is_not_read(kind, nested):
    generator = kind(0)
    expected = kind(0).random()
    own = [Drawing(None, own=generator)] if nested else generator  # as transforms have it
    described = describe_dataset(DataLoader(Drawing(generator.random, own=own)))
    assert described == {"examples": 9}
    assert generator.random() == expected


class Broken(Drawing):
    def __getitem__(self, index):
        raise OSError("the file is gone")


@pytest.mark.parametrize(
    ("loader", "described"),
    [
        (DataLoader(Stream(range(3))), {}),
        ([torch.ones(2)], {}),
        (DataLoader(Broken(random.random)), {"examples": 9}),
    ],
)
def test_other_data_has_fewer_entries(loader, described):
    assert describe_dataset(loader) == described
