"""What loggers write through other packages is read back with the packages' own readers."""

import os
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure

from composable import Event, Logger, Timestamp
from composable.core.logger import UnsupportedLogWarning
from composable.distributed import Processes
from composable.loggers import (
    AzureMLLogger,
    CometLogger,
    CSVLogger,
    InMemoryLogger,
    LoggerFailureWarning,
    MLFlowLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandBLogger,
)
from composable.loggers.installed import installed_loggers
from composable.testing import NoSync
from tests.loggers.readers import (
    BACK_ENDS,
    WITH_PICTURES,
    finish,
    hparams_page,
    images,
    make_mlflow,
    size,
)
from tests.support import processes
from tests.support.data import batches
from tests.support.observers import Raise
from tests.support.parallel_results import log_rank
from tests.support.runs import make_trainer, trained

# Warnings of the packages about one another.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]

every_back_end = pytest.mark.parametrize("back_end", BACK_ENDS.values(), ids=BACK_ENDS)
with_pictures = pytest.mark.parametrize("name", WITH_PICTURES)


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    """Set up the packages without the settings and the credentials of this machine."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "COMET_", "MLFLOW_", "HF_MLFLOW_", "TRACKIO_")):
            monkeypatch.delenv(name)
    settings = {
        **{"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "1"},
        **{"MLFLOW_DISABLE_TELEMETRY": "true", "COMET_LOGGING_CONSOLE": "ERROR"},
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


EVALUATED = {"eval_dataloader": batches([4]), "check_effects": True}


def stamped(memory, name):
    return [(now.batch, values[name]) for now, values in memory.records if name in values]


# --- metrics


@every_back_end
def test_every_value_of_a_run_is_read_back(back_end, tmp_path):
    logger, memory = back_end.make(tmp_path, flush_interval=4), InMemoryLogger()
    trainer = make_trainer(loggers=[logger, memory], max_duration="1ep", **EVALUATED)
    trainer.fit()
    trainer.fit(duration="4ba")
    finish(logger)

    for name in ("loss/train", "metrics/eval/loss", "lr"):
        found, expected = back_end.series(tmp_path, name), stamped(memory, name)
        if back_end.name == "tensorboard":  # it has float32, which a loss is and 0.1 isn't
            expected = [(step, pytest.approx(value, rel=1e-7)) for step, value in expected]
        assert found == expected
    assert len(expected) == 7


@pytest.mark.parametrize("stop", [1, 8], ids=["no checkpoint", "checkpoint"])
@every_back_end
def test_a_resumed_run_has_each_value_once(back_end, stop, tmp_path):
    def run(stop):
        logger, memory = back_end.make(tmp_path), InMemoryLogger()
        trainer = make_trainer(
            loggers=[logger, memory],
            callbacks=[Raise(KeyboardInterrupt(), Event.BATCH_END, stop)],
            save_folder=tmp_path / "checkpoints",
            save_interval="2ba",
            autoresume=True,
            max_duration="3ep",
            **EVALUATED,
        )
        with suppress(KeyboardInterrupt):
            trainer.fit()
        finish(logger)
        return memory

    before, after = run(stop), run(None)  # saved at each second batch

    losses = dict(stamped(before, "loss/train")) | dict(stamped(after, "loss/train"))
    found = back_end.series(tmp_path, "loss/train")
    assert [step for step, _ in found] == list(range(1, 10))
    assert [value for _, value in found] == pytest.approx([losses[i] for i in range(1, 10)])
    assert [step for step, _ in back_end.series(tmp_path, "metrics/eval/loss")] == [3, 6, 9]


@pytest.mark.parametrize("name", ["wandb", "comet"])
def test_a_resume_writes_the_rows_that_never_reached_the_disk(name, tmp_path):
    def start(folder):
        (tmp_path / folder).mkdir()
        return BACK_ENDS[name].make(tmp_path / folder)

    def log(logger, *steps):
        for step in steps:
            logger.log_metrics({"loss": step / 2}, Timestamp(batch=step))

    killed = start("killed")
    log(killed, 1, 2, 3)
    state = killed.state_dict()
    finish(killed)
    resumed = start("resumed")  # its folder has no rows
    resumed.load_state_dict(state)
    log(resumed, 4)
    finish(resumed)

    found = BACK_ENDS[name].series(tmp_path / "resumed", "loss")
    assert found == [(step, step / 2) for step in (1, 2, 3, 4)]


@pytest.mark.filterwarnings("ignore::composable.trainer.guards.NonFiniteLossWarning")
@every_back_end
def test_a_rollback_repeats_nothing(back_end, tmp_path):
    def poison(event, state):
        if event is Event.AFTER_LOSS and state.timestamp.batch == 4 and not poisoned:
            poisoned.append(True)
            return state.evolve(loss=state.loss * torch.nan)
        return state

    poisoned = []
    logger = back_end.make(tmp_path, flush_interval=1)
    trainer = make_trainer(
        loggers=logger,
        algorithms=[poison],
        nonfinite_loss="rollback",
        save_folder=tmp_path / "checkpoints",
        save_interval="3ba",
    )
    trainer.fit()
    finish(logger)

    steps = [step for step, _ in back_end.series(tmp_path, "loss/train")]
    assert poisoned
    assert steps == sorted(set(steps))
    assert steps[-1] == trainer.state.timestamp.batch


@every_back_end
def test_reads_nothing_from_the_device_before_writing(back_end, tmp_path):
    logger = back_end.make(tmp_path)
    with NoSync():
        for batch in range(99):
            logger.log_metrics({"loss": torch.tensor(1.0)}, Timestamp(batch=batch))
    finish(logger)

    assert len(back_end.series(tmp_path, "loss")) == 99


@every_back_end
def test_values_of_every_kind_are_written(back_end, tmp_path):
    logger = back_end.make(tmp_path)
    kinds = {"int": 3, "bool": True, "half": torch.tensor(0.5, dtype=torch.bfloat16)}
    others = {"word": "a", "none": None, "nan": torch.tensor(torch.nan), "inf": float("inf")}
    logger.log_metrics({**kinds, **others}, Timestamp(batch=2))
    finish(logger)

    for name, value in {"int": 3, "half": 0.5}.items():
        assert back_end.series(tmp_path, name) == [(2, value)]


# --- everything else


@with_pictures
def test_pictures_histograms_texts_tables_and_artifacts_are_read_back(name, tmp_path):
    back_end, now = BACK_ENDS[name], Timestamp(epoch=1, batch=3)
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    figure = Figure(figsize=(2, 1))
    logger = back_end.make(tmp_path)
    log = Logger([logger])
    log.log_images({"faces": torch.rand(2, 3, 4, 5)}, now)
    log.log_histograms({"weights": torch.tensor([0.0, 0.2, 1.0])}, now)
    log.log_text({"story": "a <first> try"}, now)
    log.log_table("errors", ["label", "number"], [["cat", 2], ["dog", 31]], now)
    log.log_figure("plot", figure, now)
    if back_end.artifact:
        log.log_artifact("model", file)
    finish(logger)

    assert [size(one) for one in back_end.pictures(tmp_path, "faces")] == [(5, 4)] * 2
    assert [size(one) for one in back_end.pictures(tmp_path, "plot")] == [(200, 100)]
    counts = [int(count) for count in back_end.counts(tmp_path, "weights") if count]
    assert counts == [1, 1, 1]
    assert "first" in back_end.text(tmp_path, "story")
    table = back_end.table(tmp_path, "errors")
    assert all(word in table for word in ("label", "number", "cat", "dog", "31"))
    if back_end.artifact:
        assert back_end.artifact(tmp_path, "model") == b"weights"


@with_pictures
def test_hyperparameters_are_read_back(name, tmp_path):
    back_end = BACK_ENDS[name]
    logger = back_end.make(tmp_path)
    trainer = make_trainer(loggers=logger, max_duration="1ba")
    trainer.fit()
    trainer.fit(duration="1ba")  # another max_duration
    finish(logger)

    found = back_end.hyperparameters(tmp_path)
    assert str(found["seed"]).rstrip(".0") == "17"
    assert str(found["optimizers/0"]).strip('"') == "SGD"
    assert not any(name.startswith("modules") for name in found)


@with_pictures
def test_a_hyperparameter_may_have_the_name_of_the_folder_of_checkpoints(name, tmp_path):
    logger = BACK_ENDS[name].make(tmp_path)

    logger.log_hyperparameters({"save_folder": False, "epochs": 3})
    finish(logger)

    assert {"save_folder", "epochs"} <= BACK_ENDS[name].hyperparameters(tmp_path).keys()


# --- failures


@pytest.mark.parametrize("name", [name for name in BACK_ENDS if name != "json lines"])
def test_a_failure_is_one_warning_and_changes_no_weight(name, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    logger, memory = BACK_ENDS[name].make(tmp_path, flush_interval=1), InMemoryLogger()
    monkeypatch.setattr(logger, "_write_metrics", fail)

    with pytest.warns(LoggerFailureWarning) as caught:
        weights = trained(loggers=[logger, memory], **EVALUATED)

    (message,) = [str(one.message) for one in caught if one.category is LoggerFailureWarning]
    assert message.startswith(f"{logger.name} failed: OSError: no space left on device. Records")
    assert len(memory.series("loss/train")) == 6
    expected = trained(**EVALUATED)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    monkeypatch.undo()
    finish(logger)


def test_a_back_end_that_fails_again_and_again_is_called_no_more(tmp_path, monkeypatch):
    logger, calls = CSVLogger(tmp_path / "a.csv", flush_interval=1), []

    def fail(records):
        calls.append(records)
        raise OSError("no space left on device")

    monkeypatch.setattr(logger, "_write_metrics", fail)
    trainer = make_trainer(loggers=logger)
    with pytest.warns(LoggerFailureWarning, match="CSVLogger failed: OSError: no space"):
        trainer.fit()

    assert len(calls) == 3
    monkeypatch.undo()
    trainer.fit(duration="1ba")  # tried again
    assert "loss/train" in (tmp_path / "a.csv").read_text()


def test_a_back_end_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "events").write_text("a file, where a folder is wanted")

    with pytest.warns(LoggerFailureWarning, match="TensorBoardLogger failed: .* Nothing more"):
        make_trainer(loggers=TensorBoardLogger(tmp_path / "events" / "run")).fit()


def test_an_existing_table_is_not_replaced(tmp_path):
    (tmp_path / "a.csv").write_text("old\n")

    with pytest.raises(FileExistsError, match=r"a.csv' exists; pass another path, or overwrite"):
        make_trainer(loggers=CSVLogger(tmp_path / "a.csv")).fit()
    make_trainer(loggers=CSVLogger(tmp_path / "a.csv", overwrite=True)).fit()

    assert (tmp_path / "a.csv").read_text().startswith("epoch,batch,sample,seconds,loss/train,lr\n")


@every_back_end
def test_rejects_the_state_of_another_callback(back_end, tmp_path):
    with pytest.raises(ValueError, match="was it saved by another callback"):
        back_end.make(tmp_path).load_state_dict({"lowest": 1.0})


# --- processes and packages


@every_back_end
def test_other_processes_than_the_main_one_write_nothing(back_end, tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "current", lambda: Processes(rank=1, size=1))
    logger = back_end.make(tmp_path, flush_interval=1)
    before, state = list(tmp_path.iterdir()), logger.state_dict()
    make_trainer(loggers=logger).fit()
    Logger([logger]).log_text({"a": "b"})
    Logger([logger]).log_images({"faces": torch.zeros(1, 2, 2)})
    assert logger.state_dict() == state
    finish(logger)

    assert list(tmp_path.iterdir()) == before


def test_auto_is_one_logger_of_each_installed_package(monkeypatch):
    assert [type(one) for one in installed_loggers()] == [
        *(TensorBoardLogger, WandBLogger, TrackioLogger, CometLogger, MLFlowLogger)
    ]
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    trainer = make_trainer(loggers="auto")
    assert [one.name for one in trainer.plan.destinations] == ["TensorBoardLogger", "CometLogger"]
    assert make_trainer().plan.destinations == ()
    with pytest.raises(ValueError, match="loggers='tensorboard' must be 'auto'"):
        make_trainer(loggers="tensorboard")


# --- environment variables


def test_variables_of_wandb(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_PROJECT", "digits")
    monkeypatch.setenv("WANDB_WATCH", "all")
    monkeypatch.setenv("WANDB_LOG_MODEL", "end")
    logger = WandBLogger(dir=tmp_path)
    trainer = make_trainer(loggers=logger)
    trainer.fit()
    found = logger.run
    assert (found.project, found.offline) == ("digits", True)  # there are no credentials
    finish(logger)

    back_end = BACK_ENDS["wandb"]
    names = {name for kind in ("parameters", "gradients") for name in (f"{kind}/weight",)}
    assert all(back_end.series(tmp_path, name) for name in names)
    assert len(back_end.artifact(tmp_path, f"model-{found.id}")) > 100


@pytest.mark.parametrize(
    ("variable", "value", "kind", "message"),
    [
        ("WANDB_WATCH", "everything", WandBLogger, r"must be one of \['false', 'gradients'"),
        ("WANDB_LOG_MODEL", "maybe", WandBLogger, "'end', 'checkpoint'"),
        ("WANDB_DISABLED", "maybe", WandBLogger, "must be 'true' or 'false'"),
        ("COMET_MODE", "ON", CometLogger, "mode='on' must be one of"),
        ("COMET_LOG_ASSETS", "maybe", CometLogger, "must be 'true' or 'false'"),
        ("MLFLOW_TAGS", "team", MLFlowLogger, "must be a JSON object"),
        ("MLFLOW_NESTED_RUN", "2", MLFlowLogger, "must be 'true' or 'false'"),
    ],
)
def test_rejects_an_invalid_variable(variable, value, kind, message, monkeypatch):
    monkeypatch.setenv(variable, value)

    with pytest.raises(ValueError, match=message):
        kind()


def test_trackio_writes_to_this_machine_only(monkeypatch):
    with pytest.raises(ValueError, match=r"space_id is not supported.*call trackio\.sync"):
        TrackioLogger(space_id="me/space")
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="drop it and TRACKIO_SERVER_URL"):
        TrackioLogger()


def test_a_run_of_trackio_is_not_confused_with_another_one_of_its_name(tmp_path):
    logger, now = BACK_ENDS["trackio"].make(tmp_path, name="a"), Timestamp(batch=1)
    logger.log_metrics({"loss": 1.0}, now)
    saved = logger.state_dict()
    finish(logger)
    other = BACK_ENDS["trackio"].make(tmp_path, name="a")
    other.log_metrics({"loss": 2.0}, now)
    finish(other)

    resumed = BACK_ENDS["trackio"].make(tmp_path, name="a")
    resumed.load_state_dict(saved)
    resumed.log_metrics({"loss": 3.0}, now.next_batch(1))
    with pytest.warns(LoggerFailureWarning, match="followed by another one of this name"):
        finish(resumed)


@pytest.mark.parametrize(
    ("variable", "value", "kind"),
    [
        ("WANDB_DISABLED", "true", WandBLogger),
        ("WANDB_MODE", "disabled", WandBLogger),
        ("COMET_MODE", "DISABLED", CometLogger),
    ],
)
def test_a_disabled_logger_writes_nothing(variable, value, kind, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, value)

    make_trainer(loggers=kind()).fit()

    assert list(tmp_path.iterdir()) == []


def test_variables_of_comet(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_PROJECT_NAME", "digits")
    monkeypatch.setenv("COMET_MODE", "OFFLINE")
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "archives"))
    monkeypatch.setenv("COMET_LOG_ASSETS", "TRUE")
    logger = CometLogger()
    make_trainer(loggers=logger, save_folder=tmp_path / "checkpoints").fit()
    assert logger.experiment.project_name == "digits"
    finish(logger)

    assert BACK_ENDS["comet"].artifact(tmp_path / "archives", "checkpoints/ep2-ba6")


def test_variables_of_mlflow(monkeypatch, tmp_path):
    import mlflow

    store = f"sqlite:///{tmp_path}/mlflow.db"
    make_mlflow(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    monkeypatch.setenv("MLFLOW_TAGS", '{"team": "vision"}')
    monkeypatch.setenv("MLFLOW_NESTED_RUN", "true")
    monkeypatch.setenv("HF_MLFLOW_LOG_ARTIFACTS", "1")
    mlflow.set_experiment("digits")
    with mlflow.start_run() as parent:
        logger = MLFlowLogger()
        make_trainer(loggers=logger, save_folder=tmp_path / "checkpoints").fit()

    client = mlflow.MlflowClient()
    run = client.get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "digits"
    assert run.data.tags["team"] == "vision"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    saved = [one.path for one in client.list_artifacts(logger.run_id, "checkpoints")]
    assert "checkpoints/ep2-ba6" in saved
    monkeypatch.setenv("MLFLOW_RUN_ID", parent.info.run_id)
    assert MLFlowLogger().run_id == parent.info.run_id


def test_a_run_of_mlflow_that_fails_is_marked(tmp_path):
    logger = BACK_ENDS["mlflow"].make(tmp_path)
    trainer = make_trainer(
        loggers=logger, callbacks=[Raise(RuntimeError("stop"), Event.BATCH_END, 2)]
    )
    with pytest.raises(RuntimeError, match="stop"):
        trainer.fit()

    assert logger._client.get_run(logger.run_id).info.status == "FAILED"


def test_a_run_of_the_users_own_is_used(tmp_path):
    import wandb

    own = wandb.init(project="mine", mode="offline", dir=tmp_path)
    logger = WandBLogger(dir=tmp_path)
    make_trainer(loggers=logger).fit()

    assert logger.run is own
    own.finish()


# --- Azure


class FakeClient:
    """The methods of `MlflowClient` that the loggers call, without a server."""

    def __init__(self, address):
        self.address, self.calls = address, []

    def __getattr__(self, name):
        from mlflow.tracking import MlflowClient

        assert callable(getattr(MlflowClient, name))
        return lambda *args, **kwargs: self.calls.append(name)

    def get_run(self, run_id):
        return SimpleNamespace(data=SimpleNamespace(params={}, metrics={}))


@pytest.fixture
def azure(monkeypatch, tmp_path):
    """Make the packages of Azure importable, and its workspace a fake one."""
    for folder in ("azureml", "azureml/mlflow"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import mlflow

    monkeypatch.setattr(mlflow, "MlflowClient", FakeClient)
    yield
    for name in ("azureml", "azureml.mlflow"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("azure")
def test_azure_is_called_through_the_client_of_mlflow(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "azureml://westeurope.api.azureml.ms/mlflow/v1.0")
    monkeypatch.setenv("MLFLOW_RUN_ID", "job-17")
    assert AzureMLLogger in map(type, installed_loggers())
    logger = AzureMLLogger()
    make_trainer(loggers=logger, max_duration="1ba").fit()

    assert logger.run_id == "job-17"
    assert logger._client.calls == ["update_run", "log_batch", "log_batch", "set_terminated"]


@pytest.mark.usefixtures("azure")
def test_azure_needs_an_address():
    with pytest.raises(ValueError, match="AzureMLLogger needs the address of the workspace"):
        AzureMLLogger()


# --- several processes


def test_of_two_processes_one_writes(tmp_path):
    processes.run(log_rank, 2, tmp_path)

    for name in ("csv", "tensorboard"):
        assert BACK_ENDS[name].series(tmp_path, "rank") == [(1, 0), (2, 0), (3, 0)]
    assert len(list((tmp_path / "events").iterdir())) == 1


# --- what TensorBoard shows


def test_images_of_tensorboard_have_their_size(tmp_path):
    logger = BACK_ENDS["tensorboard"].make(tmp_path)
    for name, channels in {"gray": 1, "color": 3, "transparent": 4}.items():
        logger.log_images({name: torch.rand(channels, 5, 7)}, Timestamp(batch=1))
    logger.log_figure("plot", Figure(figsize=(2, 1)), Timestamp(batch=1))
    finish(logger)

    shown = {tag: images(tmp_path, tag)[0] for tag in ("gray", "color", "transparent", "plot")}
    assert {tag: (one.width, one.height) for tag, one in shown.items()} == {
        **dict.fromkeys(("gray", "color", "transparent"), (7, 5)),
        "plot": (200, 100),
    }


def test_the_hyperparameters_of_tensorboard_stand_beside_all_metrics(tmp_path):
    logger = BACK_ENDS["tensorboard"].make(tmp_path)
    make_trainer(loggers=logger, max_duration="1ep", **EVALUATED).fit()
    finish(logger)

    hyperparameters, metrics = hparams_page(tmp_path / "events")
    assert {"seed", "max_duration"} <= hyperparameters
    assert {"loss/train", "lr", "metrics/eval/loss"} <= metrics


# --- loggers="auto"


def test_automatic_loggers_write_what_others_do(tmp_path):
    trainer = make_trainer(loggers="auto", max_duration="1ep")
    trainer.fit()
    for logger in trainer.plan.destinations:
        finish(logger)

    (folder,) = (tmp_path / "runs").iterdir()
    (tmp_path / "events").symlink_to(folder)
    assert len(BACK_ENDS["tensorboard"].series(tmp_path, "loss/train")) == 3
    assert "seed" in BACK_ENDS["tensorboard"].hyperparameters(tmp_path)


def test_what_a_back_end_does_not_support_does_not_end_the_run(tmp_path):
    logger = CSVLogger(tmp_path / "a.csv", flush_interval=1)

    def log(event, state, logger):
        if event is Event.BATCH_END and state.timestamp.batch == 1:
            logger.log_artifact("file", tmp_path)
            logger.log_text({"story": "a first try"})

    with pytest.warns(UnsupportedLogWarning) as caught:
        make_trainer(loggers=logger, callbacks=log, max_duration="1ep").fit()

    dropped = {str(one.message).split()[4].strip(",") for one in caught}
    assert dropped == {"log_artifact", "log_text"}
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4
