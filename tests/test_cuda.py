"""What only a real CUDA device can show."""

import pytest
import torch
from torch import nn

from composable import Callback, Event
from composable.algorithms import EMA, BlurPool, GradientClipping, LabelSmoothing, MixUp
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import cosine
from composable.testing.properties import Subject, no_sync_on
from tests.support.data import batches
from tests.support.models import CLASSES, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def model():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, CLASSES)
        )
    )


def images(device="cpu"):
    data = batches([4] * 6, features=36)
    return [(x.reshape(4, 1, 6, 6).to(device), y.to(device)) for x, y in data]


def algorithms():
    return [
        BlurPool(min_channels=1),
        EMA("2ba"),
        GradientClipping("norm", 0.5),
        LabelSmoothing(),
        MixUp(per_sample=True),
    ]


def trained(device):
    memory = InMemoryLogger()
    trainer = make_trainer(
        model(),
        device=device,
        train_dataloader=images(),
        eval_dataloader=images(),
        algorithms=algorithms(),
        schedulers=cosine(),
        loggers=[memory],
    )
    trainer.fit()
    return trainer, memory


def test_training_on_cuda_is_training_on_the_cpu_to_rounding():
    (ours, logged), (theirs, expected) = trained("cuda"), trained("cpu")

    on_cpu = {name: tensor.cpu() for name, tensor in weights(ours.state.model).items()}
    torch.testing.assert_close(on_cpu, weights(theirs.state.model), rtol=1e-3, atol=1e-4)
    assert logged.series("loss/train") == pytest.approx(expected.series("loss/train"), rel=1e-3)
    assert logged.latest == pytest.approx(expected.latest, rel=1e-3)


def test_batches_are_moved_and_predictions_come_back():
    watch = Watch(Event.BATCH_START, read=lambda s: (s.inputs.device.type, s.targets.device.type))
    trainer = make_trainer(model(), device="cuda", train_dataloader=images(), callbacks=[watch])
    trainer.fit()

    assert set(watch.values) == {("cuda", "cuda")}
    assert all(out.device.type == "cpu" for out in trainer.predict(images()))


def test_no_step_waits_for_the_device(tmp_path):
    class Guard(Callback):
        """An error for everything that waits, from the second batch to the last."""

        def batch_end(self, state, logger):
            torch.cuda.set_sync_debug_mode("error")

        def epoch_end(self, state, logger):
            torch.cuda.set_sync_debug_mode("default")

        def close(self):
            torch.cuda.set_sync_debug_mode("default")

    memory = InMemoryLogger()
    file = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=1000)
    make_trainer(
        model(),
        device="cuda",
        # On the device already: a copy from pageable memory synchronizes.
        train_dataloader=images("cuda"),
        max_duration="1ep",
        algorithms=algorithms(),
        schedulers=cosine(),
        callbacks=[Guard()],
        loggers=[file, memory],
    ).fit()

    assert len(memory.series("loss/train")) == 6


# That no function waits is a column of the matrix: property_tests/test_matrix.py.
@pytest.mark.parametrize("waits", [lambda x: x.sum().item(), torch.nonzero, lambda x: x[x > 0]])
def test_a_function_that_waits_is_refused(waits):
    asked = Subject(waits, make=lambda n: (torch.randn(n),), inputs=lambda n: torch.randn(n))

    with pytest.raises(RuntimeError, match="synchronizing"):
        no_sync_on(torch.device("cuda"), asked)
    assert torch.ones((), device="cuda").item() == 1
