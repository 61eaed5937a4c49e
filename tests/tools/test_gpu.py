"""`make gpu`: the code of every part runs on a CPU, and results are kept and written to a page."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.page import write_page
from benchmarks.gpu.setting import Missing, Setting, run_cases

TINY = Setting("cpu", "tiny")


def rows_of(part):
    module, _, function = gpu.PARTS[part].partition(".")
    imported = __import__(f"benchmarks.gpu.{module}", fromlist=[function])
    return list(getattr(imported, function)(TINY))


@pytest.mark.parametrize("part", [one for one in gpu.PARTS if one != "processes"])
@pytest.mark.filterwarnings("ignore")
def test_every_case_of_a_part_runs_on_a_cpu(part):
    rows = rows_of(part)

    assert rows
    assert [row for row in rows if row["status"] == "failed"] == []
    missing = {row["case"] for row in rows if row["status"] == "missing"}
    assert missing <= {"tf32", "speedrun_gpt"}


def test_a_part_runs_in_its_own_process_and_writes_its_file(tmp_path, capsys):
    arguments = ["--device", "cpu", "--size", "tiny", "--output", str(tmp_path)]

    assert gpu.main([*arguments, "--part", "processes", "--part", "language"]) == 0

    result = json.loads((tmp_path / "processes.json").read_text())
    assert [case["status"] for case in result["cases"]] == ["passed"]
    assert result["cases"][0]["ranks"] == 2
    assert result["environment"]["size"] == "tiny"
    page = (tmp_path / "index.md").read_text()
    assert "## Several processes" in page
    assert "composable.recipes has no speedrun_gpt" in page


def test_a_part_that_is_stopped_keeps_what_it_has_finished(tmp_path, monkeypatch):
    class Popen:
        def run(self, command, timeout, **others):
            rows = command[command.index("--rows") + 1]
            lines = [{"environment": {"device": "A"}}, {"case": "first", "status": "passed"}]
            Path(rows).write_text("".join(json.dumps(line) + "\n" for line in lines))
            raise gpu.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(gpu.subprocess, "run", Popen().run)

    assert gpu.main(["--part", "waits", "--limit", "7", "--output", str(tmp_path)]) == 1

    result = json.loads((tmp_path / "waits.json").read_text())
    assert result["error"] == "stopped after 7 s"
    assert result["cases"] == [{"case": "first", "status": "passed"}]
    assert "**It ended early: stopped after 7 s.**" in (tmp_path / "index.md").read_text()


def test_a_case_that_fails_or_misses_something_does_not_stop_the_others():
    def fails(setting):
        raise RuntimeError("broken | `x` <b>")

    def lacks(setting):
        raise Missing("no data")

    rows = list(run_cases({"a": fails, "b": lacks, "c": lambda setting: {"ms": 1.0}}, TINY))

    assert [row["status"] for row in rows] == ["failed", "missing", "passed"]
    assert rows[0]["error"] == "RuntimeError: broken | `x` <b>"
    assert rows[2]["ms"] == 1.0


def test_texts_of_errors_are_not_markup(tmp_path):
    case = {"case": "a|b", "status": "failed", "error": "<script> `x` |", "traceback": ""}
    result = {"environment": {}, "seconds": time.time(), "error": None, "cases": [case]}
    (tmp_path / "waits.json").write_text(json.dumps(result))

    assert r"| a\|b | **failed**: \<script> 'x' \| |" in write_page(tmp_path).read_text()
