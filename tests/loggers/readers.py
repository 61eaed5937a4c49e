"""Loggers with back ends, and what the packages' own readers find in what they wrote."""

import csv
import functools
import io
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
from PIL import Image

from composable.loggers import (
    CometLogger,
    CSVLogger,
    JSONLinesLogger,
    MLFlowLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandBLogger,
)
from composable.loggers._offline import wandb_records
from tests.support.processes import wait_until

__all__ = ["BACK_ENDS", "WITH_PICTURES", "BackEnd", "size"]

Series = list[tuple[int, Any]]


@attrs.frozen
class BackEnd:
    """A kind of logger, and how to read what it wrote to a folder."""

    name: str
    make: Callable[..., Any]
    """Makes a logger that writes to a folder."""
    series: Callable[[Path, str], Series]
    """The steps and values of a metric, oldest first."""
    hyperparameters: Callable[[Path], dict[str, Any]] | None = None
    pictures: Callable[[Path, str], list[bytes]] | None = None
    """The pictures of a name, in the format PNG."""
    counts: Callable[[Path, str], list[float]] | None = None
    """The counts of a histogram."""
    text: Callable[[Path, str], str] | None = None
    table: Callable[[Path, str], str] | None = None
    """The text of a table, in any format."""
    artifact: Callable[[Path, str], bytes] | None = None
    """The content of the file of an artifact."""


def size(picture: bytes) -> tuple[int, int]:
    """Return width and height."""
    with Image.open(io.BytesIO(picture)) as image:
        return image.size  # type: ignore[no-any-return]


# --- TensorBoard


def _events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    everything = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    events = EventAccumulator(str(folder / "events"), size_guidance=everything)
    events.Reload()
    return events


def _tensorboard_series(folder: Path, name: str) -> Series:
    events = _events(folder)
    found = events.Scalars(name) if name in events.Tags()["scalars"] else []
    return [(event.step, event.value) for event in found]


def _tensorboard_pictures(folder: Path, name: str) -> list[bytes]:
    events = _events(folder)
    tags = [tag for tag in events.Tags()["images"] if tag.split("/")[0] == name]
    return [event.encoded_image_string for tag in tags for event in events.Images(tag)]


def _tensorboard_counts(folder: Path, name: str) -> list[float]:
    return list(_events(folder).Histograms(name)[-1].histogram_value.bucket)


def _tensorboard_text(folder: Path, name: str) -> str:
    tensor = _events(folder).Tensors(f"{name}/text_summary")[-1].tensor_proto
    return tensor.string_val[0].decode()  # type: ignore[no-any-return]


def _tensorboard_hyperparameters(folder: Path) -> dict[str, Any]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = _events(folder)
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = HParamsPluginData.FromString(content).session_start_info
    return {name: getattr(v, v.WhichOneof("kind")) for name, v in start.hparams.items()}


# --- Weights & Biases


_WANDB = "wandb/offline-run-*/*.wandb"


def _wandb_row(history: Any) -> tuple[int, dict[str, Any]]:
    row: dict[str, Any] = {}
    for item in history.item:
        *parents, name = item.nested_key or [item.key]
        inner = functools.reduce(lambda one, parent: one.setdefault(parent, {}), parents, row)
        inner[name] = json.loads(item.value_json)
    return row["_step"], row


def _wandb_series(folder: Path, name: str) -> Series:
    rows = map(_wandb_row, _wandb_records(folder, "history"))
    return [(step, row[name]) for step, row in rows if name in row]


def _wandb_records(folder: Path, kind: str) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob(_WANDB)):
        for raw in wandb_records(path.read_bytes()):
            record = Record.FromString(raw)
            if record.WhichOneof("record_type") == kind:
                yield getattr(record, kind)


def _wandb_hyperparameters(folder: Path) -> dict[str, Any]:
    found = {}
    for config in _wandb_records(folder, "config"):
        found.update({u.key or u.nested_key[0]: json.loads(u.value_json) for u in config.update})
    return found


def _wandb_files(folder: Path, path: str) -> bytes:
    (found,) = folder.glob(f"wandb/offline-run-*/files/{path}")
    return found.read_bytes()


def _wandb_pictures(folder: Path, name: str) -> list[bytes]:
    ((_, found),) = _wandb_series(folder, name)
    return [_wandb_files(folder, path) for path in found["filenames"]]


def _wandb_artifact(folder: Path, name: str) -> bytes:
    (artifact,) = [a for a in _wandb_records(folder, "artifact") if a.name == name]
    return Path(artifact.manifest.contents[0].local_path).read_bytes()


# --- MLflow


@functools.cache
def _empty_store() -> Path:
    """Make a store once: MLflow takes seconds for it."""
    from mlflow import MlflowClient

    path = Path(tempfile.mkdtemp()) / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def make_mlflow(folder: Path, **more: Any) -> MLFlowLogger:
    """Make a logger with a store in the folder."""
    path = folder / "mlflow.db"
    if not path.exists():
        shutil.copyfile(_empty_store(), path)
    return MLFlowLogger("test", tracking_uri=f"sqlite:///{path}", **more)


def _mlflow(folder: Path) -> tuple[Any, str]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return client, run.info.run_id


def _mlflow_series(folder: Path, name: str) -> Series:
    client, run = _mlflow(folder)
    return [(one.step, one.value) for one in client.get_metric_history(run, name)]


def _mlflow_files(folder: Path, path: str) -> list[bytes]:
    client, run = _mlflow(folder)
    kind, _, _ = path.partition("/")
    files = [f.path for f in client.list_artifacts(run, kind) if f.path.startswith(path)]
    return [Path(client.download_artifacts(run, f, str(folder))).read_bytes() for f in files]


def _mlflow_hyperparameters(folder: Path) -> dict[str, Any]:
    client, run = _mlflow(folder)
    return dict(client.get_run(run).data.params)


# --- Comet


def _comet_messages(folder: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    for path in sorted(folder.glob("*.zip"), key=lambda one: one.stat().st_mtime):
        with zipfile.ZipFile(path) as archive:
            if not archive.namelist():  # the package creates it before it has anything to write
                continue
            for line in archive.read("messages.json").splitlines():
                yield archive, json.loads(line)


def _comet_series(folder: Path, name: str) -> Series:
    found = [message["payload"].get("metric") or {} for _, message in _comet_messages(folder)]
    return [(m["step"], float(m["metricValue"])) for m in found if m.get("metricName") == name]


def _comet_files(folder: Path, name: str) -> list[bytes]:
    """Return the files whose name begins with a name."""
    found = []
    for archive, message in _comet_messages(folder):
        if message["type"] == "file_upload":
            payload = message["payload"]
            about = {**payload["additional_params"], **(payload["metadata"] or {})}
            if about.get("name", about.get("figName", about.get("fileName"))).startswith(name):
                found.append(archive.read(payload["file_path"]))
    return found


def _comet_hyperparameters(folder: Path) -> dict[str, Any]:
    found = [message["payload"].get("param") or {} for _, message in _comet_messages(folder)]
    return {one["paramName"]: one["paramValue"] for one in found if one}


# --- Trackio


def make_trackio(folder: Path, **more: Any) -> TrackioLogger:
    """Make a logger with the database of the package in the folder."""
    _trackio_folder(folder)
    return TrackioLogger("test", auto_log_cpu=False, **more)


def _trackio_folder(folder: Path) -> None:
    """Let the package work in a folder, as a process with TRACKIO_DIR would."""
    import trackio

    places = {"TRACKIO_DIR": folder / "trackio", "MEDIA_DIR": folder / "trackio" / "media"}
    places["ARTIFACTS_DIR"] = folder / "trackio" / "artifacts"
    for module in [one for name, one in sys.modules.items() if name.startswith(trackio.__name__)]:
        for name in places.keys() & vars(module).keys():
            setattr(module, name, places[name])


def _trackio_run(folder: Path) -> tuple[Any, str]:
    """Return the storage of the package, and the name of the run."""
    from trackio.sqlite_storage import SQLiteStorage

    _trackio_folder(folder)
    (run,) = SQLiteStorage.get_runs("test")
    return SQLiteStorage, run


def _trackio_series(folder: Path, name: str) -> Series:
    storage, run = _trackio_run(folder)
    rows = storage.get_logs("test", run)
    names = (name, f"{name}/0", f"{name}/1")
    return [(row["step"], row[key]) for row in rows for key in row if key in names]


def _trackio_value(folder: Path, name: str) -> Any:
    return _last(_trackio_series(folder, name))[1]


def _trackio_hyperparameters(folder: Path) -> dict[str, Any]:
    storage, run = _trackio_run(folder)
    return storage.get_run_config("test", run)  # type: ignore[no-any-return]


def _trackio_pictures(folder: Path, name: str) -> list[bytes]:
    found = [one["file_path"] for _, one in _trackio_series(folder, name)]
    return [(folder / "trackio" / "media" / path).read_bytes() for path in found]


def _trackio_artifact(folder: Path, name: str) -> bytes:
    from trackio import cas

    storage, _ = _trackio_run(folder)
    (entry,) = storage.get_artifact_manifest("test", name, None)["manifest"]
    return cas.blob_path("test", entry["digest"]).read_bytes()  # type: ignore[no-any-return]


# --- files of this library


def _csv_series(folder: Path, name: str) -> Series:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(name)]
    return [(int(row["batch"]), float(row[name])) for row in rows]


def _json_series(folder: Path, name: str) -> Series:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["batch"], line[name]) for line in lines if name in line]


def _last(found: list[Any]) -> Any:
    return found[-1]


BACK_ENDS = {
    one.name: one
    for one in (
        BackEnd(
            "tensorboard",
            lambda folder, **more: TensorBoardLogger(folder / "events", **more),
            _tensorboard_series,
            _tensorboard_hyperparameters,
            _tensorboard_pictures,
            _tensorboard_counts,
            _tensorboard_text,
            _tensorboard_text,
        ),
        BackEnd(
            "wandb",
            lambda folder, **more: WandBLogger("test", mode="offline", dir=folder, **more),
            _wandb_series,
            _wandb_hyperparameters,
            _wandb_pictures,
            lambda folder, name: _last(_wandb_series(folder, name))[1]["values"],
            lambda folder, name: _wandb_files(
                folder, _last(_wandb_series(folder, name))[1]["path"]
            ).decode(),
            lambda folder, name: _wandb_files(
                folder, _last(_wandb_series(folder, name))[1]["path"]
            ).decode(),
            _wandb_artifact,
        ),
        BackEnd(
            "mlflow",
            make_mlflow,
            _mlflow_series,
            _mlflow_hyperparameters,
            lambda folder, name: _mlflow_files(folder, f"images/{name}"),
            lambda folder, name: json.loads(_mlflow_files(folder, f"histograms/{name}")[0])[
                "counts"
            ],
            lambda folder, name: _mlflow_files(folder, f"texts/{name}")[0].decode(),
            lambda folder, name: _mlflow_files(folder, f"tables/{name}")[0].decode(),
            lambda folder, name: _mlflow_files(folder, f"{name}/")[0],
        ),
        BackEnd(
            "comet",
            lambda folder, **more: CometLogger(
                "test", mode="offline", offline_directory=folder, **more
            ),
            _comet_series,
            _comet_hyperparameters,
            _comet_files,
            lambda folder, name: json.loads(_comet_files(folder, f"histogram/{name}")[0])["counts"],
            lambda folder, name: _comet_files(folder, name)[0].decode(),
            lambda folder, name: _comet_files(folder, f"table/{name}")[0].decode(),
            lambda folder, name: _comet_files(folder, f"{name}/")[0],
        ),
        BackEnd(
            "trackio",
            make_trackio,
            _trackio_series,
            _trackio_hyperparameters,
            _trackio_pictures,
            lambda folder, name: _trackio_value(folder, name)["values"],
            lambda folder, name: _trackio_value(folder, name)["_value"],
            lambda folder, name: json.dumps(_trackio_value(folder, name)),
            _trackio_artifact,
        ),
        BackEnd(
            "csv", lambda folder, **more: CSVLogger(folder / "metrics.csv", **more), _csv_series
        ),
        BackEnd(
            "json lines",
            lambda folder, **more: JSONLinesLogger(folder / "metrics.jsonl", **more),
            _json_series,
        ),
    )
}

WITH_PICTURES = [name for name, one in BACK_ENDS.items() if one.pictures]


def finish(logger: Any, *, killed: int = 0) -> None:
    """End a run, and wait until its files are written, but for those of killed processes."""
    logger.close()
    getattr(logger, "finish", logger.close)()
    if isinstance(logger, WandBLogger) and logger.dir is not None:
        _wait_for_wandb(logger.dir, killed)


def _wait_for_wandb(folder: Path, killed: int) -> None:
    """Wait until the process that writes the files has written the last record."""
    files = len(list(folder.glob(_WANDB))) - killed
    wait_until(lambda: len(list(_wandb_records(folder, "exit"))) >= files, 30)


# --- pages of TensorBoard


def images(folder: Path, tag: str) -> list[Any]:
    """Return the images of a tag, with the sizes that the page uses."""
    return list(_events(folder).Images(tag))


def hparams_page(folder: Path) -> tuple[set[str], set[str]]:
    """Return the hyperparameters and the metrics that the page HPARAMS lists."""
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import backend_context

    runs = plugin_event_multiplexer.EventMultiplexer()
    runs.AddRunsFromDirectory(str(folder)).Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(folder))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    written = backend.hparams_metadata(request, "")
    found = backend.experiment_from_metadata(request, "", True, written, [])
    return {one.name for one in found.hparam_infos}, {one.name.tag for one in found.metric_infos}
