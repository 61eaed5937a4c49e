"""The composition of the examples for modded-nanogpt's task, at its tiny size."""

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import torch

from composable import Event
from composable.data import TokenFiles
from composable.loggers import InMemoryLogger
from examples import nanogpt_speedrun, small_gpt
from tests.support.observers import Raise
from tests.support.processes import run

STEPS = 9
FILES = {"train": 11, "validation": 6}  # of PyTorch's source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a part of PyTorch's source as files of tokens."""
    folder, given = tmp_path_factory.mktemp("tokens"), small_gpt.texts()
    few = {part: [one[:4000] for one in given[part][:count]] for part, count in FILES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(small_gpt, "texts", lambda: few)
        for cached in (small_gpt.tokenizer, small_gpt.training_tokens):
            cached.cache_clear()
        small_gpt.write_tokens(folder, 1024)
        for cached in (small_gpt.tokenizer, small_gpt.training_tokens):
            cached.cache_clear()
    return folder


def trained(folder, **options):
    trainer = nanogpt_speedrun.build(folder, "tiny", STEPS, **options)
    trainer.fit()
    return trainer


def weights(trainer):
    return {name: one.detach() for name, one in trainer.state.model.named_parameters()}


@pytest.fixture(scope="module")
def whole(folder):
    """Train without an interruption."""
    return trained(folder, loggers=InMemoryLogger())


def test_it_has_less_than_a_hundred_lines():
    assert len(Path(nanogpt_speedrun.__file__).read_text().splitlines()) < 100


def test_the_loss_falls(whole):
    losses = [float(loss) for loss in whole.history.series("metrics/eval/loss")]

    assert losses[-1] < losses[0] - 0.2
    assert losses[0] < torch.tensor(1024.0).log()


def test_every_change_of_the_model_is_there_and_no_order_is_in_doubt(whole):
    names = " ".join(weights(whole))

    for part in ("ngrams", "value_embedding.table", "skip_scales", "qk_norm.gain", "lm_head"):
        assert part in names
    assert "wpe" not in names  # rotations take the place of positions
    assert whole.plan.caveats == []


def test_it_resumes_to_the_bit_in_the_middle_of_a_file(folder, whole, tmp_path):
    batches = len(TokenFiles([folder / "python_train_000000.bin"], 64)) / 16
    assert 3 < batches < STEPS  # the run is resumed in the first file and ends in the second
    saves = {"save_folder": tmp_path, "save_interval": "3ba"}
    trainer = nanogpt_speedrun.build(folder, "tiny", STEPS, **saves)
    trainer.add_callback(Raise(KeyboardInterrupt(), Event.BATCH_END, batch=5))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()

    resumed = trained(folder, **saves, autoresume=True)

    for name, expected in weights(whole).items():
        assert torch.equal(weights(resumed)[name], expected), name


def launched(*arguments):
    """Run the example as a process of `composable launch` does, and return what it prints."""
    command, printed = [nanogpt_speedrun.__file__, *arguments], io.StringIO()
    with mock.patch.object(sys, "argv", command), redirect_stdout(printed):
        runpy.run_path(command[0], run_name="__main__")
    return printed.getvalue()


def test_two_processes_train_as_one(folder, whole):
    printed, _ = run(launched, 2, str(folder), "--size", "tiny", "--steps", str(STEPS))

    assert f"{STEPS} steps in" in printed
    losses = [float(loss) for loss in re.findall(r"eval/loss (\S+)", printed)]
    expected = [float(loss) for loss in whole.history.series("metrics/eval/loss")]
    assert losses == pytest.approx(expected, abs=2e-3)
