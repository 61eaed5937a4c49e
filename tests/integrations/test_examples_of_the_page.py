"""The loops that docs/integrations.md shows for other libraries run as shown."""

import re

import lightning.pytorch as L
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, GradientClipping
from composable.integrations import adapt_loop
from tests.integrations.loops import Run, dense_net, own_loop, trained
from tests.integrations.table import SGD
from tests.integrations.test_huggingface import Examples, arguments, resnet
from tests.support.integrations import PAGE
from tests.support.models import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]
ALGORITHMS = [EMA("10ba"), GradientClipping("norm", 0.05)]


def shown(heading):
    """Return the code of a section of the page."""
    text = PAGE.read_text().partition(f"### {heading}\n")[2]
    section = re.split(r"^##+ ", text, maxsplit=1, flags=re.M)[0]
    code = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    return "\n".join(line for line in code if not line.startswith("pip install"))


@pytest.mark.parametrize("heading", ["With Fabric", "With Accelerate"])
def test_loop_of_the_page_accumulates(heading):
    AcceleratorState._reset_state(reset_partial_state=True)
    run = Run(ALGORITHMS, net=dense_net, accumulate_batches=2, examples=20, epochs=1)
    model = run.net()
    names = {
        "adapt_loop": adapt_loop,
        "algorithms": ALGORITHMS,
        "cross_entropy": cross_entropy,
        "fabric": Fabric(accelerator="cpu", devices=1),
        "accelerator": Accelerator(cpu=True, gradient_accumulation_steps=2),
        "loader": run.loader(),
        "model": model,
        "optimizer": SGD(model.parameters()),
    }
    exec(shown(heading), names)

    assert names["t"].state.timestamp.batch == 3
    assert same(trained(names["t"]), trained(own_loop(run)))


def test_lightning_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {
        "L": L,
        "adapt_loop": adapt_loop,
        "algorithms": ALGORITHMS,
        "cross_entropy": cross_entropy,
        "loader": Run().loader(),
        "net": dense_net(),
        "torch": torch,
    }
    code = shown("Lightning").replace("max_epochs=10", "max_epochs=1, logger=False")
    exec(code, names)

    assert names["t"].state.timestamp.batch == 4


def test_hugging_face_of_the_page_trains(tmp_path):
    names = {
        "adapt_loop": adapt_loop,
        "algorithms": ALGORITHMS,
        "args": arguments(tmp_path),
        "model": resnet().model,
        "train": Examples(),
        "transformers": transformers,
    }
    exec(shown("Hugging Face"), names)

    assert names["t"].state.timestamp.epoch == 2
