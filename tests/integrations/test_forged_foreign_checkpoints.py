"""A forged checkpoint of another trainer is loaded, or refused by an error of checkpoints.

It never executes code, and a load that fails leaves the run as it was.
"""

import json
import shutil
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable.checkpoint import CheckpointError
from composable.resume import ChangedRunWarning
from tests.integrations import foreign_runs
from tests.integrations.foreign_runs import Case, name_of, path_of
from tests.integrations.test_foreign_checkpoints import continued, equal

CASE = Case("AdamW with two groups")
FILES = {
    foreign_runs.lightning: [""],
    foreign_runs.composer: [""],
    foreign_runs.huggingface: ["optimizer.pt", "scheduler.pt", "trainer_state.json"],
    foreign_runs.accelerate: ["optimizer.bin", "scheduler.bin"],
}
PAIRS = [(library, file) for library, files in FILES.items() for file in files]
EXECUTED = []


def execute(*arguments):
    """Record that a file executed code."""
    EXECUTED.append(arguments)


class Executes:
    """Is pickled as a call."""

    def __reduce__(self):
        return execute, ("code",)


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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder for each library, with its checkpoints."""
    found = {}
    for library in FILES:
        found[library] = tmp_path_factory.mktemp(library.__name__)
        library(CASE, found[library])
    return found


def outcome(path):
    """Load a checkpoint, and return whether it was refused; the run is left as it was if so."""
    net = CASE.net()
    optimizer, scheduler = CASE.parts(net)
    before = CASE.net().state_dict(), repr(optimizer), repr(scheduler.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ChangedRunWarning)
            continued(CASE, path, net=net, optimizers=optimizer, schedulers=scheduler)
    except CheckpointError:
        assert equal(net.state_dict(), before[0])
        assert not optimizer.state
        assert (repr(optimizer), repr(scheduler.state_dict())) == before[1:]
        return "refused"
    finally:
        assert not EXECUTED
    return "loaded"


def copy_of(folder, library, file):
    """Copy the checkpoint of a library, and return its path and that of a file in it."""
    source = path_of(library, folder, 3)
    target = source.with_name(f"copy-{source.name}")
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    return target, target / file if file else target


@pytest.mark.parametrize(("library", "file"), PAIRS, ids=name_of)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
def test_a_forged_entry_is_refused_or_loaded(library, file, folders):
    path, part = copy_of(folders[library], library, file)
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
        seen.add(outcome(path))

    forge()

    assert "refused" in seen


@pytest.mark.parametrize(("library", "file"), PAIRS, ids=name_of)
def test_a_truncated_or_flipped_file_is_refused_or_loaded(library, file, folders):
    path, part = copy_of(folders[library], library, file)
    raw = part.read_bytes()

    @given(st.integers(0, len(raw.rstrip()) - 1), st.booleans())
    def damage(at, cuts):
        part.write_bytes(raw[:at] if cuts else raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert outcome(path) == "refused" or not cuts

    damage()
