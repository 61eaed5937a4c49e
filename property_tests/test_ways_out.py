"""The law: every way out of a run gives the score that was reported."""

import copy
import io
import pickle
from contextlib import suppress
from functools import partial
from itertools import product

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event, Trainer
from composable.algorithms import EMA, SWA, BlurPool, ChannelsLast
from composable.callbacks import ExportForInference
from composable.checkpoint import find, load_weights
from composable.core.evaluation_mode import evaluation_mode
from composable.core.state import State
from composable.loggers.wandb import WandBLogger
from composable.optim import AdamWScheduleFree
from tests.support.campaign import FULL, each_once, each_pair
from tests.support.data import batches
from tests.support.models import CLASSES, SIDE, seeded

pytestmark = pytest.mark.filterwarnings("ignore:algorithms contains EMA, and AdamWScheduleFree")

AVERAGES = {
    "plain": [],
    "EMA": [EMA("2ba")],
    "SWA": [SWA(swa_start="1ba", swa_end="1dur", update_interval="1ba")],
    "recomputed": [SWA(swa_start="1ba", swa_end="3ba", update_interval="1ba")],
    "schedule-free": [],
    "both": [EMA("2ba")],
}
SURGERY = {"none": [], "layers": [BlurPool(min_channels=1)], "format": [ChannelsLast()]}
ENDS = {
    "returned": None,
    "interrupted": KeyboardInterrupt,
    "out of memory": torch.OutOfMemoryError,
    "failed": ValueError,
}
PRECISIONS = ("fp32", "amp_bf16", "bf16")
LOADER = batches([4, 4, 4, 4, 4], images=True)


def network():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4 * (SIDE // 2) ** 2, CLASSES),
    )


def trainer_of(averages, surgery, folder=None, model=None, **options):
    schedule_free = averages in ("schedule-free", "both")
    optimizer = (
        partial(AdamWScheduleFree, lr=0.05)
        if schedule_free
        else partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    )
    saves = {"save_folder": folder, "save_interval": "1ba"} if folder else {}
    defaults = {
        "train_dataloader": LOADER,
        "eval_dataloader": LOADER,
        "loss_fn": cross_entropy,
        "optimizers": optimizer,
        "algorithms": [*AVERAGES[averages], *SURGERY[surgery]],
        "max_duration": "1ep",
        "seed": 17,
        "progress_bar": False,
        **saves,
    }
    return Trainer(seeded(network) if model is None else model, **{**defaults, **options})


def outputs_of(model, trainer):
    """Call a model by itself, in the precision of the run."""
    state = trainer.state
    with evaluation_mode(model), state.precision.autocast(state.device):
        return [model(state.precision.cast(batch)[0]) for batch in LOADER]


def empty(trainer):
    """Return a model with the layers of the trained one, and other weights."""
    model = copy.deepcopy(trainer.state.model)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(1)
    return model


def loaded(trainer, path):
    model = empty(trainer)
    load_weights(model, path)
    return model


def with_weights(trainer, tensors):
    model = empty(trainer)
    model.load_state_dict(tensors)
    return model


def plainly_loaded(trainer, path):
    """Read a checkpoint with safetensors and PyTorch alone."""
    tensors = load_file(path / "tensors.safetensors")
    named = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    return with_weights(trainer, named)


def resumed(trainer, path, case):
    second = trainer_of(*case, load_path=path, **trainer.made_with)
    return second.state.model


def started(trainer, path, case):
    options = {**trainer.made_with, "load_path": path, "load_weights_only": True}
    second = trainer_of("plain", case[1], **options)
    return second.state.model


def exported(trainer, folder):
    path = trainer.export_weights(folder / "exported.safetensors", overwrite=True)
    return with_weights(trainer, load_file(path))


def unpickled(trainer):
    return pickle.loads(pickle.dumps(trainer.state)).model


def torch_saved(trainer, given):
    file = io.BytesIO()
    torch.save(given.state_dict(), file)
    file.seek(0)
    return with_weights(trainer, torch.load(file))


def artifact(trainer, folder):
    """Return the model that the logger of Weights & Biases uploads."""
    logger, path = WandBLogger(mode="disabled"), folder / "artifact.safetensors"
    logger._log_model = "end"
    logger.attach(trainer._run)
    logger._attempt = lambda call: call()
    logger._write_artifact = lambda name, source, kind: path.write_bytes(source.read_bytes())
    logger.fit_end(trainer.state, None)
    return with_weights(trainer, load_file(path))


def averaged(trainer, case):
    algorithm = AVERAGES[case[0]][-1]
    return algorithm.averaged_model(trainer.state)


def ways(trainer, given, folder, case):
    """Return functions that return the model, by the way on which it leaves the run."""
    whole, weights = folder / "whole", folder / "weights"
    trainer.save_checkpoint(whole, overwrite=True)
    trainer.save_checkpoint(weights, weights_only=True, overwrite=True)
    found = {
        "state.model": lambda: trainer.state.model,
        "given model": lambda: given,
        "torch.save of the given model": lambda: torch_saved(trainer, given),
        "copy": lambda: copy.deepcopy(given),
        "pickled state": lambda: unpickled(trainer),
        "load_weights": lambda: loaded(trainer, whole),
        "load_weights of weights alone": lambda: loaded(trainer, weights),
        "plain torch": lambda: plainly_loaded(trainer, whole),
        "plain torch of weights alone": lambda: plainly_loaded(trainer, weights),
        "load_path": lambda: resumed(trainer, whole, case),
        "load_weights_only": lambda: started(trainer, whole, case),
        "load_weights_only of weights alone": lambda: started(trainer, weights, case),
        "export_weights": lambda: exported(trainer, folder),
        "artifact": lambda: artifact(trainer, folder),
    }
    if AVERAGES[case[0]] and trainer.state.averages:
        found["averaged_model"] = lambda: averaged(trainer, case)
    return found


def ended(case, end, folder=None, **options):
    """Return a Trainer whose fit has ended, and the model that it was given."""

    def fail(event, state, logger):
        if event is Event.BATCH_END and state.timestamp.batch == 4:
            raise ENDS[end]("at batch 4")

    given = seeded(network)
    callbacks = options.pop("callbacks", [])
    failing = [fail] if ENDS[end] else []
    trainer = trainer_of(*case, folder, given, callbacks=[*callbacks, *failing], **options)
    trainer.made_with = {"precision": options.get("precision", "fp32")}
    if ENDS[end] is None:
        trainer.fit()
    else:
        with pytest.raises(ENDS[end]):
            trainer.fit()
    return trainer, given


def check(trainer, given, folder, case):
    expected, reported = trainer.predict(LOADER), trainer.eval()["eval/loss"]
    for name, way in ways(trainer, given, folder, case).items():
        outputs = outputs_of(way(), trainer)
        assert all(map(torch.equal, outputs, expected)), name
        losses = [cross_entropy(o.float(), b[1]) for o, b in zip(outputs, LOADER, strict=True)]
        assert torch.stack(losses).mean().item() == pytest.approx(reported, rel=2e-2), name


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")
@pytest.mark.parametrize(
    ("averages", "surgery", "end", "precision"), each_pair(AVERAGES, SURGERY, ENDS, PRECISIONS)
)
def test_every_way_out_of_a_run_gives_the_score_that_was_reported(
    averages, surgery, end, precision, tmp_path
):
    case = averages, surgery

    trainer, given = ended(case, end, precision=precision)

    check(trainer, given, tmp_path, case)


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.parametrize(("averages", "surgery"), each_once(list(AVERAGES), list(SURGERY)))
def test_every_way_out_of_the_best_checkpoint_gives_its_score(averages, surgery, tmp_path):
    options = {"save_best": "loss", "save_best_mode": "max", "load_best_at_end": True}
    trainer, given = ended(
        (averages, surgery),
        "returned",
        tmp_path / "run",
        max_duration="3ep",
        save_num_checkpoints_to_keep=1,
        **options,
    )
    best = trainer.best

    assert trainer.eval()["eval/loss"] == best.value
    expected = trainer.predict(LOADER)
    for model in (loaded(trainer, best.checkpoint), plainly_loaded(trainer, best.checkpoint)):
        assert all(map(torch.equal, outputs_of(model, trainer), expected))
    check(trainer, given, tmp_path, (averages, surgery))


@pytest.mark.parametrize("averages", AVERAGES)
def test_every_saved_checkpoint_has_the_weights_of_its_evaluation(averages, tmp_path):
    case = averages, "layers"
    seen = {}

    def keep(event, state: State, logger):
        if event is Event.EVAL_END:
            seen[state.timestamp.batch] = trainer_outputs(state)

    def trainer_outputs(state):
        with evaluation_mode(state.model):
            return [state.model(inputs) for inputs, _ in LOADER]

    trainer, _ = ended(case, "returned", tmp_path, callbacks=[keep], eval_interval="1ba")

    saved, broken = find(tmp_path)
    assert not broken
    assert {one.manifest.batch for one in saved} == set(seen)
    for one in saved:
        model = plainly_loaded(trainer, one.path)
        assert all(map(torch.equal, outputs_of(model, trainer), seen[one.manifest.batch]))
        names = load_file(one.path / "tensors.safetensors")
        assert any(n.startswith("raw.") for n in names) == (
            averages != "plain" and one.manifest.batch > 1  # the average of one is equal
        )


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.parametrize(("averages", "surgery"), each_once(list(AVERAGES), list(SURGERY)))
def test_training_continues_from_the_training_weights(averages, surgery, tmp_path):
    case, steps = (averages, surgery), ("2ba", "1ba", "2ba")

    def run(*durations, between=lambda trainer: None):
        trainer = trainer_of(*case, max_duration=None)
        for duration in durations:
            trainer.fit(duration=duration)
            between(trainer)
        return trainer

    def use(trainer):
        trainer.eval()
        trainer.predict(LOADER)
        trainer.save_checkpoint(tmp_path / "between", overwrite=True)
        trainer.export_weights(tmp_path / "model.safetensors", overwrite=True)
        pickle.dumps(trainer.state)

    whole, used = run(*steps), run(*steps, between=use)
    resumed = trainer_of(*case, max_duration=None, load_path=tmp_path / "between")

    for trainer in (used, resumed):
        assert all(map(torch.equal, trainer.predict(LOADER), whole.predict(LOADER)))
        trainer.fit(duration="2ba")
    whole.fit(duration="2ba")
    for trainer in (used, resumed):
        assert all(map(torch.equal, trainer.predict(LOADER), whole.predict(LOADER)))
        pairs = zip(trainer.state.model.parameters(), whole.state.model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


EXPORTS = [(a, s, f) for a, s, f in product(AVERAGES, SURGERY, (".pt2", ".onnx"))]


@pytest.mark.parametrize(
    ("averages", "surgery", "suffix"),
    EXPORTS if FULL else [("schedule-free", "none", ".pt2"), ("EMA", "layers", ".pt2")],
)
def test_an_exported_program_gives_the_score_that_was_reported(averages, surgery, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    trainer, _ = ended((averages, surgery), "returned", callbacks=[ExportForInference(path)])

    for (inputs, _), expected in zip(LOADER, trainer.predict(LOADER), strict=True):
        torch.testing.assert_close(call(path, inputs), expected, rtol=1e-3, atol=1e-4)


def call(path, inputs):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with suppress(RuntimeError):
        inputs = inputs.detach()
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0])
