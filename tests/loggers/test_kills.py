"""A run that is killed and resumed has every step once in what each back end's reader shows.

`python -m tools.kill_campaign --back-ends 30` kills at random moments.
"""

import re
import signal

import pytest

from tests.loggers.readers import BACK_ENDS
from tests.support.campaign import drawn
from tests.support.commands import run_script
from tests.support.logged_run import BATCHES, INTERVAL

# Warnings of the packages about one another.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]

# Before the first checkpoint; with one just saved, before the evaluation of its step; after that.
MOMENTS = drawn(["batch_end 1", "after_save 3", "eval_end 6"], 1)


def run(folder, *moments):
    """Run the parts of the run, each in a process, and return their exit statuses."""
    given = ["logged_run", str(folder), "0", *moments]
    module = "runpy.run_module('tests.support.logged_run', run_name='__main__')"
    output, _ = run_script(f"import runpy, sys\nsys.argv = {given}\n{module}")
    return [int(line) for line in output.splitlines() if re.fullmatch(r"-?\d+", line)]


EXPECTED = {
    "loss/train": list(range(1, BATCHES + 1)),
    "lr": list(range(1, BATCHES + 1)),
    "metrics/eval/loss": list(range(INTERVAL, BATCHES + 1, INTERVAL)),
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
def test_every_step_is_shown_once_after_kills(tmp_path):
    """One test of all back ends, which log the same runs."""
    assert run(tmp_path, *MOMENTS, "end") == [*[-signal.SIGKILL] * len(MOMENTS), 0]
    for name, one in BACK_ENDS.items():
        found = {m: [step for step, _ in one.series(tmp_path, m)] for m in EXPECTED}
        assert found == EXPECTED, name
