"""The questions to trainers can be answered by no, and the page shows the recorded answers."""

import json
import re
import runpy
from itertools import pairwise

import pytest
import torch

from benchmarks.trainers import questions
from benchmarks.trainers.job import STEPS, Job
from benchmarks.trainers.processes import in_a_new_process
from benchmarks.trainers.questions import QUESTIONS
from tests.support.cases import ROOT
from tools.trainers import NAMES, recorded


class Trainer:
    """A trainer whose weight counts the steps; it may begin again, and fail as told."""

    def __init__(self, *, continues=True, divides=True, error="", report=0.0, sorts=True):
        self.continues, self.divides, self.error, self.report = continues, divides, error, report
        self.sorts = sorts

    def __call__(self, job):
        job.folder.mkdir(parents=True, exist_ok=True)
        done = len(job.losses()) if self.continues else 0
        if job.losses() and self.error:
            return self.error
        limits = [one for one in (job.kill_after, job.cut_after) if one is not None]
        steps = min(STEPS - done, *limits) if limits else STEPS - done
        for step in range(done + 1, done + steps + 1):
            job.record(step, 1.0)
        weight = len(job.losses()) + (not self.divides) * 0.1 * job.microbatches
        if job.algorithms:
            job.apply(dict.fromkeys(job.algorithms, object))
            weight += (not self.sorts) * (job.algorithms[0] == "MixUp")
        if not limits:
            job.finish({"weight": torch.tensor(float(weight))})
        if job.average:
            results = {"reported": 0.25 + self.report, "of_saved": 0.25}
            (job.folder / "results.json").write_text(json.dumps(results))
        return ""


@pytest.mark.parametrize(
    ("trainer", "answers"),
    [
        (Trainer(), [True, True, True, True, True]),
        (Trainer(continues=False), [False, True, False, True, True]),
        (Trainer(divides=False), [True, False, True, True, True]),
        (Trainer(error="EOFError"), [False, True, False, True, True]),
        (Trainer(report=0.1), [True, True, True, False, True]),
        (Trainer(sorts=False), [True, True, True, True, False]),
    ],
)
def test_a_trainer_is_told_from_one_that_does_not(trainer, answers, tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "RUNS", 3)
    found = [answer(trainer, tmp_path) for answer in QUESTIONS.values()]

    assert [does for does, _ in found] == answers


def test_runs_are_counted_with_what_was_seen_of_those_that_fail():
    does, fails = (True, "same bits"), (False, "weights differ")

    assert questions.counted([does, does]) == (True, "2 of 2: same bits")
    assert questions.counted([does, fails, does]) == (False, "2 of 3; otherwise weights differ")


def test_the_example_of_the_page_is_a_trainer(tmp_path):
    page = (ROOT / "docs/your_trainer.md").read_text()
    code = next(one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "version" in one)
    (mine := tmp_path / "mine.py").write_text(code)

    job = Job(tmp_path / "run")
    assert in_a_new_process(str(mine), job) == ""

    losses = [loss for _, loss in job.losses()]
    assert len(losses) == STEPS
    assert sum(later < earlier for earlier, later in pairwise(losses)) > STEPS // 2


def test_the_picture_and_the_record_belong_together():
    draw = runpy.run_path(str(ROOT / "docs/pictures/killed.py"))["draw"]

    assert (ROOT / "docs/pictures/killed.svg").read_text() == draw()
    found = recorded()
    assert list(found) == list(NAMES)
    for one in found.values():
        for question in [*QUESTIONS][::2][:2]:
            assert f" of {questions.RUNS}" in one["answers"][question][1]
    assert all(does for does, _ in found["composable"]["answers"].values())
    assert found["composable"]["whole"] == found["composable"]["killed"]
