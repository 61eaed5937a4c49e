"""The command line: help, the version, and errors of usage in one line."""

import pytest

import composable
from composable._version import __version__
from composable.cli import main
from tests.support.commands import run_python


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0

    output = capsys.readouterr()
    assert output.out.startswith("usage: composable [-h] [--version] COMMAND")
    assert all(name in output.out for name in ("checkpoint", "compare", "launch", "replay", "diff"))
    assert output.err == ""


def test_version_is_printed():
    written = run_python("-m", "composable", "--version")

    assert written == (f"composable {__version__}\n", "")
    assert composable.__version__ == __version__


@pytest.mark.parametrize("number", ["-1", "x", "1.5", ""])
def test_batch_of_a_replay_is_checked_in_one_line(number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replay", "run", f"--batch={number}"])

    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"composable replay: error: argument --batch: {number!r} must be the number of a batch, "
        "0 or more"
    )


def test_unknown_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--"])
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err


def test_launch_prints_no_frames_of_cpp_before_its_messages():
    code = """
import os, sys
from composable.cli import main

class Torch:
    def find_spec(name, *rest):
        if name == "torch":  # it reads the variable now
            print(os.environ["TORCH_CPP_LOG_LEVEL"])
            sys.exit()

sys.meta_path.insert(0, Torch)
main(["launch", "script.py"])
"""
    assert run_python("-c", code) == ("FATAL\n", "")
