"""The built wheel and the built source distribution install and work without the checkout."""

import os
import zipfile
from pathlib import Path

import pytest

import composable
from tests.support.commands import run_python

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
from functools import partial

import torch
import composable
from composable.algorithms import EMA

composable.Trainer(
    model=torch.nn.Linear(4, 2),
    train_dataloader=[(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))],
    loss_fn=torch.nn.functional.cross_entropy,
    optimizers=partial(torch.optim.SGD, lr=0.1),
    max_duration="2ep",
    algorithms=[EMA(half_life="1ba")],
    progress_bar=False,
).fit()
print(composable.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the source distribution from the checkout, and the wheel from that."""
    folder = tmp_path_factory.mktemp("dist")
    run_python("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
    metadata = f"composable-{composable.__version__}.dist-info/"
    files = {name for name in names if not name.startswith(metadata)}
    package = ROOT / "composable"
    sources = {path.relative_to(ROOT).as_posix() for path in package.rglob("*.py")}
    others = {
        "composable/advice.json",
        "composable/comparison/page.html",
        "composable/report/page.html",
        "composable/report/report.css",
        "composable/report/report.js",
    }
    assert files == sources | others | {"composable/py.typed"}
    assert {f"{metadata}METADATA", f"{metadata}licenses/LICENSE"} <= names


def test_the_distributions_are_ready_for_an_index(built):
    run_python("-m", "twine", "check", "--strict", *built.values())


# The wheel was built from the source distribution.
@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.campaign)])
def test_an_installed_distribution_trains(built, kind, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Without dependencies: they are installed here already, and torch is large.
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", site]
    run_python("-m", "pip", "install", *options, built[kind])
    outside = {"cwd": elsewhere, "env": {**os.environ, "PYTHONPATH": str(site)}}
    assert Path(run_python("-c", TRAIN, **outside)[0].strip()) == site / "composable/__init__.py"
    version = "from importlib.metadata import version; print(version('composable'))"
    assert run_python("-c", version, **outside)[0].strip() == composable.__version__
    assert "usage: composable" in run_python(site / "bin/composable", "--help", **outside)[0]
