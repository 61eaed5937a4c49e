"""A trial of Optuna has each evaluation once, and is pruned at the same one, also after a kill."""

import os
import signal
import warnings
from functools import partial
from multiprocessing import get_context

import optuna
import pytest
import torch
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

from composable.callbacks import PruneTrial
from composable.checkpoint import MismatchError
from tests.support.data import batches
from tests.support.processes import run
from tests.support.runs import make_trainer

PRUNED_AT = 5  # after the sixth evaluation without an improvement


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def make_study(folder=None, **options):
    """Make or load a study whose pruner waits five steps for an improvement."""
    return optuna.create_study(
        storage=None if folder is None else RDBStorage(f"sqlite:///{folder}/study.db"),
        study_name="search",
        load_if_exists=True,
        pruner=optuna.pruners.PatientPruner(None, patience=PRUNED_AT - 1),
        **options,
    )


def objective(trial, folder=None, callbacks=(), **options):
    """Train a model that gets worse, or one with other options, and resume from a folder."""
    pruner = PruneTrial(trial, "eval/loss")
    saved = {}
    if folder is not None:
        place = folder / f"trial-{pruner.number}"
        saved = {"save_folder": place, "save_interval": "2ba", "autoresume": True}
    trainer = make_trainer(
        loader=batches([4]),
        optimizers=partial(torch.optim.SGD, lr=0.01, **{"maximize": True, **options}),
        eval_dataloader=batches([4]),
        eval_interval="1ba",
        max_duration="9ba",
        callbacks=[*callbacks, pruner],
        **saved,
    )
    return trainer.fit().metrics["eval"]["loss"]


def test_a_trial_that_does_not_improve_is_pruned_and_another_is_not():
    study = make_study()
    study.optimize(objective, n_trials=1)
    study.optimize(lambda trial: objective(trial, maximize=False), n_trials=1)

    pruned, whole = study.trials
    assert pruned.state.name == "PRUNED"
    assert list(pruned.intermediate_values) == list(range(PRUNED_AT + 1))
    assert whole.state.name == "COMPLETE"
    assert list(whole.intermediate_values) == list(range(9))
    assert whole.value == whole.intermediate_values[8]


def run_and_die(folder, batch):
    """Run a trial of the study until its evaluation after a batch was reported."""

    def die(event, state, logger):
        if event.value == "eval_after_all" and state.timestamp.batch == batch:
            trial.report(state.metrics["eval"]["loss"], batch - 1)
            os.kill(os.getpid(), signal.SIGKILL)

    trial = make_study(folder).ask()
    objective(trial, folder, [die])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
@pytest.mark.parametrize("batch", [1, 4, PRUNED_AT + 1])
@pytest.mark.parametrize("inherits", [False, True])
def test_a_killed_trial_is_pruned_where_it_would_have_been(tmp_path, batch, inherits):
    process = get_context("fork").Process(target=run_and_die, args=(tmp_path, batch))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    study = make_study(tmp_path)
    (killed,) = study.trials
    study.tell(killed.number, state=optuna.trial.TrialState.FAIL)
    RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=inherits)(study, killed)

    study.optimize(lambda trial: objective(trial, tmp_path), n_trials=1)

    retried = study.trials[-1]
    assert retried.state.name == "PRUNED"
    assert list(retried.intermediate_values) == list(range(PRUNED_AT + 1))
    assert len(list(tmp_path.glob("trial-*"))) == 1


def test_a_resume_needs_a_study_with_a_storage(tmp_path):
    with pytest.raises(ValueError, match=r"storage='sqlite:///study\.db'"):
        objective(make_study().ask(), tmp_path)


def test_a_checkpoint_of_another_trial_is_refused(tmp_path):
    study = make_study(tmp_path)
    options = {"eval_dataloader": batches([4]), "save_folder": tmp_path / "a", "autoresume": True}
    make_trainer(callbacks=PruneTrial(study.ask(), "loss"), **options).fit()
    with pytest.raises(MismatchError, match="of trial search/0, and this is search/1"):
        make_trainer(callbacks=PruneTrial(study.ask(), "loss"), **options)


def test_a_study_that_prefers_the_worse_result_is_named():
    trial = make_study(direction="maximize").ask()
    with pytest.warns(UserWarning, match="pass direction='minimize'"):
        make_trainer(callbacks=PruneTrial(trial, "loss"), eval_dataloader=batches([4]))


def test_a_fixed_trial_is_never_pruned():
    assert objective(optuna.trial.FixedTrial({})) > 0


def pruned_on_this_process():
    """Return whether a run of several processes, of which rank 0 has the trial, is pruned."""
    from composable.distributed import Processes

    said, study = [], make_study() if Processes.current().is_main else None
    for _ in range(2):
        with pytest.raises(optuna.TrialPruned) as raised:
            objective(study and study.ask())
        said.append(str(raised.value))
        assert Processes.current().several  # their connections are open
    return said


def test_trials_of_two_processes_are_pruned_on_both_one_after_the_other():
    ours, theirs = run(pruned_on_this_process, 2, seconds=60)
    assert ours == theirs
    assert all("after batch" in one for one in ours)
