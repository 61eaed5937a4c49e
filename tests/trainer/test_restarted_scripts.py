"""Scripts that run again: several calls of `fit`, other arguments, another order, other data."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from composable import Event, when
from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver, EarlyStopper
from composable.metrics import accuracy
from composable.optim import cosine
from composable.resume import ChangedRunWarning
from tests.support.campaign import each_once
from tests.support.data import batches, examples, noisy_loader, shuffling_loader
from tests.support.observers import Raise
from tests.support.runs import make_trainer


def test_calls_of_another_script_are_its_own(tmp_path):
    options = {"save_folder": tmp_path, "max_duration": None}
    make_trainer(**options).fit(duration="1ep")

    changed = make_trainer(autoresume=True, **options)
    loaded = make_trainer(load_path=tmp_path, max_duration=None)

    assert changed.fit(duration="2ep").timestamp.batch == 9
    assert loaded.fit(duration="1ep").timestamp.batch == 6


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.parametrize(
    ("longer", "length", "saved_at"),
    [(*one, at) for one, at in each_once([("20ba", 20), ("80sp", 20), ("4ep", 12)], [2, 3, 5])],
)
def test_duration_in_another_unit(longer, length, saved_at, tmp_path):
    options = {"save_folder": tmp_path, "save_interval": "1ba", "schedulers": cosine()}
    stop = Raise(KeyboardInterrupt(), Event.AFTER_SAVE, saved_at)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(max_duration="3ep", callbacks=stop, **options).fit()

    again = make_trainer(max_duration=longer, autoresume=True, **options)

    assert again.fit().timestamp.batch == length


def stoppers(order):
    made = {
        "accuracy": EarlyStopper("accuracy", patience="9ep"),
        "loss": EarlyStopper("loss", patience="9ep"),
        "slow": EarlyStopper("loss", patience="10ep"),
    }
    return {name: made[name] for name in order}


@pytest.mark.parametrize("order", [["loss", "accuracy", "slow"], ["slow", "loss", "accuracy"]])
def test_states_follow_the_settings_of_callbacks(order, tmp_path):
    options = {
        "eval_dataloader": batches([4]),
        "metrics": {"accuracy": accuracy},
        "save_folder": tmp_path,
        "autoresume": True,
    }
    first = stoppers(["accuracy", "loss", "slow"])
    make_trainer(callbacks=list(first.values()), **options).fit()

    again = stoppers(order)
    make_trainer(callbacks=list(again.values()), **options)

    for name, one in again.items():
        assert one.state_dict() == first[name].state_dict()
    assert first["accuracy"].state_dict() != first["loss"].state_dict()


def test_states_of_savers_follow_their_folders(tmp_path):
    def savers():
        return [CheckpointSaver(tmp_path / name, save_interval="1ba") for name in "ab"]

    first = savers()
    make_trainer(callbacks=[first[0]], save_folder=tmp_path / "run").fit()
    again = savers()
    make_trainer(callbacks=again[::-1], load_path=tmp_path / "run")

    assert again[0].state_dict() == first[0].state_dict()


# --- other arguments ---


def data(size=4, *, shuffle=False):
    return DataLoader(TensorDataset(*examples(12)), batch_size=size, shuffle=shuffle)


def mlp(p=0.5):
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 3))


CHANGES = [
    ({"model": lambda: mlp(0.1)}, r"modules/1: Dropout\(p=0.5.*-> Dropout\(p=0.1"),
    ({"loss_fn": lambda: nn.CrossEntropyLoss()}, "loss_fn: cross_entropy -> CrossEntropyLoss"),
    ({"algorithms": lambda: [EMA("2ba")]}, "algorithms/EMA: None -> EMA"),
    ({"schedulers": lambda: cosine(warmup="1ba")}, r"schedulers: .*-> .*1ba"),
    ({"grad_accum": lambda: 2}, "options/grad_accum: None -> 2"),
    ({"train_dataloader": lambda: data(shuffle=True)}, "data/sampler: SequentialSampler -> Random"),
    ({"train_dataloader": lambda: data(6)}, "data/batch_size: 4 -> 6"),
    ({"eval_interval": lambda: "2ep"}, "evaluators/eval/eval_interval: 1ep -> 2ep"),
    ({"nonfinite_loss": lambda: "skip"}, "options/nonfinite_loss: raise -> skip"),
]
BASE = {
    "model": mlp,
    "train_dataloader": data,
    "eval_dataloader": lambda: batches([4]),
    "loss_fn": lambda: cross_entropy,
    "schedulers": lambda: cosine(),
    "optimizers": lambda: partial(SGD, lr=0.01, weight_decay=0.1),
}


def build(folder, changes=None, **options):
    made = {name: make() for name, make in {**BASE, **(changes or {})}.items()}
    return make_trainer(made.pop("model"), max_duration="1ep", **made, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    build(folder, save_folder=folder).fit()
    return folder


def test_equal_runs_do_not_warn(saved):
    build(saved, load_path=saved)  # a warning is an error


def test_equal_runs_are_described_equally(tmp_path):
    def run():
        return make_trainer(
            algorithms=[when(lambda state: True, MixUp())],
            schedulers=lambda clock: 1.0,
            save_folder=tmp_path,
            autoresume=True,
        )

    first = run()
    first.fit()
    second = run()  # warnings are errors: the run has not changed
    described = [one._records.describe(one.state) for one in (first, second)]
    assert described[0]["schedulers"] == described[1]["schedulers"]
    assert "0x" not in str(described[0]["schedulers"]) + str(described[0]["algorithms"])


@pytest.mark.parametrize(("changes", "message"), CHANGES, ids=lambda one: str(one)[:20])
def test_warns_of_each_field_that_differs_and_uses_the_code(changes, message, saved):
    with pytest.warns(ChangedRunWarning, match=message):
        build(saved, changes, load_path=saved)


HYPERPARAMETERS = [
    ({"lr": 10.0}, "lr: 0.01, not the requested 10.0"),
    ({"weight_decay": 0.5}, "weight_decay: 0.1, not the requested 0.5"),
    ({"momentum": 0.9}, "momentum: 0, not the requested 0.9"),
]


@pytest.mark.parametrize(("asked", "message"), HYPERPARAMETERS, ids=["lr", "decay", "momentum"])
def test_hyperparameters_of_optimizers_are_those_of_the_checkpoint(asked, message, saved):
    given = {"lr": 0.01, "weight_decay": 0.1, **asked}
    changes = {"optimizers": lambda: partial(SGD, **given)}
    (name,) = asked

    with pytest.warns(ChangedRunWarning, match=rf"optimizers/0/param_groups/0/{message}"):
        resumed = build(saved, changes, load_path=saved)
    asking = build(saved, changes, load_path=saved, load_ignore_keys=["optimizers/*/param_groups"])

    key = "initial_lr" if name == "lr" else name
    assert resumed.state.optimizers[0].param_groups[0][key] != given[name]
    assert asking.state.optimizers[0].param_groups[0].get(key, given[name]) == given[name]


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_a_later_resume_compares_with_the_values_in_use(saved, tmp_path):
    changes = {"optimizers": lambda: partial(SGD, lr=10.0, weight_decay=0.1)}
    resumed = build(saved, changes, load_path=saved)
    resumed.save_checkpoint(tmp_path / "again")

    with pytest.warns(ChangedRunWarning, match=r"lr: 0.01, not the requested 10.0"):
        build(saved, changes, load_path=tmp_path / "again")


def test_settings_of_torch_schedulers_are_those_of_the_checkpoint(tmp_path):
    options = {"optimizers": partial(Adam, lr=0.1), "max_duration": "1ep"}
    make_trainer(save_folder=tmp_path, schedulers=partial(StepLR, step_size=1), **options).fit()

    with pytest.warns(ChangedRunWarning, match=r"rates/schedulers/0: .*step_size=1.*step_size=5"):
        make_trainer(load_path=tmp_path, schedulers=partial(StepLR, step_size=5), **options)


# --- the times within an iteration ---


OPTIONS = {"max_duration": "3ep", "iteration_length": 2, "count_tokens": lambda batch: 7}


@pytest.fixture(scope="module")
def in_iterations(tmp_path_factory):
    in_iterations = tmp_path_factory.mktemp("saved")
    make_trainer(save_folder=in_iterations, save_interval="2ba", **OPTIONS).fit()
    return in_iterations


@pytest.mark.parametrize("name", ["ep0-ba2", "ep1-ba6", "ep2-ba8", "ep3-ba9"])
def test_iteration_continues_after_a_resume(in_iterations, name):
    saved = make_trainer(load_path=in_iterations / name, **OPTIONS)
    start = saved.state.timestamp
    whole = {"ep0-ba2": (0, 14), "ep1-ba6": (1, 42), "ep2-ba8": (0, 14), "ep3-ba9": (1, 21)}

    assert (start.epoch_in_iteration, start.token_in_iteration) == whole[name]
    assert 0 < start.iteration_wct <= start.total_wct

    now = saved.fit().timestamp

    assert (now.iteration, now.epoch_in_iteration, now.token_in_iteration) == (1, 1, 21)
    assert now.iteration_wct >= now.epoch_wct


# --- other data ---


NAMED = "the data differ from the saved run's: the first batch of epoch {} is another one"


def rebatched():
    """Return as many batches of the same sizes, of which each has examples of another one."""
    inputs, labels = (one.roll(1, 0) for one in examples(24))
    return list(zip(inputs.split(4), labels.split(4), strict=True))


def dataset(*, reverse=False):
    return TensorDataset(*(one.flip(0) if reverse else one for one in examples(24)))


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
        (batches(24, 4), rebatched()),
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

    streams = (DataLoader(Counted(), batch_size=4) for _ in range(2))
    resume(tmp_path, *streams, at="1ep")

    assert next(reads) == 2


def test_one_batch_is_read_again(tmp_path):
    asked = []

    class Asked(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            asked.append(index)
            return dataset()[index]

    loaders = (DataLoader(Asked(), batch_size=4) for _ in range(2))
    resume(tmp_path, *loaders, at="3ba")

    assert asked[12:] == [*range(4), *range(12, 24)]
