"""AFTER_LOAD: fires after the values were loaded, in every way of loading."""

from contextlib import nullcontext

import attrs
import pytest
import torch
from torch import nn

from composable import Algorithm, Callback, Event
from composable.algorithms import EMA
from composable.checkpoint import MismatchError
from composable.resume import ChangedRunWarning
from tests.support.models import linear, same, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, training_weights

WAYS = {
    "load_path": lambda path: {"load_path": path / "ep1-ba3"},
    "folder": lambda path: {"load_path": path},
    "autoresume": lambda path: {"save_folder": path, "autoresume": True},
    "weights": lambda path: {"load_path": path, "load_weights_only": True},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture
def saved(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, max_duration="1ep", algorithms=[EMA("1ba")])
    trainer.fit()
    return tmp_path, {"raw": training_weights(trainer), "scored": weights(trainer.state.model)}


@ways
def test_algorithms_act_on_loaded_values(saved, way):
    options = way(saved[0])
    expected = saved[1]["scored" if "load_weights_only" in options else "raw"]

    def halve(event, state):
        if event is not Event.AFTER_LOAD:
            return state
        assert same(weights(state.model), expected)
        with torch.no_grad():
            state.model.weight.mul_(0.5)
        return state.remember("halve", state.timestamp.batch)

    with nullcontext() if "load_weights_only" in options else pytest.warns(ChangedRunWarning):
        trainer = make_trainer(
            linear(5),
            algorithms=[halve, EMA("1ba")],
            max_duration="1ep",
            check_effects=False,
            **options,
        )
    assert torch.equal(training_weights(trainer)["weight"], expected["weight"] * 0.5)
    assert trainer.state.memory["halve"] == trainer.state.timestamp.batch


@ways
def test_callbacks_see_loaded_values(saved, way):
    options = way(saved[0])
    expected = saved[1]["scored" if "load_weights_only" in options else "raw"]
    watch = Watch(Event.AFTER_LOAD, read=lambda state: weights(state.model))
    make_trainer(
        linear(5), algorithms=[EMA("1ba")], callbacks=[watch], max_duration="1ep", **options
    )
    (seen,) = watch.values
    assert same(seen, expected)


@attrs.frozen(repr=False)
class Wrap(Algorithm):
    """Wraps the model, a surgery that must be done before values are restored."""

    events = frozenset({Event.AFTER_LOAD})
    writes = frozenset({"model"})

    def apply(self, event, state):
        return state.evolve(model=nn.Sequential(state.model))


def test_surgery_is_done_once_and_before_the_values_are_restored(tmp_path):
    options = {"algorithms": [Wrap()], "save_folder": tmp_path, "autoresume": True}
    expected = weights(make_trainer(**options).fit().model)

    resumed = make_trainer(linear(5), **options)

    assert same(weights(resumed.state.model), expected)
    assert list(expected) == ["0.weight", "0.bias"]


def test_callbacks_have_their_state(tmp_path):
    class Count(Callback):
        count = 0
        seen = None

        def after_load(self, state, logger):
            self.seen = self.count

        def batch_end(self, state, logger):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    options = {"save_folder": tmp_path, "autoresume": True}
    make_trainer(callbacks=[Count()], **options).fit()
    again = Count()
    make_trainer(callbacks=[again], **options)
    assert again.seen == 6


def test_resumed_run_continues_with_what_after_load_changed(saved):
    path, _ = saved

    def lengthen(event, state):
        return state.evolve(max_duration="3ep") if event is Event.AFTER_LOAD else state

    with pytest.warns(ChangedRunWarning):
        trainer = make_trainer(
            algorithms=[lengthen, EMA("1ba")], max_duration="1ep", load_path=path
        )
    assert trainer.fit().timestamp.epoch == 3


def test_file_of_another_program_names_arguments_that_the_trainer_has(tmp_path):
    torch.save({"epoch": 3, "net": linear(5).state_dict()}, tmp_path / "nested.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")

    with pytest.raises(MismatchError) as caught:
        make_trainer(load_path=tmp_path / "nested.pt", load_weights_only=True)
    assert str(caught.value).endswith(
        "Drop load_path, and load them into the model before you build the Trainer, by "
        "composable.checkpoint.load_weights(model, path, key=...), such as key='net'."
    )
    with pytest.raises(MismatchError, match=r"list them in load_ignore_keys, such as load_ignore"):
        make_trainer(load_path=tmp_path / "other.pt", load_weights_only=True)
