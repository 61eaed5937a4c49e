"""The demo runs to its end, and its arms are those of its text."""

import subprocess
import sys

import pytest

from composable.comparison import Comparison
from examples import demo, small_gpt

pytestmark = pytest.mark.usefixtures("short_texts")


def test_the_recipe_trains_and_its_model_writes(monkeypatch):
    monkeypatch.setattr(demo, "example", small_gpt)  # the module whose texts are short
    assert all(one.startswith(demo.PROMPT) for one in demo.samples(steps=2))


@pytest.mark.campaign
def test_the_demo_runs(tmp_path):
    command = [sys.executable, demo.__file__, "--seeds", "1", "--share", "0.01"]

    ran = subprocess.run(
        [*command, "--folder", tmp_path], capture_output=True, text=True, timeout=600
    )

    assert ran.returncode == 0, ran.stderr
    assert all(arm in ran.stdout for arm in ("baseline", *demo.ARMS))
    assert "--- the model before training\n" + demo.PROMPT in ran.stdout
    assert ran.stdout.endswith(f"The plot: {tmp_path / 'plot.png'}\n")
    assert (tmp_path / "report.html").is_file()
    protocol = Comparison.load(tmp_path).study.protocol
    assert protocol.target == demo.TARGET
