"""What the tests share: a tiny problem, and observers that write down what they see."""

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from composable import Callback, Event, Trainer
from composable.functional._sampling import numbers

CLASSES = 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def examples(count, *, seed=0, features=4):
    draw = generator(seed)
    inputs = torch.randn(count, features, generator=draw)
    return inputs, torch.randint(CLASSES, (count,), generator=draw)


def batches(sizes=(4, 4, 4), *, seed=0, features=4):
    """Return batches (inputs, targets) of the given sizes."""
    inputs, targets = examples(sum(sizes), seed=seed, features=features)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def linear(seed=0):
    """Build a linear classifier, the same for the same seed."""
    return seeded(lambda: nn.Linear(4, CLASSES), seed)


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        return build()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def make_trainer(model=None, **changes):
    """Build a Trainer of a tiny classifier, with some arguments changed."""
    arguments = {
        "train_dataloader": batches(),
        "max_duration": "2ep",
        "loss_fn": cross_entropy,
        "optimizers": sgd,
        "progress_bar": False,
        "check_effects": True,
        "device": "cpu",
        "seed": 17,
    }
    return Trainer(linear() if model is None else model, **{**arguments, **changes})


def weights(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(left, right):
    """Return whether two state dicts agree to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def trained(model=None, **changes):
    """Return the weights after training with `make_trainer(...)`."""
    return weights(make_trainer(model, **changes).fit().model)


READS = {
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.cpu,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
}


class NoRead(TorchFunctionMode):
    """Refuse to turn tensors into numbers: on a GPU that waits for all work queued.

    But for the draws that the methods read, which lie on the CPU wherever the batch is.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in READS and sys._getframe(1).f_code is not numbers.__code__:
            raise AssertionError(f"{func.__name__} would make the host wait for the device")
        return func(*args, **(kwargs or {}))


def as_on_a_gpu(trainer):
    """Have losses looked at as on a GPU; on the CPU there is nothing to wait for."""
    trainer._run.guard.immediate = False
    return trainer


class Watch(Callback):
    """Writes down `read(state)` at some events."""

    def __init__(self, *events, read=None):
        self.events = events
        self.read = read or (lambda state: None)
        self.seen = []

    def run_event(self, event, state, logger):
        if not self.events or event in self.events:
            self.seen.append((event, self.read(state)))

    @property
    def values(self):
        return [value for _, value in self.seen]


class Ask(Callback):
    """Requests something at one event, once a batch number is reached."""

    def __init__(self, control, event, batch=0):
        self.control, self.event, self.batch = control, event, batch

    def run_event(self, event, state, logger):
        if event is self.event and state.timestamp.batch == self.batch:
            return self.control
        return None


class Raise(Callback):
    """Raises an error once, at one event of one batch."""

    def __init__(self, error, event=Event.BATCH_START, batch=4):
        self.error, self.event, self.batch = error, event, batch

    def run_event(self, event, state, logger):
        if self.error and event is self.event and state.timestamp.batch == self.batch:
            error, self.error = self.error, None
            raise error
