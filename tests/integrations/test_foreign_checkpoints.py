"""A run that continues from another trainer's checkpoint takes the other trainer's next steps.

A forged checkpoint is loaded, or refused by an error of checkpoints: it never executes code, and a
load that fails leaves the run as it was.
"""

import json
import re
import shutil
import warnings
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader

from composable import Callback, Trainer
from composable._support.dtensors import whole
from composable.algorithms import EMA
from composable.checkpoint import CheckpointError, MismatchError
from composable.distributed import DDP, FSDP2
from composable.distributed.starting import join_processes
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
    data,
    huggingface,
    lightning,
    name_of,
    path_of,
)
from tests.support.processes import run

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
PLAIN, GROUPS = Case(), Case("AdamW with two groups")
RUNS = [
    *(
        (library, case, {}, SAVED)
        for library in LIBRARIES
        for case in CASES
        # Hugging Face steps schedulers after each batch, and Accelerate saves no time.
        if not (case.every_epoch and library in (huggingface, accelerate))
    ),
    # The last batch may be saved before the end of its epoch.
    *((lightning, case, {"at_end_of_epoch": False}, (5, 10)) for case in (CASES[1], CASES[4])),
    (composer, GROUPS, {"by_name": False}, SAVED),
    (accelerate, PLAIN, {"safe_serialization": False}, SAVED),
    (accelerate, CASES[-1], {}, (5, 10)),  # the time follows from a scheduler that counts epochs
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that trains by a library once, and returns its folder and the weights."""

    def train(library, case=PLAIN, **options):
        return trained(library, case, *options.items())

    @cache
    def trained(library, case, *options):
        folder = tmp_path_factory.mktemp(library.__name__)
        return folder, library(case, folder, **dict(options))

    return train


@pytest.fixture
def copied(saved, tmp_path):
    """Return a function that copies the checkpoint of a library after step 3."""

    def copy(library, case=PLAIN):
        source = path_of(library, saved(library, case)[0], 3)
        target = tmp_path / source.name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return target

    return copy


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


# --- the law


@pytest.mark.parametrize(("library", "case", "options", "steps"), RUNS, ids=name_of)
def test_the_next_steps_are_the_other_trainers(library, case, options, steps, saved):
    folder, seen = saved(library, case, **options)
    for step in steps:
        trainer = continued(case, path_of(library, folder, step))
        assert time_of(trainer) == (step, *divmod(step, EPOCH))
        assert equal(trainer.state.model.state_dict(), seen[step - 1])
        for later in range(step, step + 3):
            trainer.fit(duration="1ba")
            assert equal(trainer.state.model.state_dict(), seen[later]), (step, later)


def continue_run(path, parallel):
    """Take two steps from a checkpoint on this process and others, and return the weights."""
    join_processes()
    options = {"train_dataloader": DataLoader(data(), 4), "max_duration": "9ba", "device": "cpu"}
    trainer = continued(GROUPS, path, parallel=parallel, **options)
    trainer.fit()
    return {name: whole(one).tolist() for name, one in trainer.state.model.state_dict().items()}


@pytest.mark.parametrize("parallel", [DDP(), FSDP2()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("library", [accelerate, composer], ids=name_of)
def test_processes_take_the_steps_of_one(library, parallel, saved):
    folder, seen = saved(library, GROUPS)

    for found in run(continue_run, 2, path_of(library, folder, 7), parallel):
        for name, value in found.items():  # the sums of the processes are rounded differently
            assert_close(torch.tensor(value), seen[8][name])


def test_accumulated_batches_continue(saved):
    """Of 5 batches, Hugging Face's Trainer takes 3 steps, with the last one alone."""
    folder, seen = saved(huggingface, gradient_accumulation_steps=2)
    trainer = continued(PLAIN, folder / "checkpoint-7", accumulate_batches=2)
    assert time_of(trainer) == (7, 2, 1)
    assert equal(trainer.state.model.state_dict(), seen[6])

    folder, _ = saved(lightning, accumulate_grad_batches=2)
    trainer = continued(PLAIN, folder / "5.ckpt", accumulate_batches=2)
    assert time_of(trainer) == (5, 1, 2)
    with pytest.raises(MismatchError, match="after 3 batches"):  # its gradients are not saved
        continued(PLAIN, folder / "7.ckpt", accumulate_batches=2)


def test_the_loss_scale_continues(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=2)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    lightning(PLAIN, tmp_path, plugins=[plugin])

    trainer = continued(PLAIN, tmp_path / "3.ckpt", precision="amp_fp16")

    assert trainer._run.loss_scaler.state_dict() == {"scale": 2.0**8, "streak": 1, "num_skipped": 0}
    with pytest.warns(ForeignCheckpointWarning, match="its loss scale"):
        built(PLAIN, load_path=tmp_path / "3.ckpt")


@pytest.mark.parametrize("library", [accelerate, huggingface, composer], ids=name_of)
def test_the_loss_scale_of_a_saved_scaler_continues(library, copied):
    """The runs of these libraries have none without a GPU, so it is added."""
    path = copied(library)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    scaler.scale(torch.ones(1))  # from here on it has a state
    if path.is_dir():
        torch.save(scaler.state_dict(), path / "scaler.pt")
    else:
        tree = torch.load(path, weights_only=False)
        tree["state"]["scaler"]["GradScaler"] = scaler.state_dict()
        torch.save(tree, path)

    trainer = continued(PLAIN, path, precision="amp_fp16")

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
def test_entries_without_a_place_are_named_once(library, names, copied):
    with pytest.warns(ForeignCheckpointWarning) as caught:
        built(PLAIN, load_path=copied(library))

    (message,) = [str(one.message) for one in caught]
    assert all(name in message for name in names)
    assert len(message.split()) <= 60


def test_lightning_names_hyperparameters_and_callbacks(copied):
    path = copied(lightning)
    tree = torch.load(path)
    built(PLAIN, load_path=path)  # no warning
    torch.save({**tree, "hyper_parameters": {"lr": 1}, "callbacks": {"EarlyStopping": {}}}, path)
    with pytest.warns(ForeignCheckpointWarning, match="without callbacks, hyper_parameters"):
        built(PLAIN, load_path=path)


def test_an_unknown_time_is_said(saved):
    case = Case("SGD with momentum", "none")
    folder, seen = saved(accelerate, case)

    with pytest.warns(ForeignCheckpointWarning, match="no time: batch 0 of epoch 0"):
        trainer = built(case, load_path=folder / "5")

    trainer.fit(duration="2ba")  # from the begin of an epoch
    assert equal(trainer.state.model.state_dict(), seen[6])


def test_schedules_of_this_library_follow_from_the_time(saved):
    case = Case("SGD with momentum")
    path = path_of(composer, saved(composer, case)[0], 10)
    schedule = lambda clock: 1 / (1 + clock.timestamp.batch)  # noqa: E731
    options = {"schedulers": schedule, "step_schedulers_every_batch": False}

    with pytest.warns(ForeignCheckpointWarning, match="its learning rate schedulers"):
        trainer = built(case, load_path=path, **options)
    trainer.fit(duration="1ba")

    (group,) = trainer.state.optimizers[0].param_groups
    assert group["lr"] == 0.1 / 11


def test_surgery_acts_on_the_loaded_weights(saved):
    """`AFTER_LOAD` is fired once, when everything was loaded."""
    (folder, seen), events = saved(composer), []

    class Sees(Callback):
        def after_load(self, state, logger):
            events.append((state.timestamp.batch, equal(state.model.state_dict(), seen[2])))

    continued(PLAIN, path_of(composer, folder, 3), callbacks=Sees())

    assert events == [(3, True)]


# --- choosing what is loaded


@pytest.mark.parametrize("library", LIBRARIES, ids=name_of)
def test_the_weights_alone_can_be_loaded(library, saved):
    folder, seen = saved(library)

    trainer = built(PLAIN, load_path=path_of(library, folder, 7), load_weights_only=True)

    assert time_of(trainer) == (0, 0, 0)
    assert equal(trainer.state.model.state_dict(), seen[6])


def test_entries_can_be_left_out(saved):
    folder, seen = saved(lightning)
    path = folder / "7.ckpt"
    new = built(PLAIN).state.model.state_dict()

    other = continued(
        Case("SGD with momentum", "none"), path, load_ignore_keys=["optimizers", "rates"]
    )
    partly = continued(PLAIN, path, load_ignore_keys=["model/weights/2.*"]).state.model

    assert time_of(other) == (7, 1, 2)
    assert not other.state.optimizers[0].state
    for name, value in partly.state_dict().items():
        assert torch.equal(value, new[name] if name.startswith("2.") else seen[6][name])


def test_a_checkpoint_in_the_save_folder_wins(saved, tmp_path):
    """A script that is restarted after a kill resumes its own run."""
    path = path_of(composer, saved(composer)[0], 7)
    options = {"save_folder": tmp_path / "run", "autoresume": True}
    first = continued(PLAIN, path, **options)
    first.fit(duration="2ba")

    again = built(PLAIN, load_path=path, **options)

    assert time_of(again) == (9, 1, 4)
    assert again._records.run_id == first._records.run_id
    assert equal(again.state.model.state_dict(), first.state.model.state_dict())


# --- what does not fit


EXECUTED = []


def execute(*arguments):
    """Record that a file executed code."""
    EXECUTED.append(arguments)


class Executes:
    """Is pickled as a call."""

    def __reduce__(self):
        return execute, ("code",)


class Settings:
    """A class of a user."""


def refusal(case, path):
    """Load a checkpoint; return the message if it is refused, which leaves all as it was, or ""."""
    net = case.net()
    optimizer, scheduler = case.parts(net)

    def parts():
        return repr(optimizer), repr(scheduler and scheduler.state_dict())

    before = case.net().state_dict(), parts()
    try:
        continued(case, path, net=net, optimizers=optimizer, schedulers=scheduler)
    except CheckpointError as error:
        assert equal(net.state_dict(), before[0])
        assert not optimizer.state
        assert parts() == before[1]
        return str(error)
    finally:
        assert not EXECUTED
    return ""


MISSING = {
    "trainer_state.json": huggingface,
    "optimizer.pt": huggingface,
    "model.safetensors": accelerate,
    "optimizer.bin": accelerate,
}


@pytest.mark.parametrize(("name", "library"), MISSING.items(), ids=name_of)
def test_a_missing_file_is_named(name, library, saved, copied):
    path = copied(library)
    (path / name).unlink()

    message = refusal(PLAIN, path)

    assert f"{path} has no {name}" in message
    assert "load_weights_only=True" in message
    if name != "model.safetensors":
        trainer = built(PLAIN, load_path=path, load_weights_only=True)
        assert equal(trainer.state.model.state_dict(), saved(library)[1][2])


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


@pytest.mark.parametrize("library", ENTRIES_NEEDED, ids=name_of)
def test_a_missing_entry_is_named(library, copied):
    path = copied(library)
    tree = torch.load(path, weights_only=False)
    for entry in ENTRIES_NEEDED[library]:
        torch.save(without(tree, entry), path)
        message = refusal(PLAIN, path)
        assert re.search(f"{path} has no (state/)?{entry.removeprefix('state/')}", message)
        assert "load_weights_only=True" in message


def test_other_models_optimizers_and_schedulers_are_refused(saved):
    path, other, plain = (
        path_of(library, saved(library, case)[0], 3)
        for library, case in ((lightning, GROUPS), (composer, PLAIN), (lightning, CASES[2]))
    )
    for case, one, text in (
        (PLAIN, path, "it has 2 groups, and this run has 1"),
        (Case("SGD with momentum"), other, "type is 'Adam'"),
        (Case("Adam", "cosine"), other, "it has 0 torch schedulers"),
        (Case(every_epoch=True), other, "step_schedulers_every_batch=True"),
    ):
        assert text in refusal(case, one)

    linear, net = nn.Linear(4, 3), PLAIN.net()
    order = "Pass the parameters to the optimizer in the order"  # of which some have other shapes
    for model, one, parameters, text in (
        (linear, path, linear.parameters(), "not in the model: 'model"),
        (net, plain, list(net.parameters())[::-1], order),
    ):
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        with pytest.raises(MismatchError, match=text):
            continued(PLAIN, one, net=model, schedulers=None, optimizers=optimizer)


# --- damaged and forged files


def test_what_would_execute_code_is_named_and_refused(copied):
    path = copied(lightning)
    tree = torch.load(path)
    for value, name in [(Executes(), "execute"), (Settings(), "Settings")]:
        torch.save({**tree, "hyper_parameters": {"value": value}}, path)
        message = refusal(PLAIN, path)
        assert f"contains {__name__}.{name}, which is rejected" in message
        assert f"add_safe_globals([{name}])" in message
        assert len(message.split()) <= 60
    with torch.serialization.safe_globals([Settings]):
        assert time_of(continued(PLAIN, path)) == (3, 0, 3)


FILES = {
    lightning: [""],
    composer: [""],
    huggingface: ["optimizer.pt", "scheduler.pt", "trainer_state.json"],
    accelerate: ["optimizer.bin", "scheduler.bin"],
}
in_each_file = pytest.mark.parametrize(
    ("library", "file"),
    [(library, file) for library, files in FILES.items() for file in files],
    ids=name_of,
)
RECURSIVE = {"state": {}}
RECURSIVE["state"]["state"] = RECURSIVE
WRONG = [
    *(None, True, -1, 0.5, 2**70, float("nan"), "text", [], {}, [1], {"a": 1}),
    *(b"bytes", (1, 2), RECURSIVE, Executes(), torch.tensor(1j)),
    *(torch.ones(2, 2), torch.ones(3, device="meta"), torch.zeros(0)),
]


def places(tree, path=()):
    """Yield the paths of all entries of a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, one in pairs:
        yield (*path, name)
        if isinstance(one, (dict, list)):
            yield from places(one, (*path, name))


def changed(tree, path, value):
    """Return a tree with another value at a path."""
    if not path:
        return value
    copy = type(tree)(tree)
    copy[path[0]] = changed(tree[path[0]], path[1:], value)
    return copy


@in_each_file
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_a_forged_entry_is_refused_or_loaded(library, file, copied):
    path = copied(library, GROUPS)
    part = path / file if file else path
    is_json = part.suffix == ".json"
    tree = json.loads(part.read_text()) if is_json else torch.load(part, weights_only=False)
    seen = set()

    @given(st.sampled_from(list(places(tree))), st.sampled_from(WRONG[:11] if is_json else WRONG))
    def forge(place, value):
        forged = changed(tree, place, value)
        if is_json:
            part.write_text(json.dumps(forged))
        else:
            torch.save(forged, part)
        seen.add(bool(refusal(GROUPS, path)))

    forge()

    assert True in seen


@in_each_file
@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_a_truncated_or_flipped_file_is_refused_or_loaded(library, file, copied):
    path = copied(library, GROUPS)
    part = path / file if file else path
    raw = part.read_bytes()

    @given(st.integers(0, len(raw.rstrip()) - 1), st.booleans())
    def damage(at, cuts):
        part.write_bytes(raw[:at] if cuts else raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert refusal(GROUPS, path) or not cuts

    damage()


# --- schedulers, hyperparameters and averages


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


def test_other_hyperparameters_are_said_and_those_of_the_file_are_used(copied):
    case = CASES[2]
    path, net = copied(lightning, case), case.net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.5)

    with pytest.warns(ChangedRunWarning, match=r"lr: 0\.01, not the requested 0\.5"):
        continued(case, path, net=net, optimizers=optimizer)

    assert optimizer.param_groups[0]["lr"] == 0.01
    again = continued(case, path, load_ignore_keys=["optimizers/*/param_groups"])
    assert equal(again.state.model.state_dict(), net.state_dict())


def test_a_time_without_the_length_of_an_epoch_counts_batches(saved):
    folder, seen = saved(accelerate)
    stream = batches()
    endless = {"train_dataloader": lambda: iter(stream), "max_duration": "9ba"}
    trainer = continued(PLAIN, folder / "5", **endless)

    assert time_of(trainer) == (5, 0, 0)
    trainer.fit(duration="2ba")
    assert equal(trainer.state.model.state_dict(), seen[6])


@pytest.mark.filterwarnings("ignore:EMA. half_life")
def test_an_average_begins_at_the_loaded_weights(saved):
    folder, seen = saved(composer)
    trainer = continued(PLAIN, path_of(composer, folder, 7), algorithms=[EMA("1ba")])

    trainer.fit(duration="1ba")

    for name, average in trainer.state.averages["EMA"].items():
        begin, end = seen[6][name], seen[7][name]
        assert (average >= torch.minimum(begin, end)).all()
        assert (average <= torch.maximum(begin, end)).all()
