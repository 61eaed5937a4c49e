"""Two recorded runs are compared, and their first difference is named."""

import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable.checkpoint import DamagedCheckpointError
from composable.checkpoint.compare import describe_difference, digest, mismatched, same_bits
from composable.checkpoint.manifest import STATE, TENSORS
from composable.cli import main
from composable.runs import RunRecorder, records
from composable.runs.diff import diff_runs
from composable.runs.records import STEPS, read_steps
from tests.runs.test_replay import Nudges, build, edit_line
from tests.support.data import batches, examples
from tests.support.models import mlp
from tests.support.runs import make_trainer


def rate_drops_at(batch):
    """Return a schedule that halves the learning rate from a batch on."""
    return lambda state: 0.5 if state.timestamp.batch >= batch else 1.0


def compared(folder, first=None, second=None, build=build):
    """Compare two runs that are built with these options."""
    build(folder / "a", **first or {}).fit()
    build(folder / "b", **second or {}).fit()
    return diff_runs(folder / "a", folder / "b")


def diff(folder, first="a", second="b"):
    return main(["diff", str(folder / first), str(folder / second)])


def test_two_runs_with_one_seed_are_the_same(tmp_path, capsys):
    compared(tmp_path, {}, {"callbacks": [RunRecorder(tmp_path / "b", weights=True)]})

    assert diff(tmp_path) == 0

    names = [f"A: {tmp_path / 'a'}", f"B: {tmp_path / 'b'}"]
    assert capsys.readouterr().out.splitlines() == [*names, "the same to the last bit"]


def test_runs_with_two_seeds_differ_from_the_first_batch_on(tmp_path, capsys):
    compared(tmp_path, {}, {"seed": 18})

    assert diff(tmp_path) == 1

    out = capsys.readouterr().out
    assert "  seed: 17 -> 18\n" in out
    assert "first divergence: batch 0: loss: A 0x1." in out
    assert "first tensor known to differ: model.0.bias (max abs difference 0." in out
    assert "; at checkpoint ep0-ba4\n" in out


def test_a_change_of_the_learning_rate_changes_the_loss_of_the_next_batch(tmp_path):
    options = [{"schedulers": rate_drops_at(batch)} for batch in (99, 7)]

    found = compared(tmp_path, *options)
    assert (found.step.batch, found.step.what) == (7, "lr")
    assert (float.fromhex(found.step.first), float.fromhex(found.step.second)) == (0.1, 0.05)
    assert found.tensor.startswith("model.0.bias (max abs difference")
    assert found.tensor.endswith("at checkpoint ep1-ba8")

    for batch in range(7, 15):  # as if the rates had not been recorded
        edit_line(tmp_path / "b", batch, lr=(0.1).hex())
    found = diff_runs(tmp_path / "a", tmp_path / "b")
    assert (found.step.batch, found.step.what) == (8, "loss")

    raw = bytearray((tmp_path / "a" / "ep1-ba8" / TENSORS).read_bytes())
    raw[-1] ^= 1
    (tmp_path / "a" / "ep1-ba8" / TENSORS).write_bytes(raw)
    (tmp_path / "b" / "ep2-ba12" / STATE).unlink()
    found = diff_runs(tmp_path / "a", tmp_path / "b")
    assert [one.split(" ")[0].split("/")[-2] for one in found.skipped] == ["ep2-ba12", "ep1-ba8"]
    assert found.tensor.endswith("at checkpoint ep3-ba15")
    assert "skipped: " in str(found)


def with_digests(folder, *callbacks):
    return {"callbacks": [RunRecorder(folder, weights=True), *callbacks]}


INPUTS, TARGETS = examples(10)
FOUND = {
    "a metric": (
        lambda folder: [{}, {"eval_dataloader": [(INPUTS + 1, TARGETS)]}],
        *((4, "eval/loss"), r"model\.|raw\.|None"),
    ),
    "a bit of a weight, by digests": (
        lambda f: [with_digests(f / "a"), with_digests(f / "b", Nudges(6))],
        *((6, "weights/3.weight"), "^weights/3.weight after batch 6$"),
    ),
    "a bit of a weight, in the checkpoints": (
        lambda folder: [
            {"max_duration": "1ep"},
            {"max_duration": "1ep", "callbacks": [Nudges(4, "3.bias")]},
        ],
        *(None, r"^(model|raw).3.bias \(max abs difference .*; at checkpoint ep1-ba5$"),
    ),
}


@pytest.mark.parametrize(("options", "step", "tensor"), FOUND.values(), ids=FOUND)
def test_names_the_step_and_the_tensor_of_a_difference(tmp_path, options, step, tensor):
    found = compared(tmp_path, *options(tmp_path))

    assert not found.same
    assert step is None or (found.step.batch, found.step.what) == step
    assert re.search(tensor, str(found.tensor))


def test_a_shorter_run_differs_where_it_ends(tmp_path, capsys):
    compared(tmp_path, {"schedulers": None}, {"schedulers": None, "max_duration": "9ba"})

    for names in ("ab", "ba"):
        assert diff(tmp_path, *names) == 1
        which = "BA"[names.index("b") == 0]
        assert f"first divergence: batch 9: {which} has no such step" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_is_a_difference(tmp_path):
    def build(folder, value):
        data = batches(20)
        data[2][0][0, 0] = value
        return make_trainer(mlp(), data, save_folder=folder, nonfinite_loss="ignore")

    found = compared(tmp_path, {"value": 0.0}, {"value": float("inf")}, build)

    assert (found.step.batch, found.step.what) == (2, "loss")
    assert found.step.second in ("nan", "inf")
    assert found.step.second in str(found)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", None, "it is not the save_folder of a recorded run"),
        ("run.json", '{"format": 1}', "is not the record of a run"),
        ("steps.jsonl", "{}\n", "line 1: the batch number is missing"),
        ("steps.jsonl", "{\n", "line 1 is damaged, invalid JSON"),
        ("steps.jsonl", "[" * 99999 + "\n", "nested too deeply"),
        (None, None, "no directory {}/no"),
    ],
)
def test_a_damaged_or_missing_folder_is_an_error_of_one_line(tmp_path, capsys, name, text, message):
    build(tmp_path / "a", max_duration="1ba").fit()
    if text is not None:
        (tmp_path / "a" / name).write_text(text)
    elif name:
        (tmp_path / "a" / name).unlink()

    assert diff(tmp_path, "a" if name else "no", "a") == 2

    err = capsys.readouterr().err
    assert message.format(tmp_path) in err
    assert err.count("\n") == 1


def test_a_truncated_last_line_is_ignored_and_a_long_one_an_error(tmp_path, monkeypatch):
    build(tmp_path, max_duration="3ba").fit()
    path = tmp_path / records.STEPS
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [one for one in lines if "loss" in json.loads(one)]
    path.write_bytes(b"".join(steps)[:-2])
    assert list(records.read_steps(tmp_path).trained) == [0, 1]

    monkeypatch.setattr(records, "_MAX_LINE", 20)
    with pytest.raises(DamagedCheckpointError, match="line 1: the line is too long"):
        records.read_steps(tmp_path)
    monkeypatch.setattr(records, "_MAX_RUN", 20)
    with pytest.raises(DamagedCheckpointError, match="more than the maximum of 20 bytes"):
        records.read_records(tmp_path)


def test_bits_are_compared_and_not_numbers():
    zero, nan = torch.tensor([0.0]), torch.tensor([torch.nan])
    assert not same_bits(zero, -zero)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, zero[0])
    assert digest(zero) != digest(-zero)
    assert digest(torch.zeros(3, 2).t()) == digest(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), "max abs difference 0.5"),
        (torch.zeros(2), None, "only the first has it"),
        (None, torch.zeros(2), "only the second has it"),
        (
            torch.zeros(2),
            torch.zeros(2).double(),
            "torch.float32 of shape [2] and torch.float64 of shape [2]",
        ),
    ],
)
def test_describes_a_difference(first, second, words):
    assert describe_difference(first, second) == words


def test_tensors_of_the_model_are_compared_first():
    a = torch.tensor([1.0, 2.0])
    found = list(mismatched({"memory/x": a, "state/model/y": a, "z": a}, {"z": a.clone()}))
    assert found == ["state/model/y", "memory/x"]


# --- rows ---


VALUES = st.one_of(
    st.floats().map(float.hex),
    st.sampled_from(["0x1p0", "1", " 0x1.8p+1", "nan", "inf", "infinity", "ab12", "0X1.8P+1"]),
    st.text(),
    st.none() | st.booleans() | st.lists(st.none()),
    st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.text().filter(lambda name: name not in ("batch", "epoch", "loss"))


@given(st.dictionaries(st.integers(0, 2**53), st.dictionaries(NAMES, VALUES)))
def test_rows_are_restored_exactly(values):
    values = {batch: {"loss": None, **line} for batch, line in values.items()}
    lines = [{"batch": batch, "epoch": 0, **line} for batch, line in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STEPS)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        rows = read_steps(Path(folder)).trained

    assert dict(rows) == values
    assert repr(dict(rows)) == repr(values)
