"""Two recorded runs are compared: where they part is named right."""

import json

import pytest
import torch

from composable.checkpoint import DamagedCheckpointError, files
from composable.checkpoint.compare import describe_difference, digest, mismatched, same_bits
from composable.cli import main
from composable.runs import RunRecorder, records
from composable.runs.diff import compare
from tests.support.runs import batches, examples, mlp, trainer
from tests.test_replay import Nudges, build, edit_line


def rate_drops_at(batch):
    """Return a schedule that halves the learning rate from a batch on."""
    return lambda state: 0.5 if state.timestamp.batch >= batch else 1.0


def test_two_runs_of_one_seed_are_the_same(tmp_path, capsys):
    for name in "ab":
        build(tmp_path / name).fit()

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0

    assert capsys.readouterr().out.splitlines() == [
        f"A: {tmp_path / 'a'}",
        f"B: {tmp_path / 'b'}",
        "the same to the last bit",
    ]


def test_runs_of_two_seeds_part_at_the_first_batch(tmp_path, capsys):
    build(tmp_path / "a").fit()
    build(tmp_path / "b", seed=18).fit()

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1

    out = capsys.readouterr().out
    assert "  seed: 17 -> 18\n" in out
    assert "first divergence: batch 0: loss: A 0x1." in out
    assert "first tensor known to differ: state/model/weights/0.bias (max abs difference 0." in out
    assert "; at checkpoint ep0-ba4\n" in out


def test_runs_that_part_in_the_middle_do_so_by_their_rates_and_then_by_their_losses(tmp_path):
    for name, batch in (("a", 99), ("b", 7)):
        build(tmp_path / name, schedulers=rate_drops_at(batch)).fit()

    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.step.batch, found.step.what) == (7, "lr")
    assert (float.fromhex(found.step.first), float.fromhex(found.step.second)) == (0.1, 0.05)
    assert found.tensor.startswith("state/model/weights/0.bias (max abs difference")
    assert found.tensor.endswith("at checkpoint ep1-ba8")

    for batch in range(7, 15):  # as if rates had not been written down
        edit_line(tmp_path / "b", batch, lr=(0.1).hex())
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.step.batch, found.step.what) == (8, "loss")


def test_a_bit_of_one_weight_is_found_in_the_checkpoints(tmp_path):
    build(tmp_path / "a", max_duration="1ep").fit()
    build(tmp_path / "b", max_duration="1ep", callbacks=[Nudges(4, "3.bias")]).fit()

    found = compare(tmp_path / "a", tmp_path / "b")

    assert found.tensor.startswith("state/model/weights/3.bias (max abs difference ")
    assert found.tensor.endswith("; at checkpoint ep1-ba5")
    assert not found.same


def test_digests_name_the_step_and_the_tensor(tmp_path):
    for name, callbacks in (("a", []), ("b", [Nudges(6)])):
        recorder = RunRecorder(tmp_path / name, weights=True)
        build(tmp_path / name, callbacks=[recorder, *callbacks]).fit()

    found = compare(tmp_path / "a", tmp_path / "b")

    assert (found.step.batch, found.step.what) == (6, "weights/3.weight")
    assert found.tensor == "weights/3.weight after batch 6"


def test_digests_of_one_run_alone_are_no_difference(tmp_path):
    build(tmp_path / "a").fit()
    build(tmp_path / "b", callbacks=[RunRecorder(tmp_path / "b", weights=True)]).fit()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.step is None


def test_a_metric_alone_is_named(tmp_path):
    other = examples(10)
    build(tmp_path / "a").fit()
    build(tmp_path / "b", eval_dataloader=[(other[0] + 1, other[1])]).fit()

    found = compare(tmp_path / "a", tmp_path / "b")

    assert (found.step.batch, found.step.what) == (4, "eval/loss")


def test_a_shorter_run_parts_where_it_ends(tmp_path, capsys):
    build(tmp_path / "a", schedulers=None).fit()
    build(tmp_path / "b", schedulers=None, max_duration="9ba").fit()

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "first divergence: batch 9: B has no such step" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "b"), str(tmp_path / "a")]) == 1
    assert "first divergence: batch 9: A has no such step" in capsys.readouterr().out


def test_a_skipped_batch_is_a_difference(tmp_path):
    for name, value in (("a", 0.0), ("b", float("inf"))):
        data = batches(20)
        data[2][0][0, 0] = value
        run = trainer(
            mlp(), data, max_duration="1ep", save_folder=tmp_path / name, nonfinite_loss="ignore"
        )
        run.fit()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.step.batch, found.step.what) == (2, "loss")
    assert found.step.second in ("nan", "inf")
    assert str(found).count("nan") or str(found).count("inf")


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path):
    for name, batch in (("a", 99), ("b", 7)):
        build(tmp_path / name, schedulers=rate_drops_at(batch)).fit()
    path = tmp_path / "a" / "ep1-ba8" / files.TENSORS
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    (tmp_path / "b" / "ep2-ba12" / files.STATE).unlink()

    found = compare(tmp_path / "a", tmp_path / "b")

    assert [one.split(" ")[0].split("/")[-2] for one in found.skipped] == [
        "ep2-ba12",
        "ep1-ba8",
    ]
    assert found.tensor.endswith("at checkpoint ep3-ba15")
    assert "skipped: " in str(found)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "it is not the save_folder of a recorded run"),
        (lambda run: (run / "run.json").write_text('{"format": 1}'), "is not the record of a run"),
        (
            lambda run: (run / "steps.jsonl").write_text("{}\n"),
            "line 1: the batch number is missing",
        ),
        (lambda run: (run / "steps.jsonl").write_text("{\n"), "line 1 is damaged, invalid JSON"),
        (lambda run: (run / "steps.jsonl").write_text("[" * 99999 + "\n"), "nested too deeply"),
    ],
)
def test_a_damaged_folder_is_said_in_one_line(tmp_path, capsys, damage, message):
    build(tmp_path, max_duration="1ba").fit()
    damage(tmp_path)
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_that_is_not_there_is_said(tmp_path, capsys):
    assert main(["diff", str(tmp_path / "no"), str(tmp_path)]) == 2
    assert f"no directory {tmp_path / 'no'}" in capsys.readouterr().err


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path):
    build(tmp_path, max_duration="3ba").fit()
    path = tmp_path / records.STEPS
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [one for one in lines if "loss" in json.loads(one)]
    path.write_bytes(b"".join(steps)[:-2])
    assert list(records.read_steps(tmp_path).trained) == [0, 1]


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    build(tmp_path, max_duration="1ba").fit()
    monkeypatch.setattr(records, "_MAX_LINE", 20)
    with pytest.raises(DamagedCheckpointError, match="line 1: the line is too long"):
        records.read_steps(tmp_path)
    monkeypatch.setattr(records, "_MAX_RUN", 20)
    with pytest.raises(DamagedCheckpointError, match="more than the maximum of 20 bytes"):
        records.read_records(tmp_path)


# --- bits ---


def test_bits_tell_apart_what_numbers_do_not():
    zero, nan = torch.tensor([0.0]), torch.tensor([torch.nan])
    assert not same_bits(zero, -zero)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, zero[0])
    assert digest(zero) != digest(-zero)
    assert digest(torch.zeros(3, 2).t()) == digest(torch.zeros(2, 3))


def test_a_difference_is_said_in_words():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    assert describe_difference(a, b) == "max abs difference 0.5"
    assert describe_difference(a, None) == "only the first has it"
    assert describe_difference(None, a) == "only the second has it"
    assert (
        describe_difference(a, b.double())
        == "torch.float32 of shape [2] and torch.float64 of shape [2]"
    )
    assert list(mismatched({"memory/x": a, "state/model/y": a, "z": a}, {"z": a.clone()})) == [
        "state/model/y",
        "memory/x",
    ]
