"""Weights are loaded from checkpoints and other files: all of them, or none."""

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
from composable.checkpoint.weights import load_path_weights


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


@pytest.fixture
def model():
    """Build a model, which is unchanged after an error."""
    return net(1)


def equal(model, weights):
    own = model.state_dict()
    return own.keys() == weights.keys() and all(torch.equal(own[n], weights[n]) for n in own)


def check_refused(error, message, model, *arguments, **options):
    with pytest.raises(error, match=message) as caught:
        load_weights(model, *arguments, **options)
    assert equal(model, net(1).state_dict())
    return str(caught.value)


@FORMS
def test_loads_weights_in_place(tmp_path, model, save):
    source, first = net(2).state_dict(), model[0].weight

    loaded = load_weights(model, save(tmp_path, source))

    assert equal(model, source)
    assert model[0].weight is first
    assert set(loaded.loaded) == set(source)
    assert loaded.missing == loaded.unexpected == ()


@FORMS
def test_lists_all_differences_and_loads_nothing(tmp_path, model, save):
    weights = net(2).state_dict()
    weights["0.weight"] = torch.ones(3, 5)
    weights["1.num_batches_tracked"] = torch.tensor(1.5)
    weights["extra"] = torch.ones(1)
    del weights["2.bias"]
    path = save(tmp_path, weights)

    told = check_refused(MismatchError, "does not match the model", model, path)
    check_refused(MismatchError, r"0.weight: shape \[3, 5\]", model, path, strict=False)

    for message in (
        str(path),
        "0.weight: shape [3, 5] in the file, [3, 2] in the model",
        "1.num_batches_tracked: dtype torch.float32 in the file, torch.int64 in the model",
        "missing in the file: '2.bias'",
        "not in the model: 'extra'",
        "ignore=['head.*']",
    ):
        assert message in told


def test_returns_missing_and_unexpected_names_unless_strict(tmp_path, model):
    weights = {**net(2).state_dict(), "extra": torch.ones(1)}
    del weights["2.bias"]

    loaded = load_weights(model, as_torch(tmp_path, weights), strict=False)

    assert loaded.missing == ("2.bias",)
    assert loaded.unexpected == ("extra",)
    assert torch.equal(model[0].weight, weights["0.weight"])
    assert torch.equal(model[2].bias, net(1)[2].bias)


def test_ignored_names_are_unchanged_in_the_model_and_unused_in_the_file(tmp_path, model):
    weights = {**net(2).state_dict(), "2.weight": torch.ones(7, 3), "extra.a": torch.ones(1)}

    loaded = load_weights(model, as_torch(tmp_path, weights), ignore=["2.*", "extra.?"])

    assert torch.equal(model[2].weight, net(1)[2].weight)
    assert torch.equal(model[0].weight, weights["0.weight"])
    assert not any(name.startswith("2.") for name in loaded.loaded)


@FORMS
def test_converts_floating_point_values(tmp_path, model, save):
    weights = {n: t.half() if t.is_floating_point() else t for n, t in net(2).state_dict().items()}

    load_weights(model, save(tmp_path, weights))

    assert model[0].weight.dtype == torch.float32
    assert torch.equal(model[0].weight, weights["0.weight"].float())


@FORMS
def test_tied_weights_may_have_either_name_or_both(tmp_path, save):
    one = torch.ones(4, 3)
    one[0, 0] = torch.nan
    both = {"embed.weight": one, "head.weight": one.clone()}

    for weights in (both, {"embed.weight": one}, {"head.weight": one}):
        model, folder = Tied(), tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        loaded = load_weights(model, save(folder, weights))
        assert loaded.missing == ()
        torch.testing.assert_close(model.embed.weight.data, one, equal_nan=True)
        assert model.head.weight is model.embed.weight
    with pytest.raises(MismatchError, match=r"tied to embed.weight in the model"):
        load_weights(Tied(), save(tmp_path, {"embed.weight": one, "head.weight": one + 1}))


def test_the_key_selects_nested_weights(tmp_path, model):
    path = as_torch(tmp_path, {"epoch": 3, "models": {"net": net(2).state_dict()}})

    named = r"'epoch', 'models'\. Set their path with key=, such as key='models/net'\.$"
    check_refused(MismatchError, named, model, path)
    message = "no entry 'models/other': it contains 'net'"
    check_refused(MismatchError, message, model, path, key="models/other")
    load_weights(model, path, key="models/net")

    assert equal(model, net(2).state_dict())


def test_a_lazy_model_takes_the_shapes_of_the_file(tmp_path):
    model = nn.LazyLinear(3)

    load_weights(model, as_torch(tmp_path, nn.Linear(2, 3).state_dict()))

    assert model.weight.shape == (3, 2)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the file was run')",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"w": Payload()}),
        pickle.dumps(Payload()),
        pickle.dumps(print),
        b"",
        b"PK\x03\x04 and no more",
        b"\x80\x02" + b"\xff" * 50,
    ],
)
@pytest.mark.parametrize("name", ["it.pt", "it.safetensors"])
def test_refuses_a_hostile_file_without_running_it(tmp_path, model, content, name):
    (tmp_path / name).write_bytes(content)

    check_refused(DamagedCheckpointError, name, model, tmp_path / name)


@pytest.mark.parametrize("save", [as_safetensors, as_torch])
@pytest.mark.parametrize("at", range(0, 200, 23))
def test_refuses_a_truncated_file(tmp_path, model, save, at):
    path = save(tmp_path, net(2).state_dict())
    path.write_bytes(path.read_bytes()[:at])

    check_refused(DamagedCheckpointError, path.name, model, path)


@pytest.mark.parametrize("content", [[1, 2], 3, {1: torch.ones(1)}, {"a": 1}, net(2)])
def test_refuses_a_file_without_weights(tmp_path, model, content):
    whole = isinstance(content, nn.Module)
    message = "objects other than tensors and plain" if whole else "contains no mapping"

    check_refused(CheckpointError, message, model, as_torch(tmp_path, content))


@pytest.mark.parametrize("name", ["it.pt", "it.safetensors", "it"])
def test_a_missing_file_is_an_error(tmp_path, model, name):
    check_refused(MissingCheckpointError, "no file", model, tmp_path / name)


@pytest.mark.parametrize("prefix", ["", "model.", "module.", "_orig_mod.", "model._orig_mod.net."])
def test_load_path_drops_the_prefix_that_all_names_have(prefix, tmp_path):
    model, other = (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2))
    tree = {prefix + name: tensor for name, tensor in other.state_dict().items()}
    torch.save(tree, tmp_path / "it.pt")

    load_path_weights(model, tmp_path / "it.pt", ())

    assert equal(model, other.state_dict())


def test_a_prefix_with_which_names_differ_is_kept(tmp_path):
    tree = {f"model.{name}": tensor for name, tensor in nn.Linear(2, 1).state_dict().items()}
    torch.save({**tree, "head.weight": torch.zeros(1)}, tmp_path / "it.pt")

    with pytest.raises(MismatchError, match=r"not in the model: 'model\.weight'"):
        load_path_weights(nn.Linear(2, 1), tmp_path / "it.pt", ())


def test_tied_weights_may_have_one_of_their_names_behind_a_prefix(tmp_path):
    model = nn.ModuleDict({"one": nn.Linear(2, 2, bias=False), "two": nn.Linear(2, 2, bias=False)})
    model["two"].weight = model["one"].weight
    torch.save({"model.two.weight": torch.ones(2, 2)}, tmp_path / "it.pt")

    load_path_weights(model, tmp_path / "it.pt", ())

    assert torch.equal(model["one"].weight, torch.ones(2, 2))


def test_pickled_weights_of_a_folder_are_read(tmp_path):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    torch.save(other.state_dict(), tmp_path / "pytorch_model.bin")

    load_weights(model, tmp_path)

    assert torch.equal(model.weight, other.weight)
