"""Weights come from our files and from foreign ones: all of them, or none."""

import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from composable.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    load_weights,
    pack,
    write,
)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def as_checkpoint(folder, weights):
    return write(folder / "it", *pack({"state": {"model": {"weights": weights}}, "step": 3}))


def as_safetensors(folder, weights):
    safetensors.torch.save_file(dict(weights), folder / "it.safetensors")
    return folder / "it.safetensors"


def as_torch(folder, weights):
    torch.save(weights, folder / "it.pt")
    return folder / "it.pt"


FORMS = pytest.mark.parametrize("save", [as_checkpoint, as_safetensors, as_torch])


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.values(), two.values(), strict=True))


def unchanged(model):
    return equal(model.state_dict(), net(1).state_dict())


@FORMS
def test_weights_are_loaded_in_place(tmp_path, save):
    model, source = net(1), net(2)
    first = model[0].weight

    loaded = load_weights(model, save(tmp_path, source.state_dict()))

    assert equal(model.state_dict(), source.state_dict())
    assert model[0].weight is first
    assert set(loaded.loaded) == set(source.state_dict())
    assert loaded.missing == loaded.unexpected == ()


@FORMS
def test_all_that_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path, save):
    weights = net(2).state_dict()
    weights["0.weight"] = torch.ones(3, 5)
    weights["1.num_batches_tracked"] = torch.tensor(1.5)
    weights["extra"] = torch.ones(1)
    del weights["2.bias"]
    model, path = net(1), save(tmp_path, weights)

    with pytest.raises(MismatchError) as caught:
        load_weights(model, path)

    for message in (
        str(path),
        "0.weight: shape [3, 5] in the file, [3, 2] in the model",
        "1.num_batches_tracked: dtype torch.float32 in the file, torch.int64 in the model",
        "missing in the file: '2.bias'",
        "not in the model: 'extra'",
        "ignore=['head.*']",
    ):
        assert message in str(caught.value)
    assert unchanged(model)


@FORMS
def test_another_shape_is_refused_even_when_not_strict(tmp_path, save):
    weights = {**net(2).state_dict(), "2.weight": torch.ones(7, 3)}
    model = net(1)

    with pytest.raises(MismatchError, match=r"2.weight: shape \[7, 3\]"):
        load_weights(model, save(tmp_path, weights), strict=False)
    assert unchanged(model)


def test_missing_and_unexpected_names_are_told_when_not_strict(tmp_path):
    weights = {**net(2).state_dict(), "extra": torch.ones(1)}
    del weights["2.bias"]
    model = net(1)

    loaded = load_weights(model, as_torch(tmp_path, weights), strict=False)

    assert loaded.missing == ("2.bias",)
    assert loaded.unexpected == ("extra",)
    assert torch.equal(model[0].weight, weights["0.weight"])
    assert torch.equal(model[2].bias, net(1)[2].bias)


def test_what_is_ignored_stays_as_it_is_on_both_sides(tmp_path):
    weights = {**net(2).state_dict(), "2.weight": torch.ones(7, 3), "extra.a": torch.ones(1)}
    model = net(1)

    loaded = load_weights(model, as_torch(tmp_path, weights), ignore=["2.*", "extra.?"])

    assert torch.equal(model[2].weight, net(1)[2].weight)
    assert torch.equal(model[0].weight, weights["0.weight"])
    assert not any(name.startswith("2.") for name in loaded.loaded)


@FORMS
def test_floats_are_converted(tmp_path, save):
    weights = {n: t.half() if t.is_floating_point() else t for n, t in net(2).state_dict().items()}
    model = net(1)

    load_weights(model, save(tmp_path, weights))

    assert model[0].weight.dtype == torch.float32
    assert torch.equal(model[0].weight, weights["0.weight"].float())


@pytest.mark.parametrize("kept", ["embed.weight", "head.weight"])
def test_one_name_of_a_tied_tensor_is_enough(tmp_path, kept):
    model = Tied()

    loaded = load_weights(model, as_safetensors(tmp_path, {kept: torch.ones(4, 3)}))

    assert loaded.missing == ()
    assert (model.embed.weight == 1).all()
    assert model.head.weight is model.embed.weight


@FORMS
def test_both_names_of_a_tied_tensor_may_be_there(tmp_path, save):
    one = torch.ones(4, 3)
    one[0, 0] = torch.nan

    load_weights(Tied(), save(tmp_path, {"embed.weight": one, "head.weight": one.clone()}))
    with pytest.raises(MismatchError, match=r"tied to embed.weight in the model"):
        load_weights(Tied(), save(tmp_path / "..", {"embed.weight": one, "head.weight": one + 1}))


def test_weights_below_a_key_are_found_when_it_is_named(tmp_path):
    nested = {"epoch": 3, "models": {"net": net(2).state_dict()}}
    path, model = as_torch(tmp_path, nested), net(1)

    with pytest.raises(MismatchError, match=r"'epoch', 'models'\. Set their path with key="):
        load_weights(model, path)
    with pytest.raises(MismatchError, match=r"no entry 'models/other': it contains 'net'"):
        load_weights(model, path, key="models/other")
    assert unchanged(model)
    load_weights(model, path, key="models/net")

    assert equal(model.state_dict(), net(2).state_dict())


def test_a_lazy_model_takes_the_shapes_of_the_file(tmp_path):
    path = as_torch(tmp_path, nn.Linear(2, 3).state_dict())
    model = nn.LazyLinear(3)

    load_weights(model, path)

    assert model.weight.shape == (3, 2)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the file was run')",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"w": Payload()}),
        pickle.dumps(Payload()),
        b"",
        b"PK\x03\x04 and no more",
        b"\x80\x02" + b"\xff" * 50,
    ],
)
@pytest.mark.parametrize("name", ["it.pt", "it.safetensors"])
def test_a_hostile_file_is_refused_and_not_run(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    model = net(1)

    with pytest.raises(DamagedCheckpointError, match=name):
        load_weights(model, tmp_path / name)
    assert unchanged(model)


def test_a_module_saved_whole_is_refused(tmp_path):
    with pytest.raises(
        DamagedCheckpointError, match="objects other than tensors and plain containers"
    ):
        load_weights(net(1), as_torch(tmp_path, net(2)))


@pytest.mark.parametrize("name", ["it.pt", "it.safetensors", "it"])
def test_no_file_is_a_plain_error(tmp_path, name):
    with pytest.raises(MissingCheckpointError, match="no file"):
        load_weights(net(1), tmp_path / name)


@pytest.mark.parametrize("held", [[1, 2], 3, {1: torch.ones(1)}, {"a": 1}])
def test_a_file_without_weights_is_a_plain_error(tmp_path, held):
    with pytest.raises(CheckpointError, match="contains no mapping"):
        load_weights(net(1), as_torch(tmp_path, held))


@pytest.mark.parametrize("save", [as_safetensors, as_torch])
@pytest.mark.parametrize("at", range(0, 200, 23))
def test_a_truncated_foreign_file_is_refused(tmp_path, save, at):
    path = save(tmp_path, net(2).state_dict())
    path.write_bytes(path.read_bytes()[:at])
    model = net(1)

    with pytest.raises(DamagedCheckpointError):
        load_weights(model, path)
    assert unchanged(model)
