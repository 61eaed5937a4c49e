"""What a run writes goes to files of its own: never through a link, and never over a device."""

import ast
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import torch

import composable
from composable.callbacks import ExportForInference, Profiler
from composable.checkpoint import files
from composable.comparison import Comparison
from composable.comparison.execution import Worker
from composable.comparison.study_file import write_study
from composable.loggers import CSVLogger, JSONLinesLogger, TensorBoardLogger
from composable.report import write_report
from tests.comparison.synthetic import make_study
from tests.report.folders import write_run
from tests.support.runs import make_trainer

PRECIOUS = "epoch,batch\nthe only copy\n"


def train(folder, **options):
    make_trainer(max_duration="2ba", **options).fit()


def record(folder):
    train(folder, save_folder=folder)


def autoresume(folder):
    train(folder, save_folder=folder, autoresume=True)


def compare(folder):
    Worker(folder, 0, threads=1).close()


def json_images(folder):
    with closing(JSONLinesLogger(folder / "metrics.jsonl")) as logger:
        logger.log_images({"face": torch.zeros(1, 2, 2)}, composable.Timestamp(batch=1))


def report(folder):
    write_report(write_run(folder / "run"), folder / "report.html")


WRITERS = {
    "run.lock": record,
    "run.json": record,
    "steps.jsonl": record,
    "events.jsonl": autoresume,
    "ep0-ba2": record,
    "metrics.jsonl": lambda f: train(f, loggers=JSONLinesLogger(f / "metrics.jsonl", append=True)),
    "all.jsonl": lambda f: train(f, loggers=JSONLinesLogger(f / "all.jsonl", overwrite=True)),
    "new.jsonl": lambda f: train(f, loggers=JSONLinesLogger(f / "new.jsonl")),
    "metrics.files/face-0-ba1.png": json_images,
    "metrics.csv": lambda f: train(f, loggers=CSVLogger(f / "metrics.csv", overwrite=True)),
    "worker-0.log": compare,
    "study.json": lambda f: Comparison(make_study()).save(f),
    "plot.png": lambda f: Comparison(make_study()).save(f),
    "report.html": report,
    "model.pt2": lambda f: train(f, callbacks=[ExportForInference(f / "model.pt2")]),
}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_a_link_in_the_last_place_is_refused_and_both_ends_are_named(name, exists, tmp_path):
    precious = tmp_path / "precious.txt"
    if exists:
        precious.write_text(PRECIOUS)
    link = tmp_path / "runs" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)

    with pytest.raises(Exception, match=r"is a link to") as caught:
        WRITERS[name](tmp_path / "runs")

    assert str(link) in str(caught.value)
    assert str(precious) in str(caught.value)
    assert precious.exists() == exists
    assert not exists or precious.read_text() == PRECIOUS
    assert link.is_symlink()


def test_the_folders_above_may_be_links(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    folder = tmp_path / "runs"

    logger = JSONLinesLogger(folder / "metrics.jsonl")
    train(folder, save_folder=folder, loggers=[logger, CSVLogger(folder / "metrics.csv")])

    written = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert {"run.json", "run.lock", "metrics.jsonl", "metrics.csv", "ep0-ba2"} <= written


def test_a_trace_is_written_beside_a_link_of_its_name(tmp_path):
    trace = tmp_path / "trace-ba2-ba2.json"
    trace.symlink_to(tmp_path / "elsewhere.json")
    make_trainer(callbacks=[Profiler(tmp_path, wait=0, active=1)]).fit()

    assert trace.is_symlink()
    assert not (tmp_path / "elsewhere.json").exists()


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_event_files_that_are_links_are_not_truncated(tmp_path):
    def run(duration):
        make_trainer(
            loggers=TensorBoardLogger(tmp_path / "events"),
            save_folder=tmp_path / "run",
            save_interval="1ba",
            autoresume=True,
            max_duration=duration,
        ).fit()

    run("2ba")
    (event_file,) = (tmp_path / "events").iterdir()
    precious = tmp_path / "precious.txt"
    event_file.rename(precious)
    with precious.open("ab") as file:
        file.write(b"more")
    content = precious.read_bytes()
    event_file.symlink_to(precious)

    with pytest.warns(composable.loggers.LoggerFailureWarning, match="is a link to"):
        run("3ba")

    assert precious.read_bytes() == content


# --- devices and pipes

LINES = {"csv": 4, "jsonl": 3}  # of three batches; the first line of CSV names the metrics


def run_logger(kind, path):
    logger = {"csv": CSVLogger, "jsonl": JSONLinesLogger}[kind](path)
    make_trainer(loggers=logger, max_duration="3ba", check_effects=False).fit()
    logger.state_dict()
    logger.close()


def run_with_standard_output(kind, out):
    """Log to the standard output, which is a file or a pipe meanwhile, between other lines."""
    out.write("before\n")
    out.flush()
    kept = os.dup(1)
    os.dup2(out.fileno(), 1)
    try:
        run_logger(kind, "/dev/stdout")
        os.write(1, b"the end\n")
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="has no /dev/stdout")
@pytest.mark.parametrize("kind", LINES)
def test_metrics_are_written_to_the_standard_output(kind, tmp_path):
    with (tmp_path / "out.txt").open("w") as out:
        run_with_standard_output(kind, out)
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        with os.fdopen(write, "w") as pipe:
            run_with_standard_output(kind, pipe)
        piped = reader.read()

    for written in (piped, (tmp_path / "out.txt").read_text()):
        before, metrics, *more, end = written.splitlines()
        assert (before, end) == ("before", "the end")
        assert "loss/train" in metrics
        assert len(more) == LINES[kind] - 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize("kind", LINES)
def test_a_pipe_is_written_to_and_not_replaced(kind, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        run_logger(kind, pipe)
        read = reader.communicate(timeout=60)[0]

    assert len(read.splitlines()) == LINES[kind]
    assert pipe.is_fifo()


def test_a_link_to_a_device_is_written_to_and_not_replaced(tmp_path):
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    write_study(make_study(), null)

    assert null.is_symlink()
    assert Path(os.devnull).is_char_device()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_with_the_name_of_a_record_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "steps.jsonl")

    with pytest.raises(files.CheckpointError, match=r"steps\.jsonl"):
        train(tmp_path, save_folder=tmp_path)


# --- one opener

OPENER = "_support/paths.py"
# A process that starts before the library can be imported, and creates a file in torch's folder.
ALLOWED = {"launch/rank.py: draft.open('x')"}
FLAGS = re.compile("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "savefig"}
FUNCTIONS = {
    *("os.truncate", "os.link", "os.symlink", "os.mkfifo", "os.mknod"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move", "torch.save"),
    *("tempfile.mkstemp", "tempfile.NamedTemporaryFile", "logging.FileHandler"),
}
INTO_MEMORY = ("buffer", "file")
LAST_NAMES = {"open", *METHODS, *(name.rpartition(".")[2] for name in FUNCTIONS)}


def opens_to_write(call):
    """Return whether a call opens a file to write, by its name and its arguments."""
    if getattr(call.func, "attr", getattr(call.func, "id", "")) not in LAST_NAMES:
        return False
    name = ast.unparse(call.func)
    arguments = [ast.unparse(one) for one in [*call.args, *(k.value for k in call.keywords)]]
    if name == "os.open":
        return bool(FLAGS.search(ast.unparse(call))) and arguments[0] != "os.devnull"
    method = name.rpartition(".")[2]
    if method == "open":
        modes = [one for one in arguments if re.fullmatch(r"'[rwxabt+]+'", one)]
        return bool(re.search(r"[wxa+]", "".join(modes)))
    written = method in METHODS or name in FUNCTIONS
    return written and not any(one in INTO_MEMORY for one in arguments)


def test_nothing_else_opens_a_file_to_write():
    root = Path(composable.__file__).parent
    found = {
        f"{path.relative_to(root).as_posix()}: {ast.unparse(node)}"
        for path in root.rglob("*.py")
        if path != root / OPENER
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_to_write(node)
    }

    assert found == ALLOWED, "open it with composable._support.paths"
