"""Laws: the clock of an external loop, however it is left and starts again."""

import contextlib
from typing import Any

import attrs
import lightning.pytorch as L
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from composable.algorithms import EMA, GradientClipping, MixUp
from composable.integrations.huggingface import LogitsModel
from tests.integrations import test_huggingface as hugging_face
from tests.integrations import test_lightning as of_lightning
from tests.integrations.loops import Run, dense_net
from tests.support.data import examples
from tests.support.models import same, weights

LEAVES = {"raise", "raise in backward", "break"}
"""What leaves a loop during a batch, without its step."""
ENDS = {"raise after step", "break after step"}
"""What leaves a loop after the step of a batch."""
OUTCOMES = ["step", "step", "skip", *sorted(LEAVES), *sorted(ENDS)]


class StopError(Exception):
    """Stops a training."""


def algorithms() -> list[Any]:
    return [MixUp(), EMA("3ba"), GradientClipping("norm", 1.0)]


@attrs.define
class Clock:
    """The expected clock."""

    batch: int = 0
    epoch: int = 0
    in_epoch: int = 0

    def count(self, outcomes: list[str]) -> list[str]:
        """Count the batches of an epoch, and return the outcomes of those that are counted."""
        if self.in_epoch:
            self.epoch, self.in_epoch = self.epoch + 1, 0
        for i, outcome in enumerate(outcomes):
            if outcome in LEAVES:
                return outcomes[:i]
            self.batch, self.in_epoch = self.batch + 1, self.in_epoch + 1
            if outcome in ENDS and i + 1 < len(outcomes):
                return outcomes[: i + 1]
        self.epoch, self.in_epoch = self.epoch + 1, 0
        return outcomes


class Loop:
    """A handwritten loop, whose epochs can be left."""

    def __init__(self, kind: str = "own loop") -> None:
        self.model = dense_net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.t = Run(algorithms()).adapter(self.model, self.optimizer, epoch_length=None)
        self.prepare: Any = lambda loader: loader
        self.wrapped: Any = self.optimizer
        if kind == "Fabric":
            from lightning.fabric import Fabric

            fabric = Fabric(accelerator="cpu", devices=1)
            self.model, self.wrapped = fabric.setup(self.t.model, self.optimizer)
            self.prepare = fabric.setup_dataloaders
        elif kind == "Accelerate":
            from accelerate import Accelerator

            accelerator = Accelerator(cpu=True)
            self.model, self.wrapped = accelerator.prepare(self.t.model, self.optimizer)
            self.prepare = accelerator.prepare

    def loader(self, length: int) -> Any:
        return self.prepare(DataLoader(TensorDataset(*examples(2 * length, images=True)), 2))

    def loss(self, inputs: Any) -> Any:
        return self.t.loss(self.model(inputs))

    def epoch(self, outcomes: list[str], parts: int, length: int = 0) -> None:
        """Train an epoch of steps with these outcomes, each of so many batches of the loader."""
        loader = self.loader(length or len(outcomes) * parts)
        done = self.t.state.timestamp.batch_in_epoch if length else 0
        for i, (inputs, _) in enumerate(self.t.epoch(loader, accumulate_batches=parts), 1):
            outcome = outcomes[(i - 1) // parts + done]
            loss = self.loss(inputs) / parts
            if outcome == "break":
                break
            if outcome == "raise":
                raise StopError
            loss.backward()
            if outcome == "raise in backward":
                raise StopError
            if i % parts:
                continue
            if outcome != "skip":
                self.wrapped.step()
            if outcome == "raise after step":
                raise StopError
            self.wrapped.zero_grad()
            if outcome == "break after step":
                break

    def replay(self, counted: list[str], steps: int, parts: int) -> None:
        """Train the steps of an epoch that were counted, by the methods for other trainers."""
        self.t.follow(self.optimizer, loader_length=steps * parts, accumulate_batches=parts)
        self.t.start_epoch()
        self.t.watch_steps()
        for i, batch in enumerate(list(self.loader(steps * parts))[: len(counted) * parts], 1):
            inputs, _ = self.t.start_batch(batch)
            (self.loss(inputs) / parts).backward()
            if i % parts == 0:
                if counted[(i - 1) // parts] != "skip":
                    self.wrapped.step()
                self.wrapped.zero_grad()
                self.t.end_step()
        if len(counted) == steps:
            self.t.end_epoch()

    def result(self) -> Any:
        """Return the weights, those of an evaluation, the algorithms' memory and the clock."""
        return result_of(self.t)


def result_of(t: Any) -> Any:
    own = [one.clone() for one in weights(t.model).values()]
    with t.evaluating() as model:
        averaged = [one.clone() for one in weights(model).values()]
    now = t.state.timestamp
    clock = now.batch, now.epoch, now.batch_in_epoch, now.sample, t.state.epoch_length
    return [*own, *averaged], clock


outcomes = st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", ["own loop", "Fabric", "Accelerate"])
@given(st.lists(outcomes, min_size=1, max_size=4), st.integers(1, 2))
@settings(max_examples=15)
def test_a_batch_that_is_left_without_its_step_leaves_no_trace(kind, program, parts):
    """Law of time: If an external loop is left during a batch, by an exception or `break`, the
    clock, the seed and the memory of the algorithms are those before the batch, or after it if its
    step was taken. Weights, buffers and gradients stay.
    """
    loop, expected, clock = Loop(kind), Loop(), Clock()
    for epoch in program:
        with contextlib.suppress(StopError):
            loop.epoch(epoch, parts)
        loop.wrapped.zero_grad()
        expected.replay(clock.count(epoch), len(epoch), parts)

        now = loop.t.state.timestamp
        assert (now.batch, now.epoch, now.batch_in_epoch) == attrs.astuple(clock)
    ours, theirs = loop.result(), expected.result()
    assert same(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("outcome", sorted(LEAVES | ENDS))
@pytest.mark.parametrize("at", range(4))
def test_a_run_that_was_left_is_saved_and_resumed_to_the_same_bits(parts, outcome, at):
    """Law of time: A state that is saved when an external loop was left by an
    exception or `break` is that of the run between two batches: it resumes to the same bits.
    """
    whole, first, second = Loop(), Loop(), Loop()
    for _ in range(2):
        whole.epoch(["step", "step"], parts)
    parts_of = [(one.t, one.t.model, one.optimizer) for one in (first, second)]
    for epoch in range(at // 2 + 1):
        left = [outcome if 2 * epoch + i == at else "step" for i in range(2)]
        with contextlib.suppress(StopError):
            first.epoch(left, parts)
    saved = [one.state_dict() for one in parts_of[0]]
    for one, state in zip(parts_of[1], saved, strict=True):
        one.load_state_dict(state)
    for _ in range(second.t.state.timestamp.epoch, 2):
        second.epoch(["step", "step"], parts, length=2 * parts)

    assert same(second.result()[0], whole.result()[0])
    assert second.result()[1][:-1] == whole.result()[1][:-1]  # a loop that is over has no length


def test_an_attempt_with_another_batch_size_leaves_no_trace():
    """As of `find_executable_batch_size`: the length of the epoch is that of its loader."""
    loop, expected = Loop(), Loop()
    with contextlib.suppress(StopError):
        loop.epoch(["raise"], 1, length=3)
    loop.epoch(["step"], 1, length=1)
    expected.epoch(["step"], 1, length=1)

    assert same(loop.result()[0], expected.result()[0])
    assert loop.result()[1] == expected.result()[1]


# --- trainings of other trainers that start again ---


class LightningAgain:
    """Trains a Lightning module, which can fail."""

    def __init__(self) -> None:
        self.t = Run(algorithms()).adapter(dense_net(), epoch_length=None)

    @property
    def model(self) -> Any:
        return self.t.model

    def train(self, size: int, fails_at: int | None, after: bool, folder: Any) -> None:
        class Failing(of_lightning.Composed):
            def training_step(self, batch, batch_idx):
                if not after and self.global_step == fails_at:
                    raise StopError
                return super().training_step(batch, batch_idx)

        class FailsAfter(L.Callback):
            def on_train_batch_end(self, trainer, *_):
                if after and trainer.global_step == fails_at:
                    raise StopError

        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[FailsAfter()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Failing(self.t), DataLoader(TensorDataset(*examples(12, images=True)), size))


class HuggingFaceAgain:
    """Trains with a Trainer of Hugging Face, which can fail."""

    def __init__(self) -> None:
        model = LogitsModel(hugging_face.Classifier(dense_net()))
        options = {**hugging_face.KEYS, "epoch_length": None}
        self.t = Run(algorithms()).adapter(model, **options)

    @property
    def model(self) -> Any:
        return self.t.model

    def train(self, size: int, fails_at: int | None, after: bool, folder: Any) -> None:
        class Failing(hugging_face.Composed):
            def get_train_dataloader(self):
                return DataLoader(self.train_dataset, size)

            def compute_loss(self, *args, **kwargs):
                if not after and self.state.global_step == fails_at:
                    raise StopError
                return super().compute_loss(*args, **kwargs)

        class FailsAfter(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if after and state.global_step == fails_at:
                    raise StopError

        model = self.t.model.model
        Failing(
            model,
            adapter=self.t,
            args=hugging_face.arguments(folder),
            train_dataset=hugging_face.Examples(),
            optimizers=(of_lightning.SGD(model.parameters()), None),
            callbacks=[FailsAfter()],
        ).train()


AGAIN = {"Lightning": (LightningAgain, 12), "Hugging Face": (HuggingFaceAgain, 14)}
"""With the number of examples in an epoch."""
trainings = st.lists(
    st.tuples(st.sampled_from([4, 6]), st.none() | st.integers(1, 4), st.booleans()),
    min_size=2,
    max_size=3,
)


@pytest.mark.parametrize("kind", AGAIN)
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@given(program=trainings)
@settings(max_examples=6)
def test_a_training_that_starts_again_starts(kind, program, tmp_path_factory):
    """Law of time: A training of another trainer that begins at step 0 is that of a new adapter
    with the same weights, whatever the adapter trained before and however that ended.
    """
    folder = tmp_path_factory.mktemp("again")
    make, count = AGAIN[kind]
    again = make()
    for size, fails_at, after in program:
        steps = 2 * -(-count // size)
        fresh = make()
        fresh.model.load_state_dict(trained_weights(again.t))
        for one in (again, fresh):
            with contextlib.suppress(StopError):
                one.train(size, fails_at, after, folder)

        assert again.t.state.timestamp.batch == min(fails_at or steps, steps)
        ours, theirs = result_of(again.t), result_of(fresh.t)
        assert same(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def test_attempts_of_hugging_face_to_find_a_batch_size_leave_no_trace(tmp_path):
    sizes, results = [], []
    for finds in (True, False):
        again = HuggingFaceAgain()

        class Attempt(hugging_face.Composed):
            def get_train_dataloader(self):
                sizes.append(self._train_batch_size)
                return DataLoader(self.train_dataset, self._train_batch_size)

            def compute_loss(self, model, inputs, *args, **kwargs):
                if len(inputs["labels"]) > 5:
                    raise RuntimeError("CUDA out of memory.")
                return super().compute_loss(model, inputs, *args, **kwargs)

        size = {"auto_find_batch_size": finds, "per_device_train_batch_size": 8 if finds else 5}
        model = again.t.model.model
        Attempt(
            model,
            adapter=again.t,
            args=hugging_face.arguments(tmp_path, **size),
            train_dataset=hugging_face.Examples(),
            optimizers=(of_lightning.SGD(model.parameters()), None),
        ).train()
        results.append(result_of(again.t))
    assert sizes == [8, 7, 6, 5, 5]
    assert same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def trained_weights(t: Any) -> Any:
    """Return the weights that are trained; after a training, the model has the evaluated ones."""
    t.weights.remove(t.state)
    own = {name: one.clone() for name, one in t.model.state_dict().items()}
    t.rest()
    return own
