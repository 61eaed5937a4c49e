"""The state of an adapter: saved with the checkpoints of other loops, and restored on a resume."""

import io

import lightning.pytorch as L
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from composable.algorithms import EMA, GradientClipping, MixUp
from composable.integrations.huggingface import STATE_NAME
from composable.integrations.huggingface import LoopAdapterCallback as HuggingFaceCallback
from composable.integrations.huggingface import LoopAdapterMixin as HuggingFaceMixin
from composable.integrations.lightning import LoopAdapterCallback, LoopAdapterMixin
from tests.integrations import table, test_huggingface
from tests.integrations.table import SGD, SIX, evaluated, loader, probe, start
from tests.integrations.test_own_loop import row
from tests.support.models import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]
STEPS = 6
"""Two epochs of three batches."""


def saved_and_loaded(tree):
    """Return what torch reads of a saved tree without running code."""
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- own loop ---


def train(t, optimizer, data, until=STEPS):
    """Train until a step, with the loop of the page."""
    for _ in range(t.state.timestamp.epoch, 2):
        for inputs, _ in t.epoch(data):
            t.loss(t.model(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if t.state.timestamp.batch + 1 == until:
                return


@pytest.mark.parametrize("name", table.works_in("own loop"))
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_own_loop_resumes_exactly(name, stop):
    data = loader(name)
    whole, optimizer = row(name)
    train(whole, optimizer, data)
    first, optimizer = row(name)
    train(first, optimizer, data, until=stop)
    saved = saved_and_loaded([first.state_dict(), first.model.state_dict(), optimizer.state_dict()])

    second, optimizer = row(name)
    second.load_state_dict(saved[0])
    second.model.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    train(second, optimizer, data)
    whole.end_batch(), second.end_batch()

    assert second.state.timestamp.batch == whole.state.timestamp.batch
    inputs = table.probe(name)
    assert same(evaluated(second, inputs), evaluated(whole, inputs))


def test_state_is_not_saved_in_a_batch_or_an_evaluation():
    t, optimizer = row("EMA")
    for inputs, _ in t.epoch(loader()):
        loss = t.loss(t.model(inputs))
        with pytest.raises(RuntimeError, match=r"in the middle of a batch"):
            t.state_dict()
        loss.backward()
        optimizer.step()
    with t.evaluating(), pytest.raises(RuntimeError, match=r"weights of an evaluation"):
        t.state_dict()


def test_seed_and_clock_are_restored():
    t, optimizer = row("EMA")
    train(t, optimizer, loader(), until=3)
    other = start([EMA("2ba")], table.image_net(), seed=18)
    other.load_state_dict(saved_and_loaded(t.state_dict()))

    for name in ("key", "timestamp", "previous_timestamp"):
        assert getattr(other.state, name) == getattr(t.state, name)
    assert t.state.previous_timestamp.batch == 2


@pytest.mark.parametrize("broken", [{}, {"tensors": {}, "data": {}}, {"tensors": {}, "data": 3}])
def test_rejects_a_state_that_is_none(broken):
    t, _ = row("EMA")

    with pytest.raises(ValueError, match=r"saved must be the value of t\.state_dict\(\)"):
        t.load_state_dict(broken)

    assert t.state.timestamp.batch == 0


def test_later_training_does_not_change_a_saved_state():
    t, optimizer = row("EMA")
    train(t, optimizer, loader(), until=3)
    saved = t.state_dict()
    before = saved_and_loaded(saved)
    train(t, optimizer, loader())

    assert same(list(saved["tensors"].values()), list(before["tensors"].values()))


# --- Lightning ---


class Module(LoopAdapterMixin, L.LightningModule):
    """A module with transforms."""

    def __init__(self, adapter):
        super().__init__()
        self.adapter, self.net = adapter, adapter.model

    def configure_optimizers(self):
        return SGD(self.net.parameters())

    def validation_step(self, batch, batch_idx):
        pass


class Alone(Module):
    """A module that leaves the adapter to its callback."""

    configure_callbacks = L.LightningModule.configure_callbacks

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


class Resumable(DataLoader):
    """A loader that Lightning can resume in mid-epoch."""

    seen = skipped = 0

    def __iter__(self):
        skipped, self.skipped = self.skipped, 0
        for self.seen, batch in enumerate(super().__iter__(), 1):
            if self.seen > skipped:
                yield batch

    def state_dict(self):
        return {"seen": self.seen % len(self)}

    def load_state_dict(self, state):
        self.skipped = state["seen"]


def fit(module, folder, *callbacks, path=None, **options):
    saver = ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=1, filename="{step}")
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, *callbacks],
        **{"max_epochs": 2, **options},
    )
    trainer.fit(module, Resumable(loader().dataset, 4), loader(), ckpt_path=path)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_lightning_resumes_exactly(step, tmp_path):
    whole = table.begin(SIX)
    fit(Module(whole), tmp_path)
    resumed = table.begin(SIX)
    fit(Module(resumed), tmp_path / "2", path=tmp_path / f"step={step}.ckpt")

    assert resumed.state.timestamp.batch == STEPS
    assert same(evaluated(resumed, probe()), evaluated(whole, probe()))


def test_lightning_resumes_exactly_from_the_end_of_an_epoch(tmp_path):
    whole = table.begin(SIX)
    fit(Module(whole), tmp_path)
    resumed = table.begin(SIX)
    epochs = ModelCheckpoint(tmp_path, filename="first", save_on_train_epoch_end=True)
    fit(Module(table.begin(SIX)), tmp_path / "2", epochs, max_epochs=1)
    fit(Module(resumed), tmp_path / "3", path=tmp_path / "first.ckpt")

    assert same(evaluated(resumed, probe()), evaluated(whole, probe()))


def test_lightning_rejects_a_resume_without_the_state(tmp_path):
    fit(Alone(start([EMA("2ba")], table.image_net())), tmp_path, max_epochs=1)
    t = start([EMA("2ba")], table.image_net())

    with pytest.raises(RuntimeError, match="resumes at step 2, and the algorithms are at batch 0"):
        fit(Alone(t), tmp_path / "2", LoopAdapterCallback(t), path=tmp_path / "step=2.ckpt")


# --- Hugging Face ---


class Plain(transformers.Trainer):
    """Without shuffling."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=5)


class Composed(HuggingFaceMixin, Plain):
    """The same with transforms."""


def begin(algorithms):
    return start(algorithms, test_huggingface.resnet(), **test_huggingface.KEYS)


def trainer_of(kind, t, folder, **options):
    changes = {"save_strategy": "steps", "save_steps": 1}
    arguments = test_huggingface.arguments(folder)
    for name, value in changes.items():
        setattr(arguments, name, value)
    return kind(
        t.model.model,
        args=arguments,
        train_dataset=test_huggingface.Examples(),
        optimizers=(SGD(t.model.parameters()), None),
        **options,
    )


@pytest.mark.parametrize("step", [2, 3, 4])
def test_hugging_face_resumes_exactly(step, tmp_path):
    algorithms = [MixUp(), EMA("2ba"), GradientClipping("norm", 0.1)]
    whole = begin(algorithms)
    trainer_of(Composed, whole, tmp_path, adapter=whole).train()
    resumed = begin(algorithms)
    made = trainer_of(Composed, resumed, tmp_path / "2", adapter=resumed)
    made.train(str(tmp_path / f"checkpoint-{step}"))

    assert resumed.state.timestamp.batch == whole.state.timestamp.batch
    inputs = test_huggingface.probe()
    assert same(evaluated(resumed, inputs), evaluated(whole, inputs))


def test_hugging_face_resumes_from_the_last_checkpoint(tmp_path):
    first = begin([EMA("2ba")])
    trainer_of(Composed, first, tmp_path, adapter=first).train()
    resumed = begin([EMA("2ba")])
    trainer_of(Composed, resumed, tmp_path, adapter=resumed).train(resume_from_checkpoint=True)

    assert resumed.state.timestamp.batch == STEPS
    assert same(
        evaluated(resumed, test_huggingface.probe()), evaluated(first, test_huggingface.probe())
    )


def test_hugging_face_callback_resumes_with_the_state_only(tmp_path):
    algorithms = [GradientClipping("norm", 0.1)]
    t = begin(algorithms)
    trainer_of(Plain, t, tmp_path, callbacks=[HuggingFaceCallback(t)]).train()
    resumed, folder = begin(algorithms), tmp_path / "checkpoint-4"
    made = trainer_of(Plain, resumed, tmp_path, callbacks=[HuggingFaceCallback(resumed)])

    with pytest.raises(RuntimeError, match="resumes at step 4, and the algorithms are at batch 0"):
        made.train(str(folder))

    resumed.load_state_dict(torch.load(folder / STATE_NAME, weights_only=True))
    made.train(str(folder))
    assert resumed.state.timestamp.batch == STEPS
