"""`make gpu` at its tiny size, from end to end, in processes that have simulated GPUs."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.gpu.__main__ import FOLDER, PARTS
from benchmarks.gpu.status import SIMULATED
from tests.simgpu import build, device

pytestmark = pytest.mark.skipif(device.KIND != "cuda", reason="the parts are about CUDA")
MISSING = {"language": {"speedrun_gpt"}}  # it is not written


def run(*arguments):
    """Run the command in a process with simulated GPUs, as those that it starts."""
    path = os.pathsep.join([str(build.SOURCES.parent / "auto"), str(build.ROOT)])
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cuda", *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.campaign
def test_every_part_of_make_gpu_runs(tmp_path):
    done = run("--size", "tiny", "--output", str(tmp_path), "--minutes", "30")

    results = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in PARTS}
    assert [name for name, one in results.items() if one["error"]] == []
    found = {
        status: {
            name: {case["case"] for case in one["cases"] if case["status"] == status}
            for name, one in results.items()
        }
        for status in ("failed", "missing")
    }
    assert {name: cases for name, cases in found["failed"].items() if cases} == {}
    assert {name: cases for name, cases in found["missing"].items() if cases} == MISSING
    assert MISSING.keys() == {name for name, said in SIMULATED.items() if "not run" in said}
    assert done.returncode == 0
    assert {one["environment"]["cuda"] for one in results.values()} == {"simulated"}


def test_figures_of_simulated_devices_are_never_evidence():
    done = run("--size", "tiny", "--part", "waits")

    assert done.returncode == 2
    assert "name another --output" in done.stderr
    assert not FOLDER.exists() or "simulated" not in "".join(
        path.read_text() for path in FOLDER.glob("*.json")
    )
