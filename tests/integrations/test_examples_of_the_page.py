"""The loops that docs/integrations.md shows for other libraries run as shown."""

import re

import lightning.pytorch as L
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, GradientClipping
from composable.integrations import adapt_loop
from tests.integrations.huggingface_loop import arguments, resnet
from tests.integrations.loops import Run, row, trained
from tests.integrations.table import SGD, dense_net
from tests.support.integrations import PAGE
from tests.support.models import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
ALGORITHMS = [EMA("2ba"), GradientClipping("norm", 0.05)]
RUN = Run(ALGORITHMS, dense_net, accumulate_batches=2, examples=20, epochs=1)


def executed(heading, epochs=1, **names):
    """Execute the code of a section of the page, and return its names."""
    text = PAGE.read_text().partition(f"### {heading}\n")[2]
    section = re.split(r"^##+ ", text, maxsplit=1, flags=re.M)[0]
    code = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    source = "\n".join(line for line in code if not line.startswith("pip install"))
    names |= {"adapt_loop": adapt_loop, "algorithms": ALGORITHMS, "cross_entropy": cross_entropy}
    exec(source.replace("max_epochs=10", f"max_epochs={epochs}, logger=False"), names)
    return names


@pytest.mark.parametrize("heading", ["With Fabric", "With Accelerate"])
def test_loop_of_the_page_accumulates(heading):
    AcceleratorState._reset_state(reset_partial_state=True)
    t = executed(
        heading,
        fabric=Fabric(accelerator="cpu", devices=1),
        accelerator=Accelerator(cpu=True, gradient_accumulation_steps=2),
        loader=RUN.loader(),
        model=(model := dense_net()),
        optimizer=SGD(model.parameters()),
    )["t"]

    assert t.state.timestamp.batch == 3
    assert same(trained(t), RUN.by_trainer())


def test_lightning_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    t = executed("Lightning", L=L, loader=Run().loader(), net=dense_net(), torch=torch)["t"]

    assert t.state.timestamp.batch == 4


def test_checkpoints_of_lightning_of_the_page_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for epochs in (1, 2):  # the same script again, with the epochs of a longer one
        names = {"L": L, "loader": Run().loader(), "net": dense_net(), "torch": torch}
        t = Run(epochs=epochs).adapter(dense_net())
        names |= {"Classifier": executed("Lightning", **names)["Classifier"], "t": t}
        executed("Checkpoints of Lightning", epochs, ModelCheckpoint=ModelCheckpoint, **names)
        assert t.state.timestamp.batch == 4 * epochs


def test_checkpoints_of_hugging_face_of_the_page_resume(tmp_path):
    run = row("EMA", keyed=True)
    model, train = resnet().model, run.dicts(run.data(14))
    args = arguments(tmp_path, save_strategy="steps", save_steps=2, num_train_epochs=1)
    names = {"args": args, "model": model, "train": train, "transformers": transformers}
    executed("Checkpoints of Hugging Face", **names)
    args.num_train_epochs = 2

    trainer = executed("Checkpoints of Hugging Face", **names)["trainer"]

    assert trainer.state.global_step > 2


def test_hugging_face_of_the_page_trains(tmp_path):
    run = row("EMA", keyed=True)
    train = run.dicts(run.data(14))
    model, args = resnet().model, arguments(tmp_path)
    names = {"args": args, "model": model, "train": train, "transformers": transformers}

    assert executed("Hugging Face", **names)["t"].state.timestamp.epoch == 2
