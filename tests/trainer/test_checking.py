"""`Trainer.check`: one batch of everything, which leaves no trace."""

import re
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Algorithm, Callback, Evaluator, Event
from composable.algorithms import EMA, MixUp
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.trainer.checking import CheckError
from tests.support.data import batches, examples, shuffling_loader, stream
from tests.support.models import CLASSES, FEATURES, same, seeded, weights
from tests.support.runs import make_trainer


def net():
    def build():
        first, last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        return nn.Sequential(first, nn.BatchNorm1d(8), nn.Dropout(0.2), last)

    return seeded(build)


def make(model=None, **changes):
    options = {
        "train_dataloader": shuffling_loader(24, 8),
        "eval_dataloader": [Evaluator("test", batches(24, 12))],
        "metrics": {"accuracy": accuracy},
        "algorithms": [MixUp(alpha=0.2), EMA(half_life="2ba")],
        "optimizers": partial(torch.optim.AdamW, lr=1e-2),
        **changes,
    }
    return make_trainer(net() if model is None else model, **options)


def weights_after(trainer):
    return weights(trainer.fit(duration="4ba").model)


@pytest.mark.parametrize("start", ["0ba", "2ba"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grad_accum": 2},
        {"accumulate_batches": 2},
        {"precision": "amp_bf16"},
        {"eval_dataloader": None, "metrics": None},
        {"train_dataloader": "with its own generator"},
    ],
)
def test_run_after_a_check_is_the_run_without_one(start, changes, tmp_path):
    def run(checked, folder):
        options = dict(changes)
        if "train_dataloader" in options:
            own = torch.Generator().manual_seed(5)
            options["train_dataloader"] = shuffling_loader(24, 8, generator=own)
        trainer = make(save_folder=folder, save_interval="1ep", **options)
        if start != "0ba":
            trainer.fit(duration=start)
        drawn = torch.get_rng_state()
        if checked:
            trainer.check()
        assert torch.equal(drawn, torch.get_rng_state())
        return weights_after(trainer)

    found, expected = run(True, tmp_path / "a"), run(False, tmp_path / "b")
    assert same(found, expected)


class Reader(nn.Module):
    """A recurrent model that keeps its hidden state from batch to batch."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.cell = kept, nn.LSTM(2, 4, batch_first=True)
        self.score = nn.Linear(4, CLASSES)
        if kept == "buffer":
            self.register_buffer("hidden", torch.zeros(2, 1, 8, 4))
        else:
            self.hidden = None

    def forward(self, x):
        hidden = tuple(self.hidden.values()) if self.kept == "dict" and self.hidden else self.hidden
        outputs, (h, c) = self.cell(x.unflatten(1, (2, 2)), None if hidden is None else (*hidden,))
        h, c = h.detach(), c.detach()
        kinds = {"tuple": (h, c), "list": [h, c], "dict": {"h": h, "c": c}}
        self.hidden = kinds.get(self.kept, torch.stack([h, c]))
        return self.score(outputs[:, -1])


@pytest.mark.parametrize("start", ["0ba", "2ba"])
@pytest.mark.parametrize("kept", ["tuple", "list", "dict", "tensor", "buffer"])
def test_hidden_state_in_an_attribute_is_named_and_restored(kept, start):
    def run(checked):
        trainer = make(
            seeded(partial(Reader, kept)), eval_dataloader=None, metrics=None, algorithms=[]
        )
        if start != "0ba":
            trainer.fit(duration=start)
        if not checked:
            return weights_after(trainer)
        if kept == "buffer":
            trainer.check()
            return weights_after(trainer)
        with pytest.raises(
            CheckError, match=r"changed model\.hidden, which no checkpoint.*\n.*buffer"
        ):
            trainer.check()
        return weights_after(trainer)

    assert same(run(False), run(True))


def test_outputs_that_a_module_notes_are_no_state():
    class Noting(nn.Linear):
        last = None

        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    trainer = make(Noting(FEATURES, CLASSES))
    trainer.check()

    assert trainer.state.model.last is None


def test_count_outside_of_the_modules_is_found():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(len(calls))
            return super().forward(x) * (1 + len(calls))

    with pytest.raises(CheckError, match="changed a state outside modules"):
        make(Counting(FEATURES, CLASSES)).check()


def test_nothing_is_logged_written_or_changed(tmp_path):
    log, folder = InMemoryLogger(), tmp_path / "runs" / "a"
    trainer = make(loggers=[log], save_folder=folder)
    before = weights(trainer.state.model)

    report = trainer.check()

    assert log.records == []
    assert not list(tmp_path.rglob("*"))
    assert same(before, weights(trainer.state.model))
    assert trainer.state.timestamp.batch == 0
    assert trainer.state.metrics == {}
    assert {"first batch", "step", "evaluation test", "save", "resume"} == report.seconds.keys()
    assert all(value > 0 for value in report.seconds.values())


def test_memory_and_duration():
    report = make(nn.Linear(FEATURES, CLASSES), algorithms=[]).check()

    size = 4 * (FEATURES * CLASSES + CLASSES)
    assert report.memory["parameters"] == report.memory["gradients"] == size
    assert report.memory["optimizers"] == 2 * size + 2 * 4  # two moments, and a count for each
    assert report.memory["checkpoint"] > 3 * size
    assert report.fit_seconds == pytest.approx(6 * report.seconds["step"])
    assert re.search(r"step +\d+\.\d+ s", str(report))


class Breaks(nn.Module):
    def forward(self, inputs):
        raise RuntimeError("no such layer")


class TooLarge(nn.Module):
    def forward(self, inputs):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")


class Unstepped(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no such step")


class Unrestored(Callback):
    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        raise KeyError("counts")


@attrs.frozen
class Damaged:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise OSError("image 3 is damaged")


def bad_metric(outputs, targets):
    raise ZeroDivisionError("no positives")


def short_loss(outputs, targets):
    return cross_entropy(outputs[:3], targets)


def detached_loss(outputs, targets):
    return cross_entropy(outputs.detach(), targets)


FAILURES = {
    "data": {"train_dataloader": DataLoader(Damaged(), batch_size=4)},
    "model": {"model": nn.Sequential(nn.Linear(FEATURES, CLASSES), Breaks())},
    "loss": {"loss_fn": short_loss},
    "loss of a group": {"loss_fn": short_loss, "accumulate_batches": 2},
    "loss per example": {"loss_fn": nn.CrossEntropyLoss(reduction="none")},
    "loss without a gradient": {"loss_fn": detached_loss},
    "loss that is NaN": {"loss_fn": lambda outputs, targets: outputs.sum() * float("nan")},
    "step": {"optimizers": partial(Unstepped, lr=0.1)},
    "evaluation": {"metrics": {"bad": bad_metric}},
    "resume": {"callbacks": [Unrestored()]},
}


@pytest.mark.parametrize("failure", FAILURES)
def test_error_names_the_part(failure, tmp_path):
    part = failure.split()[0]
    trainer = make(save_folder=tmp_path / "run", **{"algorithms": [], **FAILURES[failure]})
    before = weights(trainer.state.model)

    with pytest.raises(CheckError, match=f"^{part}: ") as caught:
        trainer.check()

    assert caught.value.part == part
    assert caught.value.__cause__ is not None
    assert not list(tmp_path.rglob("*"))
    assert same(before, weights(trainer.state.model))


def test_loaders_with_workers_are_read_in_this_process():
    def loader():
        data = TensorDataset(*examples(24))
        return DataLoader(data, 8, num_workers=1, prefetch_factor=3, timeout=30)

    trainer = make(train_dataloader=loader(), eval_dataloader=loader())
    assert trainer.check().seconds["first batch"] > 0


def test_loss_that_may_be_nan_passes():
    loss = FAILURES["loss that is NaN"]["loss_fn"]
    make(loss_fn=loss, nonfinite_loss="skip", eval_dataloader=None, metrics=None).check()


def test_memory_that_is_too_small_has_a_cure_of_its_own():
    trainer = make(nn.Sequential(nn.Linear(FEATURES, CLASSES), TooLarge()), algorithms=[])

    with pytest.raises(CheckError, match=r"^model: OutOfMemoryError: .*\nlower the batch size"):
        trainer.check()


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckError, match=r"^save: ") as caught:
        make(save_folder=tmp_path / "file" / "run").check()

    assert "save_folder" in str(caught.value)


def test_stream_needs_batches():
    trainer = make(train_dataloader=stream(24, 8), max_duration="4ba")

    with pytest.raises(CheckError, match="pass batches as a list"):
        trainer.check()
    assert trainer.check(batches(8, 8)).fit_seconds is not None


def test_error_has_the_advice_of_fit():
    whole = [(torch.zeros(4, FEATURES, dtype=torch.uint8), torch.zeros(4).long())]

    with pytest.raises(CheckError, match="Convert and normalize it") as caught:
        make(train_dataloader=whole, algorithms=[]).check()

    assert caught.value.part == "model"
    assert "call the model" not in str(caught.value)


@attrs.frozen(repr=False)
class WritesBatch(Algorithm):
    event: Event
    reads = writes = frozenset({"batch"})

    @property
    def events(self):
        return frozenset({self.event})

    def apply(self, event, state):
        state.batch[0].mul_(0.5)
        return state


@pytest.mark.parametrize("event", [Event.AFTER_DATALOADER, Event.BATCH_START])
def test_check_finds_an_algorithm_that_writes_in_place(event):
    trainer = make(algorithms=[WritesBatch(event)])
    with pytest.raises(CheckError, match=r"step: EffectError: .* changed state.batch\[0\]"):
        trainer.check()
    assert not trainer._session.dispatcher.check_effects
    trainer.fit(duration="1ba")
