"""A run that is killed and resumed has every step once in what each back end's reader shows.

`python -m tools.kill_campaign --loggers` kills at random moments.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loggers.readers import BACK_ENDS
from tests.support.logged_run import BATCHES, INTERVAL

# Warnings of the packages about one another.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[2]
# Before the first checkpoint; with one just saved, before the evaluation of its step; after that.
MOMENTS = ["batch_end 1", "after_save 3", "eval_end 6"]


def run(folder, moment):
    """Run a part of the run in a process, and return its exit status."""
    command = [sys.executable, "-m", "tests.support.logged_run", str(folder), moment]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    assert process.returncode in (0, -signal.SIGKILL), process.stderr.decode()[-3000:]
    return process.returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Kill a run with all back ends at each moment, and resume it to its end."""
    folder = tmp_path_factory.mktemp("kills")
    statuses = [run(folder, moment) for moment in [*MOMENTS, "end"]]
    assert statuses == [*[-signal.SIGKILL] * len(MOMENTS), 0]
    return folder


EXPECTED = {
    "loss/train": list(range(1, BATCHES + 1)),
    "lr": list(range(1, BATCHES + 1)),
    "metrics/eval/loss": list(range(INTERVAL, BATCHES + 1, INTERVAL)),
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
@pytest.mark.parametrize("name", [*BACK_ENDS, "json lines"])
def test_every_step_is_shown_once_after_kills(name, folder):
    for metric, steps in EXPECTED.items():
        if name == "json lines":
            lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            found = [line["batch"] for line in lines if metric in line]
        else:
            found = [step for step, _ in BACK_ENDS[name].series(folder, metric)]
        assert found == steps, metric
