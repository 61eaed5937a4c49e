"""The demo runs to its end, and its arms are those of its text."""

import pytest

from composable.comparison import Comparison
from examples import demo, small_gpt
from tests.support.commands import run_python

pytestmark = pytest.mark.usefixtures("short_texts")


def test_the_recipe_trains_and_its_model_writes(monkeypatch):
    monkeypatch.setattr(demo, "example", small_gpt)  # the module whose texts are short
    assert all(one.startswith(demo.PROMPT) for one in demo.samples(steps=2))


@pytest.mark.campaign
def test_the_demo_runs(tmp_path):
    output, _ = run_python(demo.__file__, "--seeds", 1, "--share", 0.01, "--folder", tmp_path)

    assert all(arm in output for arm in ("baseline", *demo.ARMS))
    assert "--- the model before training\n" + demo.PROMPT in output
    assert output.endswith(f"The plot: {tmp_path / 'plot.png'}\n")
    assert (tmp_path / "report.html").is_file()
    protocol = Comparison.load(tmp_path).study.protocol
    assert protocol.target == demo.TARGET
