"""Object stores and machines that fail: nothing that was saved is lost, and errors name the URL."""

import threading
import time
from contextlib import suppress
from itertools import cycle

import pytest

from composable._support.object_stores import OPEN
from composable.checkpoint import UnreadableCheckpointError, UnwritableCheckpointError
from composable.resume.manager import UnsavedCheckpointWarning
from tests.support.campaign import each_once
from tests.support.object_store import BUCKET, WRITES, lost_at, machine
from tests.support.observers import Watch
from tests.support.remote_run import URL, run, same, saved


def count_writes(server) -> int:
    return sum(method in WRITES for method, _ in server.requests)


@pytest.mark.filterwarnings("ignore:CheckpointSaver could not be closed")
@pytest.mark.filterwarnings("ignore:the records of the end")
@pytest.mark.parametrize(("number", "keep"), each_once(range(1, 22, 5), [None, 1]))
def test_a_machine_may_vanish_at_every_write(number, keep, server, whole, monkeypatch, tmp_path):
    """The checkpoint before the write is complete, and the run ends with the same bits."""
    options = {"save_num_checkpoints_to_keep": keep}
    # With one kept, some are replaced before their turn, and the run may end before the write.
    with lost_at(server, number), suppress(UnwritableCheckpointError):
        run(URL, **options).fit()
        assert keep or number > 18
    at = max([0, *saved(server)])
    machine(monkeypatch, tmp_path / "machine-2")
    trainer = run(URL, **options)
    assert trainer.state.timestamp.batch == at
    trainer.fit()
    assert same(trainer, whole)
    if at < 9:  # otherwise nothing was saved any more, and nothing deleted
        assert saved(server) == ([9] if keep else [2, 4, 6, 8, 9])
    steps = server.files.cat_file(f"{BUCKET}/run/steps.jsonl").splitlines()
    assert len(steps) == len(set(steps)) == 9


@pytest.mark.filterwarnings("ignore:CheckpointSaver could not be closed")
def test_a_checkpoint_that_a_lost_machine_had_to_delete_is_deleted(
    server, whole, monkeypatch, tmp_path
):
    """Its uploads are slow: others are replaced before their turn."""
    begun, ahead, lost = threading.Event(), threading.Event(), threading.Event()

    def fault(method, path):
        if "ba2/" in path and method in WRITES:
            begun.set()
            ahead.wait(60)
        if lost.is_set():
            return 403, "AccessDenied"
        if "ba8/manifest" in path and method in WRITES:
            lost.set()
        return None

    def watch(event, state, logger):
        if event.value != "batch_start":
            return
        if state.timestamp.batch == 2:
            begun.wait(60)  # otherwise the upload may find the next one too
        if state.timestamp.batch == 8:
            ahead.set()
            lost.wait(60)

    server.fault = fault
    keep = {"save_num_checkpoints_to_keep": 1}
    with suppress(UnwritableCheckpointError):
        run(URL, callbacks=[watch], **keep).fit()
    server.work()
    assert saved(server) == [2, 8]
    machine(monkeypatch, tmp_path / "machine-2")
    trainer = run(URL, **keep)
    trainer.fit()
    assert same(trainer, whole)
    assert saved(server) == [9]


FAULTS = {
    "errors of the server": (503, "ServiceUnavailable"),
    "too many requests": (503, "SlowDown"),
    "internal errors": (500, "InternalError"),
    "expired credentials": (403, "ExpiredToken"),
    "no permission": (403, "AccessDenied"),
}


def test_faults_that_pass_are_waited_for(server, whole):
    """Every third request of a file succeeds, and the others fail in all ways in turn."""
    failing, faults = {}, cycle(FAULTS.values())

    def fault(method, path):
        if method not in WRITES or ".writers" in path:
            return None
        failing[path] = failing.get(path, 0) + 1
        return next(faults) if failing[path] % 3 else None

    server.fault = fault
    trainer = run(URL)
    trainer.fit()
    assert same(trainer, whole)
    assert sum(failing.values()) > 3 * len(FAULTS)
    server.work()
    assert saved(server) == [8, 9]


@pytest.mark.parametrize(("name", "save_error"), each_once([*FAULTS], ["raise", "warn"]))
def test_faults_that_stay_are_named(name, save_error, server, whole):
    def fault(method, path):
        return FAULTS[name] if method in WRITES and "ba4" in path else None

    server.fault = fault
    trainer = run(URL, save_error=save_error, save_num_checkpoints_to_keep=None)
    if save_error == "raise":
        with pytest.raises(UnwritableCheckpointError, match="s3://bucket/run") as caught:
            trainer.fit()
        assert "a-secret" not in str(caught.value)
    else:
        with pytest.warns(UnsavedCheckpointWarning, match="s3://bucket/run"):
            trainer.fit()
        assert same(trainer, whole)
    # What was kept is in the local folder, and copied when the store works again.
    server.work()
    OPEN.clear()
    trainer = run(URL)
    trainer.fit()
    assert same(trainer, whole)
    assert saved(server)[-1] == 9


@pytest.mark.parametrize("number", [12, 13])  # of a checkpoint, and of a log
def test_a_bucket_that_vanishes_is_named(number, server):
    def fault(method, path):
        return (404, "NoSuchBucket") if count_writes(server) > number else None

    server.fault = fault
    with pytest.raises(UnwritableCheckpointError, match="s3://bucket/run"):
        run(URL).fit()


@pytest.mark.filterwarnings("ignore:CheckpointSaver could not be closed")
def test_a_folder_that_vanishes_is_named(server):
    def remove(event, state, logger):
        if event.value == "batch_start" and state.timestamp.batch == 3:
            next(iter(OPEN.values())).finish()
            server.files.rm(f"{BUCKET}/run", recursive=True)

    with pytest.raises(UnwritableCheckpointError, match=r"s3://bucket/run .* is gone"):
        run(URL, callbacks=[remove]).fit()


@pytest.mark.parametrize(
    ("fault", "match"),
    [((404, "NoSuchBucket"), "NoSuchBucket|bucket"), ((403, "AccessDenied"), "AccessDenied")],
)
def test_a_store_that_cannot_be_written_fails_before_anything_is_trained(fault, match, server):
    server.fault = lambda method, path: fault if method in WRITES else None
    trainer = run(URL)
    with pytest.raises(UnwritableCheckpointError, match=match):
        trainer.fit()
    assert trainer.state.timestamp.batch == 0


@pytest.mark.parametrize(("slow", "keep"), each_once(["tensors", "steps"], [1, 2]))
def test_a_slow_store_gets_every_other_checkpoint(slow, keep, server, whole):
    """What is replaced before its turn is not copied, and the newest in the store not deleted."""
    there, counts, now = set(), [], [0]

    def fault(method, path):
        if slow in path and method == "PUT":  # it takes two batches, or a second
            end, due = time.monotonic() + 1, min(now[-1] + 2, 9)
            while now[-1] < due and time.monotonic() < end:
                time.sleep(0.01)
        if "manifest" in path and method in WRITES:
            there.add(path) if method == "PUT" else there.discard(path)
            counts.append(len(there))

    server.fault = fault
    watch = Watch(read=lambda state: now.append(state.timestamp.batch))
    options = {"save_num_checkpoints_to_keep": keep, "callbacks": [watch]}
    trainer = run(URL, save_interval="1ba", **options)
    trainer.fit()
    assert same(trainer, whole)
    assert saved(server) == [8, 9][-keep:]
    assert min(counts) == 1
    puts = [path for method, path in server.requests if method == "PUT" and "manifest" in path]
    assert 2 <= len(puts) < 9


def test_no_space_for_a_copy_is_named_at_once(server, monkeypatch, tmp_path):
    run(URL).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    calls = []

    def full(self, *args, **kwargs):
        calls.append(args)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.files, "get_file", full)
    with pytest.raises(UnreadableCheckpointError, match="No space left on device"):
        run(URL)
    assert len(calls) == 1
