"""An exported model computes what the trained one does, with averaged weights if there are any."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable import Event
from composable.algorithms import EMA, SWA
from composable.callbacks import ExportError, ExportForInference
from composable.core.evaluation_mode import evaluation_mode
from tests.support.campaign import drawn
from tests.support.data import batches, stream
from tests.support.hugging_face import build, tokens
from tests.support.models import conv_net, same, weights
from tests.support.observers import Raise
from tests.support.runs import LANGUAGE, make_trainer

IMAGES = partial(batches, images=True)


def train(*exports, model=None, loader=None, **options):
    """Train a convolutional net, and return the state."""
    model, loader = model or conv_net(), IMAGES() if loader is None else loader
    return make_trainer(model, loader, callbacks=list(exports), **options).fit()


def run(path, *inputs):
    """Return the outputs of an exported model."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {one.name: x.numpy() for one, x in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def outputs_of(model, *inputs):
    with evaluation_mode(model):
        return model(*inputs)


@pytest.mark.parametrize("name", ["m.pt2", "m.onnx"])
def test_exported_model_computes_what_the_trained_one_does(name, tmp_path):
    path = tmp_path / "new" / name

    state = train(ExportForInference(path))

    assert same(weights(state.model), weights(train().model))  # training is not changed
    for size in (1, 5):
        ((inputs, _),) = IMAGES([size])
        assert_close(run(path, inputs), outputs_of(state.model, inputs), rtol=1e-4, atol=1e-5)
    assert [path.name for path in path.parent.iterdir()] == [name]


@pytest.mark.parametrize("algorithm", [EMA("2ba"), SWA("0.3dur", update_interval="1ba")])
def test_averaged_weights_are_exported(algorithm, tmp_path):
    paths = [tmp_path / "average.pt2", tmp_path / "trained.pt2"]
    exports = [ExportForInference(paths[0]), ExportForInference(paths[1], averaged=False)]

    state = train(*exports, algorithms=algorithm)

    ((inputs, _),) = IMAGES([4])
    average = algorithm.averaged_model(state)
    assert same(weights(average), weights(state.model))
    assert same(weights(state.model), weights(train(algorithms=algorithm).model))
    assert_close(run(paths[0], inputs), outputs_of(average, inputs))
    plain = train().model
    assert_close(run(paths[1], inputs), outputs_of(plain, inputs))


@pytest.mark.parametrize(
    ("interval", "at_end", "loader", "names"),
    [
        ("1ep", True, batches(12), ["ep0-ba3", "ep1-ba6", "ep2-ba6"]),
        ("1ep", False, stream(12), ["ep1-ba3", "ep2-ba6"]),  # its length is not known
        ("4ba", False, batches(12), ["ep1-ba4"]),
        (lambda _, event: event.value == "epoch_end", False, batches(12), ["ep1-ba3", "ep2-ba6"]),
        (None, True, batches(12), ["ep2-ba6"]),
        (None, False, batches(12), []),
    ],
)
def test_exports_at_intervals_and_at_the_end(interval, at_end, loader, names, tmp_path):
    path = tmp_path / "ep{epoch}-ba{batch}.pt2"
    export = ExportForInference(path, interval=interval, at_end=at_end)

    make_trainer(None, loader, callbacks=export).fit()

    assert sorted(path.stem for path in tmp_path.iterdir()) == names


def test_earlier_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "m.pt2"
    path.write_text("old")
    export = ExportForInference(path)
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "load", lambda path: pytest.fail("no memory"))
        with pytest.raises(pytest.fail.Exception):
            train(export)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2"]

    state = train(export)

    ((inputs, _),) = IMAGES([3])
    assert_close(run(path, inputs), outputs_of(state.model, inputs))


class Wrong(nn.Linear):
    """A model that computes something else while it is exported."""

    def forward(self, inputs):
        return super().forward(inputs) * (2 if torch.compiler.is_compiling() else 1)


class Sized(nn.Linear):
    """A model that takes batches of two or four examples only."""

    def forward(self, inputs):
        if inputs.shape[0] not in (2, 4):
            raise ValueError("unknown size")
        return super().forward(inputs)


def test_other_outputs_are_an_error(tmp_path):
    export = ExportForInference(tmp_path / "m.pt2")

    with pytest.raises(ExportError, match=r"output 0 by up to .* tolerance=0.001 is allowed"):
        train(export, model=Wrong(4, 3), loader=batches(8, features=4))

    assert list(tmp_path.iterdir()) == []


def test_model_that_cannot_be_exported_is_an_error_that_says_what_to_do(tmp_path):
    path, loader = tmp_path / "m.pt2", batches(8, features=4)
    with pytest.raises(ExportError, match=r"(?s)Sized cannot be exported .*dynamic_batch=False"):
        train(ExportForInference(path), model=Sized(4, 3), loader=loader)

    state = train(ExportForInference(path, dynamic_batch=False), model=Sized(4, 3), loader=loader)

    inputs = loader[0][0][:2]
    assert_close(run(path, inputs), outputs_of(state.model, inputs))


@pytest.mark.parametrize("name", drawn(["m.onnx", "m.pt2"], 1))
def test_language_model_is_exported_without_its_targets(name, tmp_path):
    path = tmp_path / name

    state = LANGUAGE.trainer(callbacks=ExportForInference(path)).fit()

    ids = LANGUAGE.batches()[0]["input_ids"][:3]
    assert_close(run(path, ids), outputs_of(state.model, ids), rtol=1e-4, atol=1e-5)


def test_input_is_given_or_that_of_the_last_batch(tmp_path):
    given = torch.zeros(1, 4)
    export = ExportForInference(tmp_path / "m.pt2", sample_input=given)
    make_trainer(nn.Linear(4, 3), batches([1, 1], features=4), callbacks=export).fit()
    assert run(tmp_path / "m.pt2", torch.zeros(3, 4)).shape == (3, 3)

    grown = [(torch.zeros(4, 2, side, side), torch.zeros(4, dtype=torch.long)) for side in (4, 8)]
    train(ExportForInference(tmp_path / "m.pt2"), loader=grown)
    assert run(tmp_path / "m.pt2", torch.zeros(3, 2, 8, 8)).shape[0] == 3


class Sum(nn.Module):
    """A model of two inputs, of a dictionary of them, or of a whole batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a, b=None):
        if isinstance(a, dict):
            a, b = a["a"], a["b"]
        if isinstance(a, tuple):
            a, b, _ = a
        return self.a(a) + self.b(b)


class WithLoss(Sum):
    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[2])


A, B, Y = torch.ones(4, 4), torch.ones(4, 2), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("model", "batch", "options", "inputs"),
    [
        (Sum, (A, B, Y), {"input_key": (0, 1), "target_key": 2}, (A, B)),
        (Sum, ({"a": A, "b": B}, Y), {}, ({"a": A, "b": B},)),
        (WithLoss, (A, B, Y), {"loss_fn": None}, ((A, B, Y),)),
    ],
)
def test_model_is_called_as_in_training(model, batch, options, inputs, tmp_path):
    export, model = ExportForInference(tmp_path / "m.pt2"), model()
    make_trainer(model, [batch], callbacks=export, **options).fit()

    assert_close(run(tmp_path / "m.pt2", *inputs), outputs_of(model, *inputs))


@pytest.mark.parametrize("options", [{"microbatch_size": 2}, {"accumulate_batches": 2}])
def test_split_and_grouped_batches_have_an_input(options, tmp_path):
    train(ExportForInference(tmp_path / "m.pt2"), **options)

    assert (tmp_path / "m.pt2").exists()


def test_weights_of_16_bits_are_exported(tmp_path):
    exports = [
        ExportForInference(tmp_path / "m.pt2", tolerance=1e-2),
        ExportForInference(tmp_path / "m.onnx"),
    ]
    model = nn.Linear(4, 3).bfloat16()
    loader = batches(8, features=4, dtype=torch.bfloat16)

    make_trainer(model, loader, callbacks=exports).fit()

    assert run(tmp_path / "m.pt2", loader[0][0]).dtype is torch.bfloat16
    assert run(tmp_path / "m.onnx", loader[0][0].float()).dtype is torch.float32
    assert model.weight.dtype is torch.bfloat16


def test_fit_without_a_batch_is_a_warning(tmp_path):
    save = {"save_folder": tmp_path / "runs", "save_interval": "1ba", "autoresume": True}
    stop = Raise(KeyboardInterrupt(), Event.FIT_END, batch=6)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=stop, **save).fit()

    with pytest.warns(UserWarning, match=r"ExportForInference did not write .*; pass sample_input"):
        make_trainer(callbacks=ExportForInference(tmp_path / "m.pt2"), **save).fit()


def test_causal_language_model_of_transformers_is_exported_without_its_cache(tmp_path):
    model, ids = build("gpt2", loss_type="ForCausalLM"), tokens(7, batch=4)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    make_trainer(
        model, [batch], loss_fn=None, callbacks=ExportForInference(tmp_path / "m.pt2")
    ).fit()

    outputs = torch.export.load(tmp_path / "m.pt2").module()(
        input_ids=ids[:3], attention_mask=torch.ones_like(ids[:3])
    )
    given = {"input_ids": ids[:3], "attention_mask": torch.ones_like(ids[:3])}
    with evaluation_mode(model):
        assert_close(outputs["logits"], model(**given).logits)
    assert model.config.use_cache


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("composable.distributed.Processes.is_main", False)

    train(ExportForInference(tmp_path / "m.pt2"))

    assert list(tmp_path.iterdir()) == []
