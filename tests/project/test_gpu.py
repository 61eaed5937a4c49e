"""`make gpu`: the code of every part runs on a CPU, and results are kept and written to a page."""

import json
import sys
import time
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import packages
from benchmarks.gpu.models import source_tokens
from benchmarks.gpu.packages import Missing, describe_error, lacking, unpack
from benchmarks.gpu.page import TITLES, write_page
from benchmarks.gpu.setting import Setting, run_cases
from benchmarks.gpu.status import BEGIN, END, status_lines, write_status
from tests.support.campaign import FULL
from tests.support.processes import is_alive, wait_until

TINY = Setting("cpu", "tiny")


def rows_of(part):
    module, _, function = gpu.PARTS[part].partition(".")
    imported = __import__(f"benchmarks.gpu.{module}", fromlist=[function])
    return list(getattr(imported, function)(TINY))


NOT_ON_A_CPU = {
    *("tf32", "speedrun_gpt", "allocations at an error of the allocator"),
    "microbatch_size='auto' after an error of the allocator",
}
# Other tests run what is in the slowest two too.
SLOW = {"features", "precisions"}
PARTS = [one for one in gpu.PARTS if one != "processes" and (FULL or one not in SLOW)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.filterwarnings("ignore")
def test_every_case_of_a_part_runs_on_a_cpu(part):
    rows = rows_of(part)

    assert rows
    assert [row for row in rows if row["status"] == "failed"] == []
    missing = {row["case"] for row in rows if row["status"] == "missing"}
    assert missing <= NOT_ON_A_CPU or part == "waits"


@pytest.mark.campaign
def test_processes_are_killed_and_resume_on_a_cpu():
    assert [(row["status"], row["ranks"]) for row in rows_of("processes")] == [("passed", 2)]


def test_a_part_runs_in_its_own_process_and_writes_its_file(tmp_path, capsys):
    arguments = ["--device", "cpu", "--size", "tiny", "--output", str(tmp_path)]

    assert gpu.main([*arguments, "--part", "augmentations"]) == 0

    result = json.loads((tmp_path / "augmentations.json").read_text())
    assert {case["status"] for case in result["cases"]} == {"measured"}
    assert result["environment"]["size"] == "tiny"
    page = (tmp_path / "index.md").read_text()
    assert f"## {TITLES['augmentations']}" in page
    assert "\nNot run: `precisions`, `methods`," in page


def test_parts_share_their_minutes_and_get_what_others_leave(tmp_path, monkeypatch):
    limits, clock = [], [1000.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: clock[0])

    def run(command, limit):
        limits.append(limit)
        clock[0] += limit if len(limits) == 2 else 1

    monkeypatch.setattr(gpu, "_run_limited", run)
    parts = ["--part", "features", "--part", "waits", "--part", "peers"]
    gpu.main([*parts, "--minutes", "1.25", "--output", str(tmp_path)])

    assert limits == [40, 54, 20]
    assert sum(gpu.SHARES.values()) == 60 * gpu.MINUTES
    assert list(gpu.SHARES) == list(gpu.PARTS)


def test_a_part_that_is_stopped_keeps_what_it_has_finished(tmp_path, monkeypatch):
    def run(command, limit):
        rows = command[command.index("--rows") + 1]
        lines = [{"environment": {"device": "A"}}, {"case": "first", "status": "passed"}]
        Path(rows).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"stopped after {limit:.0f} s"

    monkeypatch.setattr(gpu, "_run_limited", run)

    assert gpu.main(["--part", "waits", "--minutes", "7", "--output", str(tmp_path)]) == 1

    result = json.loads((tmp_path / "waits.json").read_text())
    assert result["error"] == "stopped after 420 s"
    assert result["cases"] == [{"case": "first", "status": "passed"}]
    assert "**It ended early: stopped after 420 s.**" in (tmp_path / "index.md").read_text()


def test_a_command_is_stopped_at_its_limit():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]

    assert gpu._run_limited(command, 0.1) == "stopped after 0 s"


def test_processes_that_a_command_leaves_are_ended(tmp_path):
    path = tmp_path / "pid"

    assert gpu._run_limited(["sh", "-c", f"sleep 600 & echo $! > {path}"], 60) is None

    wait_until(lambda: not is_alive(int(path.read_text())))


def test_a_part_whose_package_is_absent_is_missing_and_wheels_supply_it(tmp_path, monkeypatch):
    code = "raise ModuleNotFoundError(\"No module named 'cattrs'\", name='cattrs')"
    path = tmp_path / "blocked"
    path.mkdir()
    (path / "attrs.py").write_text(code)
    arguments = ["--device", "cpu", "--size", "tiny", "--output", str(tmp_path), "--part", "peers"]
    monkeypatch.setenv("PYTHONPATH", str(path))
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert gpu.main(arguments) == 0

    def cases():
        return json.loads((tmp_path / "peers.json").read_text())["cases"]

    missing = [{"case": "all", "status": "missing", "error": "cattrs is not installed"}]
    assert cases() == missing
    with ZipFile(tmp_path / "attrs-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("attrs.py", code.replace("cattrs", "another"))

    assert gpu.main([*arguments, "--wheels", str(tmp_path)]) == 0

    assert cases()[0]["error"] == "another is not installed"


def test_a_folder_without_wheels_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no file"):
        unpack(tmp_path, tmp_path / "unpacked")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModuleNotFoundError("No module", name="tokenizers.models"), "missing"),
        (ModuleNotFoundError("No module", name="torch.new"), "failed"),
        (ImportError("cannot import name 'new' from 'torch'", name="torch"), "failed"),
        (RuntimeError("broken"), "failed"),
    ],
)
def test_only_an_absent_package_is_missing(error, status):
    assert describe_error(error)["status"] == status


def test_what_is_absent_is_named_with_the_command_that_carries_it(monkeypatch):
    present = {"hypothesis", "torch"}
    monkeypatch.setattr(packages, "find_spec", lambda name: name in present or None)

    lines = lacking()

    assert "needed by all parts: attrs, cattrs," in lines[0]
    assert lines[1].endswith("some parts: sortedcontainers, tokenizers, mlxtend.")
    assert " attrs cattrs " in lines[3]
    assert "torch" not in lines[3]


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


def test_a_page_has_a_plot_of_the_ratios_of_each_part(tmp_path):
    cases = [
        {"case": "MixUp", "status": "measured", "ratio": 1.1, "ratios": [1.0, 1.1, 1.2]},
        {"case": "CutOut", "status": "missing", "error": "none"},
    ]
    result = {"environment": {}, "seconds": 1.0, "error": None, "cases": cases}
    (tmp_path / "costs.json").write_text(json.dumps(result))

    assert "![Ratios: costs of methods](costs.svg)" in write_page(tmp_path).read_text()
    assert "MixUp" in (tmp_path / "costs.svg").read_text()

    (tmp_path / "costs.json").write_text(json.dumps({**result, "cases": cases[1:]}))
    assert "svg" not in write_page(tmp_path).read_text()
    assert not (tmp_path / "costs.svg").exists()


STATUSES = {"a": "passed", "x|y": "failed", "c": "missing"}


def gpu_result(cases, error=None, size="full"):
    found = {"device": "A | B", "torch": "2.11.0", "cuda": "13.0", "size": size}
    return {"date": "2026-01-02", "environment": found, "error": error, "cases": cases}


def row_of(part, folder):
    return next(line for line in status_lines(folder) if f"(`{part}`)" in line)


def test_a_table_says_what_each_part_has_shown_on_a_gpu(tmp_path):
    cases = [{"case": name, "status": status} for name, status in STATUSES.items()]
    (tmp_path / "compile.json").write_text(json.dumps(gpu_result(cases, "stopped after 470 s")))

    assert row_of("compile", tmp_path) == (
        "| Compiled steps (`compile`) | passes, without Inductor | "
        "1 passed, 1 failed, 1 missing; failed: x\\|y; missing: c; "
        "**stopped after 470 s** | A \\| B, torch 2.11.0, 2026-01-02 |"
    )
    assert row_of("waits", tmp_path) == "| No waiting in a step (`waits`) | passes | not run |  |"
    assert "**Nothing has been run on a GPU.**" not in list(status_lines(tmp_path))


@pytest.mark.parametrize("changes", [{"size": "tiny"}, {"cuda": "simulated"}, {"cuda": None}])
def test_a_run_without_a_gpu_or_at_a_tiny_size_is_not_a_run_on_a_gpu(tmp_path, changes):
    result = gpu_result([])
    result["environment"] |= changes
    if changes.get("cuda", "") is None:
        del result["environment"]["cuda"]
    (tmp_path / "compile.json").write_text(json.dumps(result))

    assert row_of("compile", tmp_path).endswith("| not run |  |")
    assert "**Nothing has been run on a GPU.**" in list(status_lines(tmp_path))


def test_the_table_is_written_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "status.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")

    write_status(page, tmp_path)
    text = page.read_text()
    write_status(page, tmp_path)

    assert page.read_text() == text
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"|\n\n{END}after\n")
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        write_status(page, tmp_path)


def test_a_gpt_reads_the_source_of_pytorch():
    tokens, name = source_tokens(50, 1000)

    assert tokens.shape == (1000,)
    assert tokens.unique().tolist() == list(range(50))
    assert name.startswith(f"source of torch {torch.__version__}, ")
    assert torch.equal(source_tokens(2, 1000)[0], tokens.clamp(max=1))
    assert source_tokens(50, 999)[1] != name


def test_every_part_has_a_title():
    assert list(TITLES) == list(gpu.PARTS)
