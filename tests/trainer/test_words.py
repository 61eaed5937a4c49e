"""What a run says: signals, descriptions, arguments, threads, pickles and the progress bar."""

import io
import os
import pickle
import signal

import pytest
import torch

from composable import Callback, State, when
from composable.algorithms import EMA, BlurPool, GradientClipping, MixUp, SqueezeExcite
from composable.checkpoint import CheckpointError
from composable.loggers import ProgressBarLogger
from composable.plan.plan import Plan
from tests.support.models import linear, same, weights
from tests.support.runs import make_trainer


@pytest.mark.parametrize("saves", [True, False])
def test_interrupt_says_whether_it_saves(saves, logged, tmp_path):
    class Interrupt(Callback):
        def batch_start(self, state, logger):
            os.kill(os.getpid(), signal.SIGINT)

    folder = {"save_folder": tmp_path} if saves else {}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Interrupt()], **folder).fit()
    said = logged[0]
    assert ("finishing this batch and saving a checkpoint" in said) is saves
    assert ("saving nothing, since there is no save_folder" in said) is not saves


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


def test_errors_name_the_argument_that_is_meant(tmp_path):
    with pytest.raises(TypeError, match=r"grad_accum='auto' .* microbatch_size='auto'"):
        make_trainer(grad_accum="auto")
    path = tmp_path / "weights.pt"
    torch.save(linear().state_dict(), path)
    with pytest.raises(CheckpointError, match=r"weights.pt' .*load_weights_only=True"):
        make_trainer(load_path=path)


@pytest.mark.parametrize("reverse", [True, False])
def test_blurpool_and_squeeze_excite_have_an_order(reverse):
    algorithms = [SqueezeExcite(), BlurPool()]
    plan = Plan.compile(algorithms[::-1] if reverse else algorithms)
    assert [one.name for one in plan.algorithms] == ["BlurPool", "SqueezeExcite"]


def test_nested_trainers_are_not_reported():
    class Nest(Callback):
        def fit_start(self, state, logger):
            make_trainer(max_duration="1ba").fit()

    make_trainer(callbacks=[Nest()], max_duration="1ba", check_effects=False).fit()


def test_state_is_pickled():
    state = make_trainer(algorithms=[EMA("1ba")]).fit().evolve(loss_fn=None)
    loaded = pickle.loads(pickle.dumps(state))
    assert isinstance(loaded, State)
    assert same(weights(loaded.model), weights(state.model))
    assert same(loaded.averages["EMA"], state.averages["EMA"])
    assert loaded.timestamp == state.timestamp
    with pytest.raises(TypeError):
        loaded.memory["EMA"] = {}


def test_trainer_says_why_it_is_not_pickled():
    with pytest.raises(TypeError, match=r"cannot be pickled.* save_checkpoint\(path\)"):
        pickle.dumps(make_trainer())


@pytest.mark.parametrize("given", [{}, {"half_life": None}, {"half_life": "1000ba"}])
def test_default_half_life(given):
    assert str(EMA(**given).half_life) == "1000ba"


def test_smoothing_alone():
    ema = EMA(smoothing=0.999)
    assert (ema.half_life, ema.share_kept) == (None, 0.999)


def test_gradient_clipping_has_defaults():
    assert GradientClipping() == GradientClipping("norm", 1.0)


@pytest.mark.parametrize(("module", "pause"), [("ipykernel.iostream", 0.5), ("io", 10.0)])
def test_bar_in_notebooks(module, pause):
    stream = type("OutStream", (io.StringIO,), {"__module__": module})()
    bar = ProgressBarLogger(stream=stream)
    make_trainer(loggers=[bar], max_duration="1ba").fit()
    assert bar._pause == pause
