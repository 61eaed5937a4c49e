"""The state of an adapter: saved with the checkpoints of other loops, and restored on a resume."""

import io

import lightning.pytorch as L
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from composable.algorithms import EMA, GradientClipping
from composable.integrations.huggingface import STATE_NAME
from composable.integrations.huggingface import LoopAdapterCallback as HuggingFaceCallback
from composable.integrations.huggingface import LoopAdapterMixin as HuggingFaceMixin
from composable.integrations.lightning import LoopAdapterCallback, LoopAdapterMixin
from tests.integrations import table, test_huggingface
from tests.integrations.loops import Run, dense_net, trained
from tests.integrations.table import SETS, SGD, SIX, evaluated, loader, probe, start
from tests.integrations.test_own_loop import LOOPS, row
from tests.support.campaign import each_once
from tests.support.data import noisy_loader
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
REMEMBERING = ["EMA", "SWA", "LayerFreezing", "ProgressiveResizing", SIX]
"""Algorithms with a clock or a memory."""
RESUMED = [
    *((name, 4, 1) for name in REMEMBERING),
    (SIX, 2, 1),
    (SIX, 3, 1),
    (SIX, 1, 2),
    ("EMA", 3, 2),
]
"""Each with the step at which it resumes, and the batches of a step."""


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


@pytest.mark.parametrize(("name", "stop"), each_once(table.works_in("own loop"), [2, 3, 4]))
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


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_prepared_loaders_resume_exactly_with_random_datasets(loop, stop):
    def parts(saved=None):
        t, optimizer = row(SIX)
        for part, state in zip((t, t.model, optimizer), saved or (), strict=False):
            part.load_state_dict(state)
        prepare, _ = LOOPS[loop]()
        _, wrapped, data = prepare(t.model, optimizer, noisy_loader(images=True))
        return t, wrapped, data, optimizer

    whole, wrapped, data, _ = parts()
    train(whole, wrapped, data)
    first, wrapped, data, optimizer = parts()
    train(first, wrapped, data, until=stop)
    saved = [saved_and_loaded(one.state_dict()) for one in (first, first.model, optimizer)]
    second, wrapped, data, _ = parts(saved)
    train(second, wrapped, data)
    whole.end_batch(), second.end_batch()

    assert same(evaluated(second, probe()), evaluated(whole, probe()))


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


@pytest.mark.parametrize(("name", "step", "accumulate_batches"), RESUMED)
def test_lightning_resumes_exactly(name, step, accumulate_batches, tmp_path):
    options = {"accumulate_grad_batches": accumulate_batches}
    whole = table.begin(name)
    fit(Module(whole), tmp_path, **options)
    resumed = table.begin(name)
    fit(Module(resumed), tmp_path / "2", path=tmp_path / f"step={step}.ckpt", **options)

    assert resumed.state.timestamp.batch == whole.state.timestamp.batch
    assert same(evaluated(resumed, probe()), evaluated(whole, probe()))


@pytest.mark.parametrize(("step", "accumulate_batches"), [(2, 1), (4, 1), (1, 2), (3, 2)])
def test_lightning_callback_resumes_exactly(step, accumulate_batches, tmp_path):
    def train(folder, path=None):
        run = Run([EMA("2ba"), GradientClipping("norm", 0.1)], net=dense_net)
        t = run.adapter(run.net(), epoch_length=None)
        options = {"path": path, "accumulate_grad_batches": accumulate_batches}
        fit(Alone(t), folder, LoopAdapterCallback(t), **options)
        return t

    whole = train(tmp_path)
    resumed = train(tmp_path / "2", tmp_path / f"step={step}.ckpt")

    assert resumed.state.timestamp.batch == whole.state.timestamp.batch
    assert same(trained(resumed), trained(whole))


@pytest.mark.parametrize(("precision", "scale"), [("bf16", 1), ("fp16", 4.0), ("fp16", 2.0**19)])
@pytest.mark.parametrize("step", [1, 3])
def test_lightning_resumes_exactly_in_mixed_precision(precision, scale, step, tmp_path):
    def train(path, ckpt_path=None):
        run = Run(SETS["EMA"], net=dense_net, precision=precision, scale=scale, examples=10)
        t = run.adapter(run.net())
        plugin = MixedPrecision(
            "bf16-mixed" if precision == "bf16" else "16-mixed", "cpu", run.scaler()
        )
        fit(Module(t), path, path=ckpt_path, plugins=[plugin])
        return t

    whole = train(tmp_path)
    resumed = train(tmp_path / "2", tmp_path / f"step={step}.ckpt")

    assert same(trained(resumed), trained(whole))


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


def trainer_of(kind, t, folder, *, changes=(), **options):
    changes = {"save_strategy": "steps", "save_steps": 1, **dict(changes)}
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


@pytest.mark.parametrize(("name", "step", "accumulate_batches"), RESUMED)
def test_hugging_face_resumes_exactly(name, step, accumulate_batches, tmp_path):
    def train(folder, checkpoint=None):
        t = begin(SETS[name])
        made = trainer_of(
            Composed,
            t,
            folder,
            changes={"gradient_accumulation_steps": accumulate_batches},
            adapter=t,
        )
        made.train(checkpoint)
        return t

    whole = train(tmp_path)
    resumed = train(tmp_path / "2", str(tmp_path / f"checkpoint-{step}"))

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


@pytest.mark.parametrize(("step", "accumulate_batches"), [(4, 1), (3, 2)])
def test_hugging_face_callback_resumes_with_the_state_only(step, accumulate_batches, tmp_path):
    def build():
        t = begin([GradientClipping("norm", 0.1)])
        callbacks, changes = (
            [HuggingFaceCallback(t)],
            {"gradient_accumulation_steps": accumulate_batches},
        )
        return t, trainer_of(Plain, t, tmp_path, changes=changes, callbacks=callbacks)

    whole, made = build()
    made.train()
    resumed, made = build()
    folder = tmp_path / f"checkpoint-{step}"
    message = f"resumes at step {step}, and the algorithms are at batch 0"
    with pytest.raises(RuntimeError, match=message):
        made.train(str(folder))

    resumed, made = build()
    resumed.load_state_dict(torch.load(folder / STATE_NAME, weights_only=True))
    made.train(str(folder))
    assert resumed.state.timestamp.batch == whole.state.timestamp.batch
    assert same(trained(resumed), trained(whole))
