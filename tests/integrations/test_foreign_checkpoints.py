"""A run that continues from another trainer's checkpoint takes the other trainer's next steps."""

import re
import warnings

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Callback, Trainer
from composable.algorithms import EMA
from composable.checkpoint import CheckpointError, MismatchError
from composable.resume import ChangedRunWarning, ForeignCheckpointWarning
from tests.integrations.foreign_runs import (
    EPOCH,
    SAVED,
    SCHEDULERS,
    Case,
    accelerate,
    batches,
    composer,
    composer_state,
    composer_time,
    huggingface,
    lightning,
    name_of,
    path_of,
)

LIBRARIES = [lightning, huggingface, accelerate, composer]
CASES = [
    Case(),
    Case("Adam", "cosine"),
    Case("Adam", "none"),
    Case("AdamW with two groups", "LambdaLR"),
    Case("AdamW with two groups", "StepLR", every_epoch=True),
    Case("SGD with momentum", "warm-up"),
    Case("SGD with momentum", "StepLR", every_epoch=True),
]
PAIRS = [
    (library, case)
    for library in LIBRARIES
    for case in CASES
    # Hugging Face steps schedulers after each batch, and Accelerate saves no time.
    if not (case.every_epoch and library in (huggingface, accelerate))
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*treespec, LeafSpec",
    "ignore:.*`pin_memory`",
)


class Tied(nn.Module):
    """Has one tensor under two names."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def built(case, **options):
    """Build a Trainer of a case."""
    net = case.net()
    optimizer, scheduler = case.parts(net)
    defaults = {
        "train_dataloader": batches(),
        "loss_fn": cross_entropy,
        "optimizers": optimizer,
        "schedulers": scheduler,
        "step_schedulers_every_batch": not case.every_epoch,
        "max_duration": "4ep",
        "progress_bar": False,
    }
    return Trainer(options.pop("net", net), **{**defaults, **options})


def continued(case, path, **options):
    """Build a Trainer that continues from a checkpoint, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForeignCheckpointWarning)
        return built(case, load_path=path, **options)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def time_of(trainer):
    now = trainer.state.timestamp
    return now.batch, now.epoch, now.batch_in_epoch


def check_continues(case, library, folder, seen, steps=SAVED, **options):
    """Check the weights and the time after a load, and the weights of the next steps."""
    for step in steps:
        trainer = continued(case, path_of(library, folder, step), **options)
        assert time_of(trainer) == (step, *divmod(step, EPOCH))
        assert equal(trainer.state.model.state_dict(), seen[step - 1])
        for later in range(step, step + 3):
            trainer.fit(duration="1ba")
            assert equal(trainer.state.model.state_dict(), seen[later]), (step, later)


# --- the law


@pytest.mark.parametrize(("library", "case"), PAIRS, ids=name_of)
def test_the_next_steps_are_the_other_trainers(library, case, tmp_path):
    check_continues(case, library, tmp_path, library(case, tmp_path))


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=name_of)
def test_lightning_may_save_the_last_batch_before_the_end_of_its_epoch(case, tmp_path):
    seen = lightning(case, tmp_path, at_end_of_epoch=False)
    check_continues(case, lightning, tmp_path, seen, (5, 10))


def test_composer_may_number_the_parameters(tmp_path):
    case = Case("AdamW with two groups")
    check_continues(case, composer, tmp_path, composer(case, tmp_path, by_name=False))


def test_accelerate_may_pickle_the_weights(tmp_path):
    seen = accelerate(Case(), tmp_path, safe_serialization=False)
    check_continues(Case(), accelerate, tmp_path, seen)


def test_time_follows_from_a_scheduler_that_counts_epochs(tmp_path):
    case = CASES[-1]
    seen = accelerate(case, tmp_path)
    check_continues(case, accelerate, tmp_path, seen, (5, 10))


def test_accumulated_batches_continue(tmp_path):
    """Of 5 batches, Hugging Face's Trainer takes 3 steps, with the last one alone."""
    seen = huggingface(Case(), tmp_path, gradient_accumulation_steps=2)
    trainer = continued(
        Case(), tmp_path / "checkpoint-7", accumulate_batches=2, train_dataloader=batches()
    )
    assert time_of(trainer) == (7, 2, 1)
    assert equal(trainer.state.model.state_dict(), seen[6])

    folder = tmp_path / "lightning"
    folder.mkdir()
    lightning(Case(), folder, accumulate_grad_batches=2)
    trainer = continued(Case(), folder / "5.ckpt", accumulate_batches=2)
    assert time_of(trainer) == (5, 1, 2)
    with pytest.raises(MismatchError, match="after 3 batches"):  # its gradients are not saved
        continued(Case(), folder / "7.ckpt", accumulate_batches=2)


def test_the_loss_scale_continues(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=2)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    lightning(Case(), tmp_path, plugins=[plugin])

    trainer = continued(Case(), tmp_path / "3.ckpt", precision="amp_fp16")

    assert trainer._run.loss_scaler.state_dict() == {"scale": 2.0**8, "streak": 1, "num_skipped": 0}
    with pytest.warns(ForeignCheckpointWarning, match="its loss scale"):
        built(Case(), load_path=tmp_path / "3.ckpt")


@pytest.mark.parametrize("library", [accelerate, huggingface, composer], ids=name_of)
def test_the_loss_scale_of_a_saved_scaler_continues(library, tmp_path):
    """The runs of these libraries have none without a GPU, so it is added."""
    library(Case(), tmp_path)
    path = path_of(library, tmp_path, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    scaler.scale(torch.ones(1))  # from here on it has a state
    if path.is_dir():
        torch.save(scaler.state_dict(), path / "scaler.pt")
    else:
        tree = torch.load(path, weights_only=False)
        tree["state"]["scaler"]["GradScaler"] = scaler.state_dict()
        torch.save(tree, path)

    trainer = continued(Case(), path, precision="amp_fp16")

    assert trainer._run.loss_scaler.state_dict() == {"scale": 2.0**9, "streak": 0, "num_skipped": 0}


def test_tied_weights_may_be_saved_once(tmp_path):
    nets = [Tied(), Tied()]
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    for _ in range(3):
        nets[0].embed.weight.sum().backward()
        optimizers[0].step()
    tree = composer_state(nets[0], optimizers[0], None, composer_time(3))
    del tree["state"]["model"]["module.head.weight"]
    torch.save(tree, tmp_path / "it.pt")

    with pytest.warns(ForeignCheckpointWarning):
        Trainer(nets[1], optimizers=optimizers[1], load_path=tmp_path / "it.pt", progress_bar=False)

    assert equal(nets[1].state_dict(), nets[0].state_dict())
    assert nets[1].head.weight is nets[1].embed.weight


# --- what is not restored


ENTRIES = {
    huggingface: ["rng_state.pth", "training_args.bin", "stateful_callbacks"],
    accelerate: ["random_states_0.pkl"],
    composer: ["algorithms", "callbacks", "rng", "run_name", "rank_zero_seed"],
}


@pytest.mark.parametrize(("library", "names"), ENTRIES.items(), ids=name_of)
def test_entries_without_a_place_are_named_once(library, names, tmp_path):
    library(Case(), tmp_path)

    with pytest.warns(ForeignCheckpointWarning) as caught:
        built(Case(), load_path=path_of(library, tmp_path, 3))

    (message,) = [str(one.message) for one in caught]
    assert all(name in message for name in names)
    assert len(message.split()) <= 60


def test_lightning_names_hyperparameters_and_callbacks(tmp_path):
    lightning(Case(), tmp_path)
    path = tmp_path / "3.ckpt"
    tree = torch.load(path)
    built(Case(), load_path=path)  # no warning
    torch.save({**tree, "hyper_parameters": {"lr": 1}, "callbacks": {"EarlyStopping": {}}}, path)
    with pytest.warns(ForeignCheckpointWarning, match="without callbacks, hyper_parameters"):
        built(Case(), load_path=path)


def test_an_unknown_time_is_said(tmp_path):
    case = Case("SGD with momentum", "none")
    seen = accelerate(case, tmp_path)

    with pytest.warns(ForeignCheckpointWarning, match="no time: batch 0 of epoch 0"):
        trainer = built(case, load_path=tmp_path / "5")

    trainer.fit(duration="2ba")  # from the begin of an epoch
    assert equal(trainer.state.model.state_dict(), seen[6])


def test_schedules_of_this_library_follow_from_the_time(tmp_path):
    composer(Case("SGD with momentum", "StepLR"), tmp_path)
    schedule = lambda clock: 1 / (1 + clock.timestamp.batch)  # noqa: E731
    options = {"schedulers": schedule, "step_schedulers_every_batch": False}

    with pytest.warns(ForeignCheckpointWarning, match="its learning rate schedulers"):
        trainer = built(Case("SGD with momentum"), load_path=tmp_path / "ba10-rank0.pt", **options)
    trainer.fit(duration="1ba")

    (group,) = trainer.state.optimizers[0].param_groups
    assert group["lr"] == 0.1 / 11


def test_surgery_acts_on_the_loaded_weights(tmp_path):
    """`AFTER_LOAD` is fired once, when everything was loaded."""
    seen, events = composer(Case(), tmp_path), []

    class Sees(Callback):
        def after_load(self, state, logger):
            events.append((state.timestamp.batch, equal(state.model.state_dict(), seen[2])))

    continued(Case(), tmp_path / "ba3-rank0.pt", callbacks=Sees())

    assert events == [(3, True)]


# --- choosing what is loaded


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.__name__)
def test_the_weights_alone_can_be_loaded(library, tmp_path):
    seen = library(Case(), tmp_path)

    trainer = built(Case(), load_path=path_of(library, tmp_path, 7), load_weights_only=True)

    assert time_of(trainer) == (0, 0, 0)
    assert equal(trainer.state.model.state_dict(), seen[6])


def test_entries_can_be_left_out(tmp_path):
    seen, path = lightning(Case(), tmp_path), tmp_path / "7.ckpt"
    new = built(Case()).state.model.state_dict()

    other = continued(
        Case("SGD with momentum", "none"), path, load_ignore_keys=["optimizers", "rates"]
    )
    partly = continued(Case(), path, load_ignore_keys=["model/weights/2.*"]).state.model

    assert time_of(other) == (7, 1, 2)
    assert not other.state.optimizers[0].state
    for name, value in partly.state_dict().items():
        assert torch.equal(value, new[name] if name.startswith("2.") else seen[6][name])


def test_a_checkpoint_in_the_save_folder_wins(tmp_path):
    """A script that is restarted after a kill resumes its own run."""
    composer(Case(), tmp_path)
    options = {"save_folder": tmp_path / "run", "autoresume": True}
    first = continued(Case(), tmp_path / "ba7-rank0.pt", **options)
    first.fit(duration="2ba")

    again = built(Case(), load_path=tmp_path / "ba7-rank0.pt", **options)

    assert time_of(again) == (9, 1, 4)
    assert again._records.run_id == first._records.run_id
    assert equal(again.state.model.state_dict(), first.state.model.state_dict())


# --- what does not fit


def refused(case, path, **options):
    """Return the message of the error of a load, which leaves everything as it was."""
    net = case.net()
    optimizer, scheduler = case.parts(net)
    before = {name: one.clone() for name, one in net.state_dict().items()}
    rates = None if scheduler is None else scheduler.state_dict()
    groups = [{n: v for n, v in one.items() if n != "params"} for one in optimizer.param_groups]
    with pytest.raises(CheckpointError) as caught:
        continued(case, path, net=net, optimizers=optimizer, schedulers=scheduler, **options)
    assert equal(net.state_dict(), before)
    assert not optimizer.state
    after = [{n: v for n, v in one.items() if n != "params"} for one in optimizer.param_groups]
    assert after == groups
    assert scheduler is None or scheduler.state_dict() == rates
    return str(caught.value)


MISSING = {
    "trainer_state.json": huggingface,
    "optimizer.pt": huggingface,
    "model.safetensors": accelerate,
    "optimizer.bin": accelerate,
}


@pytest.mark.parametrize(("name", "library"), MISSING.items(), ids=name_of)
def test_a_missing_file_is_named(name, library, tmp_path):
    seen = library(Case(), tmp_path)
    path = path_of(library, tmp_path, 3)
    (path / name).unlink()

    message = refused(Case(), path)

    assert f"{path} has no {name}" in message
    assert "load_weights_only=True" in message
    if name != "model.safetensors":
        trainer = built(Case(), load_path=path, load_weights_only=True)
        assert equal(trainer.state.model.state_dict(), seen[2])


def without(tree, path):
    """Return a tree without an entry."""
    first, _, rest = path.partition("/")
    if not rest:
        return {name: value for name, value in tree.items() if name != first}
    return {**tree, first: without(tree[first], rest)}


ENTRIES_NEEDED = {
    lightning: ["optimizer_states", "lr_schedulers", "loops", "state_dict", "global_step"],
    composer: ["state/optimizers", "state/timestamp", "state/model"],
}


@pytest.mark.parametrize("library", ENTRIES_NEEDED, ids=lambda one: one.__name__)
def test_a_missing_entry_is_named(library, tmp_path):
    library(Case(), tmp_path)
    path = path_of(library, tmp_path, 3)
    tree = torch.load(path, weights_only=False)
    for entry in ENTRIES_NEEDED[library]:
        torch.save(without(tree, entry), path)
        message = refused(Case(), path)
        assert re.search(f"{path} has no (state/)?{entry.removeprefix('state/')}", message)
        assert "load_weights_only=True" in message


def test_other_models_optimizers_and_schedulers_are_refused(tmp_path):
    lightning(Case("AdamW with two groups"), tmp_path)
    composer(Case(), tmp_path)
    path, other = tmp_path / "3.ckpt", tmp_path / "ba3-rank0.pt"

    assert "it has 2 groups, and this run has 1" in refused(Case(), path)
    assert "type is 'Adam'" in refused(Case("SGD with momentum"), other)
    assert "it has 0 torch schedulers" in refused(Case("Adam", "cosine"), other)
    assert "step_schedulers_every_batch=True" in refused(Case(every_epoch=True), other)
    net = nn.Linear(4, 3)
    with pytest.raises(MismatchError, match="not in the model: 'model"):
        continued(
            Case(),
            path,
            net=net,
            schedulers=None,
            optimizers=torch.optim.AdamW(net.parameters()),
        )


def test_parameters_in_another_order_are_refused(tmp_path):
    """The states are matched by position, and have the shapes of other parameters."""
    lightning(Case("Adam", "none"), tmp_path)
    net = Case().net()
    optimizer = torch.optim.Adam(list(net.parameters())[::-1], lr=0.01)

    with pytest.raises(MismatchError, match="Pass the parameters to the optimizer in the order"):
        continued(Case(), tmp_path / "3.ckpt", net=net, optimizers=optimizer, schedulers=None)


# --- damaged and forged files


class Executes:
    """Is pickled as a call."""

    def __reduce__(self):
        return print, ("executed",)


class Settings:
    """A class of a user."""


def test_what_would_execute_code_is_named_and_refused(tmp_path, capsys):
    lightning(Case(), tmp_path)
    path = tmp_path / "3.ckpt"
    tree = torch.load(path)
    for value, name in [(Executes(), "print"), (Settings(), f"{__name__}.Settings")]:
        torch.save({**tree, "hyper_parameters": {"value": value}}, path)
        capsys.readouterr()
        message = refused(Case(), path)
        assert f"contains {name}, which is rejected" in message
        assert f"add_safe_globals([{name.rpartition('.')[2]}])" in message
        assert len(message.split()) <= 60
        assert "executed" not in capsys.readouterr().out
    with torch.serialization.safe_globals([Settings]):
        assert time_of(continued(Case(), path)) == (3, 0, 3)


def test_a_plateau_scheduler_continues(tmp_path):
    """It steps after evaluations, whatever the other schedulers count."""
    case, plateau = Case("Adam", "plateau"), torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCHEDULERS, "plateau", plateau)
        net = case.net()
        optimizer, scheduler = case.parts(net)
        scheduler.step(1.0)
        scheduler.step(2.0)
        tree = composer_state(net, optimizer, scheduler, composer_time(2 * EPOCH))
        torch.save(tree, tmp_path / "it.pt")

        for every_batch in (False, True):
            trainer = continued(case, tmp_path / "it.pt", step_schedulers_every_batch=every_batch)
            (found,) = trainer.state.schedulers
            assert (found.best, found.num_bad_epochs, found.last_epoch) == (1.0, 1, 2)


def test_other_hyperparameters_are_said_and_those_of_the_file_are_used(tmp_path):
    case, path = Case("Adam", "none"), tmp_path / "3.ckpt"
    lightning(case, tmp_path)
    net = case.net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.5)

    with pytest.warns(ChangedRunWarning, match=r"lr: 0\.01, not the requested 0\.5"):
        continued(case, path, net=net, optimizers=optimizer)

    assert optimizer.param_groups[0]["lr"] == 0.01
    again = continued(case, path, load_ignore_keys=["optimizers/*/param_groups"])
    assert equal(again.state.model.state_dict(), net.state_dict())


def test_a_time_without_the_length_of_an_epoch_counts_batches(tmp_path):
    seen = accelerate(Case(), tmp_path)
    stream = batches()
    endless = {"train_dataloader": lambda: iter(stream), "max_duration": "9ba"}
    trainer = continued(Case(), tmp_path / "5", **endless)

    assert time_of(trainer) == (5, 0, 0)
    trainer.fit(duration="2ba")
    assert equal(trainer.state.model.state_dict(), seen[6])


@pytest.mark.filterwarnings("ignore:EMA. half_life")
def test_an_average_begins_at_the_loaded_weights(tmp_path):
    seen = composer(Case(), tmp_path)
    trainer = continued(Case(), tmp_path / "ba7-rank0.pt", algorithms=[EMA("1ba")])

    trainer.fit(duration="1ba")

    for name, average in trainer.state.averages["EMA"].items():
        begin, end = seen[6][name], seen[7][name]
        assert (average >= torch.minimum(begin, end)).all()
        assert (average <= torch.maximum(begin, end)).all()
