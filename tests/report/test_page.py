"""The page is one file without outside references, and has what the runs have.

`tools/check_report.py` opens a page in a browser.
"""

import base64
import gzip
import json
import math
import re
import sys

import pytest

from composable.checkpoint import MissingCheckpointError
from composable.cli import main
from composable.report import RecordedRun, write_report
from composable.report import page as pages
from composable.runs import records
from tests.report.folders import ended, write_run
from tests.support.pages import Page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e"


def report(tmp_path, *runs, **options):
    path = write_report(runs or [tmp_path], tmp_path / "report.html", **options)
    assert path.stat().st_size <= pages.MAX_BYTES
    return Page(path.read_text(encoding="utf-8"))


def data_of(page):
    """Return what the script of a page reads."""
    return json.loads(page.texts["data"])


@pytest.fixture
def two_runs(tmp_path):
    """Two runs that differ in more than the seed, and have everything that a page shows."""
    results = [(49, {"eval/accuracy": 0.5}), (99, {"eval/accuracy": 0.75})]
    plan = {
        "caveats": ["MixUp after LabelSmoothing"],
        "steps": [{"event": "batch_end", "who": "EMA", "stage": "average", "why": "alone"}],
    }
    warning = {"event": "warning", "batch": 3, "category": "UserWarning", "message": "odd loss"}
    split = {"batch": 100, "time_split/data": 10.0, "time_split/forward": 30.0}
    for name, lr in (("first", 0.1), ("second", 0.2)):
        write_run(
            tmp_path / name,
            [1 / (i + 1) for i in range(100)],
            results=results,
            events=[*ended(100, 75.0), warning],
            metrics=[split],
            plan=plan,
            hyperparameters={"lr": lr},
        )
    return tmp_path


def test_the_page_has_every_section_and_what_the_runs_recorded(two_runs):
    page = report(two_runs)

    sections = [a["id"] for tag, a in page.elements if tag == "section"]
    wanted = ["overview", "differences", "curves", "time", "plan", "warnings"]
    assert [name for name in sections if name in wanted] == wanted
    for section, texts in {
        "overview": ["first", "finished", "100 of 100ba", "1 min 15 s", "10.7", "0.75", "0.01"],
        "differences": ["hyperparameters/lr", "0.1", "0.2"],
        "time": ["40 s", "25 %", "75 %"],
        "plan": ["MixUp", "batch_end", "EMA"],
        "warnings": ["odd loss", "UserWarning", "batch 3", "MixUp after LabelSmoothing"],
        "configuration": ["algorithms/MixUp", "MixUp(alpha=0.2)", "versions/python", "3.12.1"],
    }.items():
        for text in texts:
            assert text in page.texts[section], (section, text)
    charts = {chart["name"]: chart for chart in data_of(page)["charts"]}
    assert list(charts) == [
        *("loss/train", "metrics/eval/accuracy", "lr", "throughput/samples_per_sec"),
    ]
    assert charts["loss/train"]["curves"][0]["y"][:2] == [1.0, 0.5]
    assert charts["metrics/eval/accuracy"]["curves"][1] == {
        "run": 1,
        "x": [50, 100],
        "y": [0.5, 0.75],
    }


def test_nothing_is_referred_to_but_the_page_itself(two_runs):
    page = report(two_runs)

    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "base", "object", "form")
        for name in ("src", "href", "action", "srcset", "data", "poster", "style"):
            value = attributes.get(name) or ""
            assert value.startswith("#") or name == "style" or not value
            assert "url(" not in value
            assert "//" not in value
    text = (two_runs / "report.html").read_text()
    assert re.findall(r"(?:https?:)?//(?!\s)[\w.-]+\.\w{2,}/", text) == []
    assert "@import" not in text
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data: blob:;")


def test_the_page_holds_the_script_of_plotly(two_runs):
    from plotly.offline import get_plotlyjs

    script = gzip.decompress(base64.b64decode(report(two_runs).texts["plotly"]))

    assert script.decode() == get_plotlyjs()


def test_hostile_names_are_text(tmp_path):
    run = tmp_path / HOSTILE.replace("/", "")
    lines = [{"batch": 1, f"a/{HOSTILE}": 1.0, HOSTILE: 2.0}]
    warning = {"event": "warning", "batch": 1, "category": HOSTILE, "message": HOSTILE}
    write_run(
        run,
        [1.0],
        events=[*ended(1, 1.0, HOSTILE), warning],
        metrics=lines,
        results=[(0, {f"eval/{HOSTILE}": 0.5})],
        algorithms={HOSTILE: HOSTILE},
        max_duration=HOSTILE,
        plan={"steps": [HOSTILE, {"event": HOSTILE, "who": [HOSTILE]}]},
    )

    page = report(tmp_path, run, title=HOSTILE)

    assert [a for tag, a in page.elements if tag == "img"] == []
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3
    assert all(not name.startswith("on") for _, a in page.elements for name in a)
    text = (tmp_path / "report.html").read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert any("</script><img src=x" in chart["name"] for chart in data_of(page)["charts"])


def test_runs_that_differ_in_the_seed_alone_are_a_group(tmp_path):
    for name, changes in {
        "plain-1": {"seed": 1},
        "plain-2": {"seed": 2, "commit": "abc", "save_folder": "b"},
        "other-1": {"seed": 1, "algorithms": {}},
    }.items():
        write_run(tmp_path / name, [1.0, 2.0], **changes)

    data = data_of(report(tmp_path))

    assert [group["name"] for group in data["groups"]] == ["other-1", "plain"]
    assert [run["group"] for run in data["runs"]] == [0, 1, 1]
    colors = [group["color"] for group in data["groups"]]
    assert [run["color"] for run in data["runs"]] == [colors[0], colors[1], colors[1]]


def write_groups(folder, **results):
    """Write runs of groups, each with the results of its evaluations."""
    for name, runs in results.items():
        for seed, values in enumerate(runs):
            found = [(10 * i + 9, {"eval/accuracy": value}) for i, value in enumerate(values)]
            algorithms = {"MixUp": f"MixUp(alpha=0.2, label={name!r}, per_sample=False)"}
            write_run(
                folder / f"{name}-{seed}",
                [1.0] * 40,
                results=found,
                seed=seed,
                algorithms=algorithms,
            )


def test_a_row_for_each_group_has_mean_and_spread(tmp_path):
    write_groups(tmp_path, a=[[0.6], [0.8]], b=[[0.5], [0.7]])

    page = report(tmp_path)

    groups = [a["data-runs"] for tag, a in page.elements if tag == "tr" and "data-runs" in a]
    assert groups == ["0 1", "2 3"]
    assert "0.7 ± 0.14" in page.texts["overview"]
    best = [a["data-value"] for tag, a in page.elements if a.get("class") == "number best"]
    assert best == ["0.7", "0.8"]  # of the groups, and of the runs
    assert "Each run (4)" in page.texts["overview"]


def test_differences_have_a_column_for_each_group_and_short_arguments(tmp_path):
    write_groups(tmp_path, a=[[0.6], [0.8]], b=[[0.5], [0.7]])
    for path in sorted(tmp_path.iterdir()):
        records.add_record(path, {**records.read_records(path)[-1], "arguments": [path.name]})

    page = report(tmp_path)
    text = page.texts["differences"]
    columns = {a.get("data-column") for tag, a in page.elements if tag == "td"}

    assert {"a", "b"} <= columns  # the names of the groups, where a phone shows cards
    assert "settingabalgorithms/MixUpMixUp(alpha=0.2, label='a')MixUp(alpha=0.2, label='b')" in text
    assert "arguments" not in text
    assert "seed" not in text


def test_losses_that_are_not_finite_are_problems(tmp_path):
    for name, losses in {"a": [3, 2, math.nan], "b": [3, 2, math.nan], "c": [3, 2, 1]}.items():
        write_run(tmp_path / name, losses)

    page = report(tmp_path)

    assert "loss/train is NaN or infinite at 1 batch, first at 3" in page.texts["problems"]
    (loss, _) = data_of(page)["charts"]
    assert [curve.get("notFinite") for curve in loss["curves"]] == [[3], [3], None]


@pytest.mark.parametrize("losses", [[], [math.nan] * 3, [1e308, -1e308], [0.0]])
def test_a_run_with_few_or_extreme_values_is_a_page(tmp_path, losses):
    write_run(tmp_path / "a", losses, max_duration="1e6tok", epoch_length=None)

    report(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308])
def test_a_group_with_extreme_results_is_a_page(tmp_path, value):
    for seed in (1, 2):
        results = [(i, {"eval/odd": value, "eval/accuracy": 1e308}) for i in range(4)]
        write_run(tmp_path / str(seed), [1e308] * 4, seed=seed, results=results)

    assert "1e+308 ± 0" in report(tmp_path).texts["overview"]


def test_many_points_are_thinned_and_keep_their_extremes(tmp_path):
    losses = [1.0] * 20_000
    losses[12_345] = 9.0
    write_run(tmp_path, losses)

    (loss, _) = data_of(report(tmp_path))["charts"]

    curve = loss["curves"][0]
    assert (12_346, 9.0) in zip(curve["x"], curve["y"], strict=True)
    assert len(curve["x"]) <= 1400
    assert len(curve["meanX"]) == len(curve["meanY"]) == 700


def test_many_curves_share_the_size_of_the_page(tmp_path, monkeypatch):
    metrics = [{"batch": b, **{f"m/{i}": b % 7 / 3 for i in range(20)}} for b in range(3000)]
    for name in range(10):
        write_run(tmp_path / str(name), [1.0], metrics=metrics)
    report(tmp_path)

    monkeypatch.setattr(pages, "MAX_BYTES", 1_000_000)
    with pytest.raises(ValueError, match=r"more than 1 MB: pass fewer runs"):
        write_report(tmp_path, tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
    assert not list(tmp_path.glob(".*"))


def test_the_latest_checkpoints_are_listed(tmp_path):
    run = RecordedRun(write_run(tmp_path / "a", [1.0]))
    best = {"checkpoint": "ba101.pt", "metric": "eval/accuracy", "value": 0.75}
    for batch in range(102):
        one = {"name": f"ba{batch}.pt", "batch": batch, "bytes": 1_500_000, "created": 86_400}
        run.checkpoints.append(
            {**one, "complete": batch > 2, "best": best if batch > 100 else None}
        )

    text = report(tmp_path, run).texts["checkpoints"]

    assert "aba2.pt21.5 MB1970-01-02 00:00weights onlyaba3.pt" in text
    assert text.endswith("best eval/accuracy: 0.75… and 2 more")
    assert "ba1.pt" not in text


def test_the_command_writes_a_page_and_names_problems(tmp_path, capsys, monkeypatch):
    run = write_run(tmp_path / "run", [1.0], events=["garbage"])
    monkeypatch.chdir(tmp_path)

    assert main(["report", str(run)]) == 0

    told = capsys.readouterr()
    assert re.fullmatch(r"report.html: 1 run, \d\.\d MB\n", told.out)
    assert "events.jsonl, line 1: invalid; 1 line is skipped." in told.err
    assert "finished" not in Page((tmp_path / "report.html").read_text()).texts["overview"]


def test_wrong_arguments_are_named(tmp_path, capsys):
    run = write_run(tmp_path / "run", [1.0])

    assert main(["report", str(tmp_path / "no")]) == 2
    assert main(["report", str(run), "-o", str(tmp_path / "report.txt")]) == 2
    assert main(["report", str(run), "-o", str(tmp_path / "no" / "report.html")]) == 2
    told = capsys.readouterr().err
    assert "no does not exist; pass the save_folder of a recorded run." in told
    assert "must end with '.html'" in told
    assert "No such file" in told
    with pytest.raises(ValueError, match="runs is empty"):
        write_report([])
    with pytest.raises(TypeError, match="title=3"):
        write_report([run], title=3)
    with pytest.raises(MissingCheckpointError):
        write_report(tmp_path / "no")
    with pytest.raises(TypeError, match="runs=3"):
        write_report([3])


@pytest.mark.parametrize("package", ["jinja2", "plotly"])
def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch, package):
    run = write_run(tmp_path / "run", [1.0])
    pages._compressed_plotly.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)

    assert main(["report", str(run)]) == 2
    told = capsys.readouterr().err
    assert f"a report needs {package}, " in told
    assert 'pip install "composable[report]"' in told


def test_runs_and_folders_can_be_mixed(tmp_path):
    first, second = (write_run(tmp_path / name, [1.0]) for name in ("a", "b"))

    page = report(tmp_path, RecordedRun(first), str(second), second)

    assert [run["name"] for run in data_of(page)["runs"]] == ["a", "b"]
