"""Scripts that are run again: with several calls of `fit`, other arguments, another order."""

from functools import partial

import pytest
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from composable import Callback
from composable.algorithms import EMA
from composable.callbacks import CheckpointSaver, EarlyStopper
from composable.metrics import accuracy
from composable.optim import cosine
from composable.resume import ChangedRunWarning
from tests.support.campaign import each_once
from tests.support.data import batches, examples
from tests.support.models import same, weights
from tests.support.runs import make_trainer


class Stopped(Exception):
    pass


class StopAt(Callback):
    """Ends a run after the save of a batch."""

    def __init__(self, batch):
        self.batch = batch

    def after_save(self, state, logger):
        if state.timestamp.batch == self.batch:
            raise Stopped


SCRIPTS = {
    "fit(); fit('2ep')": ("1ep", [None, "2ep"], 9),
    "fit('3ep')": (None, ["3ep"], 9),
    "fit('1ep'); fit('4ba'); fit('1ep')": (None, ["1ep", "4ba", "1ep"], 9),
    "fit(); fit('1ep'); fit('1ep')": ("1ep", [None, "1ep", "1ep"], 9),
}


STOPS = [[2], [3], [4], [7], [2, 5], [4, 5, 6, 8], [9]]


@pytest.mark.parametrize(("script", "stops"), each_once(list(SCRIPTS), STOPS), ids=str)
def test_restarted_script_trains_as_long_as_one_that_was_not_stopped(script, stops, tmp_path):
    whole, calls, length = SCRIPTS[script]

    def run(stop, **options):
        trainer = make_trainer(
            callbacks=[StopAt(stop)], max_duration=whole, algorithms=[EMA("1ba")], **options
        )
        for duration in calls:
            trainer.fit(duration=duration)
        return trainer.state

    saves = {"save_folder": tmp_path, "save_interval": "1ba", "autoresume": True}
    for stop in stops:
        with pytest.raises(Stopped):
            run(stop, **saves)
    state, expected = run(None, **saves), run(None)

    assert state.timestamp.batch == expected.timestamp.batch == length
    assert same(weights(state.model), weights(expected.model))


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
    with pytest.raises(Stopped):
        make_trainer(max_duration="3ep", callbacks=[StopAt(saved_at)], **options).fit()

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
