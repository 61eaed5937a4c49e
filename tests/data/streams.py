"""Iterable datasets with a state of their own, by the protocols of several libraries."""

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.data.loaders import noise


def noisy(number):
    return number, noise()


def this_worker():
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Plain(IterableDataset):
    """Examples with noise, divided among workers, which counts how many are read anywhere."""

    def __init__(self, count=13, shares=None):
        self.count, self.shares, self.epoch = count, shares, 0
        self.read = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def mine(self):
        """Return the numbers of this worker's examples."""
        worker, workers = this_worker()
        if self.shares is None:
            return range(worker, self.count, workers)
        return range(100 * worker, 100 * worker + self.shares[worker % len(self.shares)])

    def example(self, number):
        self.read += 1
        return 10 * number + self.epoch, noise()

    def __iter__(self):
        return map(self.example, self.mine())


class Stateful(Plain):
    """The protocol of torchdata and of Hugging Face: the state of the iteration in progress."""

    at, begin = 0, 0

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        mine = self.mine()
        while self.at < len(mine):
            self.at += 1
            yield self.example(mine[self.at - 1])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


class Live(Stateful):
    """The same, whose state is an object that changes as it is iterated over."""

    def __init__(self, count=13, shares=None):
        super().__init__(count, shares)
        self.live = {"at": 0}

    def example(self, number):
        self.live["at"] = self.at
        return super().example(number)

    def state_dict(self):
        return self.live


class Counted(Plain):
    """The protocol of MosaicML's StreamingDataset: a number of samples, in shared memory."""

    def __init__(self, count=13):
        super().__init__(count)
        self.start = torch.zeros((), dtype=torch.int64).share_memory_()

    def mine(self):
        worker, workers = this_worker()
        begin = int(self.start)
        return [i for i in range(begin, self.count) if (i - begin) // 2 % workers == worker]

    def __iter__(self):
        mine = self.mine()  # before it is reset
        yield from map(self.example, mine)

    def state_dict(self, num_samples, from_beginning):
        assert from_beginning
        return {"sample_in_epoch": num_samples}

    def load_state_dict(self, state):
        self.start.fill_(state["sample_in_epoch"])
