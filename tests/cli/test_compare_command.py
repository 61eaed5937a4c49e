"""`composable compare`: loading scripts, arms and values, and the exit status."""

import argparse
import re
import shlex
import sys

import pytest

from composable.algorithms import LabelSmoothing, MixUp
from composable.cli import _comparison, main
from composable.cli._comparison import UsageError, load_script, parse_durations, parse_tune
from composable.comparison.compare import NothingToCompareError
from tests.support.commands import run_python

SCRIPT = """
from composable.algorithms import LabelSmoothing

STRENGTH = 0.3

def build(algorithms, seed, lr=0.1):
    raise RuntimeError("nothing is built in these tests")

def other(algorithms, seed):
    raise RuntimeError("nothing is built in these tests")

def loop(arm, seed, duration):
    yield 1, 0.5

arms = {"smoothing": [LabelSmoothing(0.1)]}
pairs = {"both": []}

if __name__ == "__main__":
    raise SystemExit("not run")
"""


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    """Keep the folders of scripts out of the path of other tests."""
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "own_script.py"
    path.write_text(SCRIPT)
    yield path
    for name in ("own_script", "composable_script_own_script"):
        sys.modules.pop(name, None)


@pytest.fixture
def called(monkeypatch):
    """Record the arguments of `compare` in the place of comparing."""
    calls = []

    def compare(build, **arguments):
        calls.append({"build": build, **arguments})

    monkeypatch.setattr(_comparison, "compare", compare)
    return calls


def run(*arguments):
    return main(["compare", "--metric", "test/accuracy", *map(str, arguments)])


def test_the_defaults_are_those_of_compare(script, called):
    assert run(script) == 0
    (given,) = called
    assert given["build"].__name__ == "build"
    assert given["arms"] == {"smoothing": [LabelSmoothing(0.1)]}
    assert given["folder"].parts == ("comparisons", "own_script")
    assert given.keys() == {"build", "run", "arms", "folder", "metric", "command"}  # and no other


def test_a_generator_function_is_a_loop(script, called):
    assert run(f"{script}:loop") == 0
    assert (called[0]["build"], called[0]["run"].__name__) == (None, "loop")


def test_all_options_reach_compare(script, called):
    assert (
        run(
            f"{script}:other", "--arms", "pairs", "--arm", "mixup=[MixUp(alpha=STRENGTH)]",
            "--baseline", "both", "--target", "0.97", "--mode", "max", "--durations", "2ep,4ep",
            "--data-amounts", "0.1,20",
            "--tune", "lr=0.01,0.1", "--tune", "mixup:alpha=0.1,0.2", "--seeds", "7",
            "--tuning-seeds", "3", "--tuning-metric", "validation/loss",
            "--no-repeat",
            "--workers", "2", "--threads", "2", "--folder", "here",
            "--data-version", "2",
        )
        == 0
    )  # fmt: skip
    (given,) = called
    assert given.pop("build").__name__ == "other"
    command = shlex.split(given.pop("command"))
    assert command[:5] == ["composable", "compare", "--metric", "test/accuracy", f"{script}:other"]
    assert command[-2:] == ["--data-version", "2"]
    assert given == {
        "arms": {"both": [], "mixup": [MixUp(alpha=0.3)]},
        "baseline": "both",
        "metric": "test/accuracy",
        "run": None,
        "target": 0.97,
        "mode": "max",
        "durations": ["2ep", "4ep"],
        "data_amounts": [0.1, 20],
        "tune": {"lr": [0.01, 0.1], "mixup": {"alpha": [0.1, 0.2]}},
        "seeds": 7,
        "tuning_seeds": 3,
        "tuning_metric": "validation/loss",
        "repeat_baseline": False,
        "workers": 2,
        "threads": 2,
        "folder": "here",
        "data_version": "2",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "SCRIPT=missing.py is not a file"),
        (["SCRIPT:train"], "has no 'train'; define a function build"),
        (["SCRIPT", "--arms", "methods"], "has no 'methods'; define a mapping"),
        (["SCRIPT", "--arms", "STRENGTH"], "STRENGTH of .* is 0.3; it must be a mapping"),
        (["SCRIPT", "--arm", "mixup"], "--arm 'mixup' must be NAME=EXPRESSION"),
        (
            ["SCRIPT", "--arm", "mixup=[Mixup()]"],
            "NameError: name 'Mixup' is not defined; did you mean 'MixUp'",
        ),
        (["SCRIPT", "--arm", "smoothing=[]"], "two arms have the name 'smoothing'"),
        (["SCRIPT", "--durations", "smoothing="], "'smoothing=' must be TIMES or ARM=TIMES"),
        (
            ["SCRIPT", "--durations", "2ep", "--durations", "4ep"],
            "'baseline' has schedules already",
        ),
        (["SCRIPT", "--data-amounts", "0.1,all"], "'0.1,all' must be numbers, such as"),
        (["SCRIPT", "--tune", "lr"], "--tune 'lr' must be NAME=VALUES"),
        (["SCRIPT", "--tune", "none:lr=1"], "'none' must be one of the arms"),
        (["SCRIPT", "--tune", "lr=1", "--tune", "lr=2"], "--tune 'lr=2': another --tune has"),
        (
            ["SCRIPT", "--tune", "smoothing=1", "--tune", "smoothing:lr=2"],
            "--tune 'smoothing:lr=2': another --tune has",
        ),
        (
            ["SCRIPT", "--tune", "smoothing:lr=2", "--tune", "smoothing=1"],
            "--tune 'smoothing=1': another --tune has",
        ),
    ],
)
def test_wrong_usage_has_exit_status_2(script, called, capsys, arguments, message):
    given = [one.replace("SCRIPT", str(script)) for one in arguments]
    assert run(*given) == 2
    assert called == []
    error = capsys.readouterr().err
    assert error.startswith("composable: ")
    assert re.search(message, error)


def test_a_script_has_no_arguments_of_the_command(script, called, monkeypatch):
    given = ["composable", "compare", str(script)]
    monkeypatch.setattr(sys, "argv", given)
    script.write_text(f"import sys\nARGUMENTS = sys.argv\n{SCRIPT}")
    monkeypatch.setattr(_comparison, "compare", lambda build, **_: called.append(sys.argv))
    assert run(script) == 0
    assert called == [[str(script)]]  # also while worker processes import it
    assert [str(script)] == sys.modules["own_script"].ARGUMENTS
    assert sys.argv is given


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def build(algorithms, seed): ...", "define a mapping 'arms'"),
        ("raise SystemExit(0)", "ended with exit code 0 while it was imported; put"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_script_without_arms_or_its_error_is_shown(script, called, capsys, content, message):
    script.write_text(content)
    assert run(script) == 2
    assert message in capsys.readouterr().err
    assert not called


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("metric='x'"), 2),
        (TypeError("tune"), 2),
        (ImportError("scipy"), 2),
        (NothingToCompareError("no run"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_the_comparison_have_their_exit_status(script, monkeypatch, error, status):
    def compare(build, **arguments):
        raise error

    monkeypatch.setattr(_comparison, "compare", compare)
    assert run(script) == status


def test_an_interrupt_prints_the_command(script, monkeypatch, capsys):
    def compare(build, **arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(_comparison, "compare", compare)
    run(script, "--arm", "mixup=[MixUp(alpha=STRENGTH)]", "--seeds", "3")
    command = f"composable compare --metric test/accuracy {script} --arm"
    quoted = f"{command} 'mixup=[MixUp(alpha=STRENGTH)]' --seeds 3"
    assert f"To resume: {quoted}" in capsys.readouterr().err


def test_scripts_are_modules_that_workers_import(script):
    module = load_script(script)
    assert module.__name__ == "own_script"
    assert sys.modules["own_script"] is module


def test_a_script_of_the_name_of_a_module_is_kept_apart(tmp_path):
    path = tmp_path / "argparse.py"
    path.write_text("value = 3")
    module = load_script(path)
    assert module.value == 3
    assert sys.modules["argparse"] is argparse
    sys.modules.pop(module.__name__)


def test_a_script_in_a_package_may_import_relatively(tmp_path):
    inner = tmp_path / "own_package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (inner.parent / "values.py").write_text("STRENGTH = 0.3")
    (inner / "sibling.py").write_text("OTHER = 0.4")
    script = inner / "run.py"
    script.write_text("from ..values import STRENGTH\nfrom sibling import OTHER\n")
    try:
        module = load_script(script)
    finally:
        for name in [one for one in sys.modules if one.startswith("own_package")]:
            del sys.modules[name]
        sys.modules.pop("sibling", None)
    assert (module.STRENGTH, module.OTHER) == (0.3, 0.4)
    assert module.__name__ == "own_package.inner.run"


def test_a_script_may_have_dots_in_its_name(tmp_path):
    path = tmp_path / "own-script.v2.py"
    path.write_text("STRENGTH = 0.3")
    assert load_script(path).STRENGTH == 0.3
    assert sys.modules.pop("composable_script_own-script_v2").STRENGTH == 0.3


def test_a_file_that_is_no_python_is_an_error(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("value = 3")
    with pytest.raises(UsageError, match="must be a Python file"):
        load_script(path)


def test_values_are_numbers_flags_or_texts():
    tune = parse_tune(["a=1,0.5,1e-3,True,None,adam"], [])
    assert tune == {"a": [1, 0.5, 0.001, True, None, "adam"]}


@pytest.mark.parametrize(
    ("texts", "durations"),
    [
        ([], None),
        (["2ep, 4ep"], ["2ep", "4ep"]),
        (["a=b=2ep"], {"a=b": ["2ep"]}),
        (["other=2ep", "4ep,8ep"], {"other": ["2ep"], "plain": ["4ep", "8ep"]}),
    ],
)
def test_schedules_are_for_all_arms_or_for_one(texts, durations):
    assert parse_durations(texts, "plain") == durations


def test_help_does_not_import_torch():
    code = (
        "import sys\nfrom composable.cli import main\n"
        "try:\n    main(['compare', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)"
    )
    shown, _ = run_python("-c", code)
    assert "--no-repeat" in shown
    assert shown.endswith("False\n")
