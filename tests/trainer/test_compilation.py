"""compile=: the run is that of an eager model, through as many graphs as announced."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Algorithm, Event, Stage
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    LayerFreezing,
    ProgressiveResizing,
    SqueezeExcite,
    StochasticDepth,
)
from composable.core.state import State
from composable.engines.compiled import CompilationWarning
from composable.functional.layers.residual import ResidualBlock
from composable.models import Classifier
from composable.resume import ChangedRunWarning
from tests.support.campaign import drawn
from tests.support.cases import all_cases
from tests.support.compiled import GRAPHS, USUAL_GRAPHS, CountingBackend, counting_aot
from tests.support.data import batches
from tests.support.models import conv_net, linear, mlp, same, seeded, weights
from tests.support.runs import PROBLEMS, VISION, make_trainer

pytestmark = pytest.mark.compile

RAGGED = batches(10)
DROPOUT = partial(mlp, dropout=0.5)


@pytest.fixture
def backend():
    torch.compiler.reset()
    return CountingBackend()


def deep():
    """Build a model of four layers with parameters."""
    norm = partial(nn.BatchNorm1d, 4)
    return seeded(lambda: nn.Sequential(nn.Linear(4, 4), norm(), nn.Linear(4, 4), nn.Linear(4, 3)))


def fitted(backend=None, model=DROPOUT, **options):
    """Train a model, or one that a function builds; compiled if there is a backend."""
    if backend is not None:
        options["compile"] = {"backend": backend}
    options.setdefault("loader", RAGGED)
    trainer = make_trainer(model if isinstance(model, nn.Module) else model(), **options)
    trainer.fit()
    return trainer


# --- the same run ---


@attrs.frozen
class Widen(Algorithm):
    """Replaces the model by one of another structure at an epoch."""

    events = frozenset({Event.EPOCH_START})
    stage = Stage.SURGERY
    reads = frozenset({"model", "timestamp"})
    writes = frozenset({"model", "optimizers"})

    def apply(self, event, state):
        if state.timestamp.epoch != 1:
            return state
        model = nn.Sequential(state.model, nn.Tanh())
        return state.evolve(model=model)


def encoders():
    """Build a model of two residual layers."""
    layer = partial(nn.TransformerEncoderLayer, 4, 2, 8, dropout=0.0, batch_first=True)
    ends = nn.Unflatten(1, (1, 4)), nn.Flatten()
    return seeded(lambda: nn.Sequential(ends[0], layer(), layer(), ends[1], linear()))


ENCODER = ResidualBlock(nn.TransformerEncoderLayer)
DROPPING = StochasticDepth(ENCODER, "sample", drop_rate=0.5, drop_warmup="0.5dur")
OWN_LOSS = {
    "model": lambda: Classifier(linear(), input_key="x", target_key="y"),
    "loader": [{"x": x, "y": y} for x, y in RAGGED],
    **{"loss_fn": None, "input_key": "x", "target_key": "y"},
}


@pytest.mark.parametrize(
    ("options", "graphs"),
    [
        ({}, 2),
        ({"loader": batches(12)}, 1),
        ({"eval_dataloader": RAGGED}, 4),
        ({"grad_accum": 2}, 2),
        ({"algorithms": [SAM()]}, 2),
        ({"algorithms": [EMA("1ba")], "eval_dataloader": RAGGED}, 4),
        ({"algorithms": [SWA("0dur")], "eval_dataloader": RAGGED}, 4),
        ({"precision": "amp_bf16"}, 2),
        ({"precision": "bf16"}, 2),
        ({"precision": "amp_fp16"}, 2),
        ({"algorithms": [LayerFreezing(freeze_start=0)], "model": deep}, 6),
        (OWN_LOSS, 2),
        ({"algorithms": [Widen()], "loader": batches(12), "check_effects": False}, 2),
        ({"algorithms": [DROPPING], "loader": batches(24), "model": encoders}, 2),
    ],
    ids=[
        *("ragged", "one size", "evaluation", "microbatches", "SAM", "EMA", "SWA"),
        *("autocast", "bf16", "scaled"),
        *("freezing", "own loss", "another model", "drop rates"),
    ],
)
@torch._dynamo.config.patch(recompile_limit=2)
def test_matches_eager_run(backend, options, graphs):
    compiled = fitted(backend, max_duration="4ep", **options)
    eager = fitted(max_duration="4ep", **options)

    assert same(weights(compiled.state.model), weights(eager.state.model))
    assert compiled.state.metrics == eager.state.metrics
    assert len(backend) == graphs
    assert not backend.dynamic


def test_later_fits_evaluations_and_predictions_reuse_graphs(backend):
    trainer = fitted(backend, eval_dataloader=RAGGED, algorithms=[EMA("1ba")])
    assert len(backend) == 4

    trainer.fit(duration="1ep")
    trainer.eval()
    outputs = trainer.predict([inputs for inputs, _ in RAGGED])

    assert len(backend) == 4
    averaged = EMA("1ba").averaged_model(trainer.state).eval()
    torch.testing.assert_close(torch.cat(outputs), averaged(torch.cat([x for x, _ in RAGGED])))


def test_state_keeps_plain_module(backend):
    model = conv_net()
    images = {"loader": batches(10, images=True), "algorithms": [SqueezeExcite(min_channels=1)]}
    trainer = fitted(backend, model, **images)
    eager = fitted(None, conv_net(), **images)

    assert type(trainer.state.model) is type(model)
    assert list(trainer.state.model.state_dict()) == list(eager.state.model.state_dict())
    assert same(weights(copy.deepcopy(trainer.state).model), weights(eager.state.model))
    assert same(
        weights(pickle.loads(pickle.dumps(trainer.state)).model), weights(eager.state.model)
    )
    example = batches(4, images=True)[0][0]
    exported = torch.export.export(trainer.state.model.eval(), (example,)).module()
    torch.testing.assert_close(exported(example), eager.state.model.eval()(example))


@pytest.mark.campaign  # tests/trainer/test_huggingface_models.py compiles another one
def test_model_of_hugging_face_trains_as_it_is(backend):
    transformers = pytest.importorskip("transformers")
    from tests.support.hugging_face import build, tokens

    def loss(logits, labels):
        return cross_entropy(logits.flatten(0, 1), labels.flatten())

    ids = tokens(6, batch=10).split(4)
    loader = [transformers.BatchEncoding({"input_ids": one, "labels": one}) for one in ids]
    options = {"model": partial(build, "bert as a decoder"), "loader": loader, "loss_fn": loss}
    options |= {"input_key": "input_ids", "target_key": "labels"}
    compiled, eager = fitted(backend, **options), fitted(**options)

    torch.testing.assert_close(weights(compiled.state.model), weights(eager.state.model))
    assert len(backend) == 2


# --- hooks, limits, and what isn't compiled ---


def test_hooks_registered_later_are_called(backend):
    trainer = fitted(backend, linear())
    seen = []
    hook = trainer.state.model.register_forward_hook(lambda *call: seen.append(1))

    trainer.fit(duration="1ep")
    assert len(seen) == len(RAGGED)

    hook.remove()
    trainer.fit(duration="1ep")
    assert len(seen) == len(RAGGED)


def test_images_of_growing_size_share_a_graph(backend):
    sizes = set()

    def record(event, state):
        if event is Event.BEFORE_FORWARD:
            sizes.add(state.inputs.shape[-1])
        return state

    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
    )
    large = [(torch.nn.functional.interpolate(x, (40, 40)), y) for x, y in batches(40, images=True)]
    resizing = ProgressiveResizing(size_increment=2, delay_fraction=0.1)
    trainer = fitted(
        backend, model, loader=large, eval_dataloader=large, algorithms=[resizing, record]
    )

    assert len(sizes) > 5
    assert len(backend) == backend.dynamic == 2
    assert trainer.state.timestamp.batch == 20


@torch._dynamo.config.patch(recompile_limit=3)
def test_warns_of_many_sizes(backend):
    sizes = batches([2, 3, 5, 6, 7, 8, 2, 8])

    with pytest.warns(CompilationWarning, match=r"3 sets of input sizes.*'dynamic': True") as found:
        compiled = fitted(backend, loader=sizes)

    assert len(found) == 1
    assert (len(backend), backend.dynamic) == (4, 1)
    assert same(weights(compiled.state.model), weights(fitted(None, loader=sizes).state.model))


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_is_passed_on(backend, dynamic):
    options = {"backend": backend, "dynamic": dynamic}
    make_trainer(mlp(), batches([5, 6, 7]), compile=options).fit()

    assert (len(backend), backend.dynamic) == ((1, 1) if dynamic else (3, 0))


class Restless(nn.Linear):
    """A layer with a number that every call changes, which compiled graphs have as a constant."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls > 0 else 2)


@torch._dynamo.config.patch(recompile_limit=2)
def test_tells_that_limit_of_recompilations_is_reached(backend):
    options = {"compile": {"backend": backend, "fullgraph": True}, "max_duration": "3ep"}
    trainer = make_trainer(Restless(4, 3), batches(12), **options)

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit, match="fullgraph=True"):
        trainer.fit()

    assert len(backend) == 2


def test_warns_if_nothing_is_compiled(backend):
    class Disabled(nn.Linear):
        @torch.compiler.disable
        def forward(self, x):
            return super().forward(x)

    with pytest.warns(CompilationWarning, match="compiles nothing of Disabled"):
        fitted(backend, Disabled(4, 3))
    assert not len(backend)


# --- checkpoints ---


@pytest.mark.parametrize("before", ["compiled", "eager"])
@pytest.mark.parametrize("after", ["compiled", "eager"])
def test_resumes_from_checkpoint(before, after, tmp_path):
    torch.compiler.reset()
    compiled = {"compiled": {"compile": {"backend": counting_aot()}}, "eager": {}}
    options = {"algorithms": [EMA("1ba"), SAM()], "optimizers": partial(torch.optim.Adam, lr=0.1)}
    run = partial(make_trainer, loader=batches(12), max_duration="4ep", **options)
    whole = run(DROPOUT(), **compiled[before])
    whole.fit()

    first = run(DROPOUT(), **compiled[before])
    first.fit(duration="4ba")
    first.save_checkpoint(tmp_path / "first")
    changed = pytest.warns(ChangedRunWarning, match="options/compile")
    with nullcontext() if before == after else changed:
        second = run(DROPOUT(), load_path=tmp_path / "first", **compiled[after])
        second.fit(duration="8ba")

    assert second.state.timestamp.batch == 12
    assert same(weights(second.state.model), weights(whole.state.model))


# --- arguments ---


def test_nothing_is_composed_in_by_default():
    assert make_trainer()._run.engine.forward.outputs is State.forward
    assert make_trainer(compile=False)._run.engine.forward.outputs is State.forward


def in_place():
    model = linear()
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: torch.compile(linear(), backend="eager"), r"_orig_mod.*compile=True"),
        (in_place, r"drop the call of model.compile\(\) and pass compile=True"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"compile": True}], ids=["", "compile"])
def test_rejects_compiled_model(model, match, options):
    with pytest.raises(ValueError, match=match):
        make_trainer(model(), **options)


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("outer", [lambda m: m, nn.Sequential], ids=["whole", "part"])
def test_rejects_torchscript(outer, backend):
    scripted = outer(torch.jit.script(linear()))

    with pytest.raises(ValueError, match=r"TorchScript.*or compile=False"):
        make_trainer(scripted, compile={"backend": backend})
    make_trainer(scripted)


# --- Inductor ---


@pytest.mark.slow
def test_inductor_trains_as_eager_model(tmp_path):
    """Blurred convolutions, dropout with the masks of eager mode, an average, and a resume."""
    from composable.algorithms import BlurPool

    torch.compiler.reset()
    options = {
        "loader": batches(12, images=True),
        "algorithms": [BlurPool(min_channels=1), EMA("1ba")],
        # Without vector instructions, which Inductor tries out for longer than it compiles.
        "compile": {"options": {"fallback_random": True, "cpp.vec_isa_ok": False}},
    }
    compiled = VISION.trainer(**options, save_folder=tmp_path, save_interval="2ba")
    compiled.fit()
    eager = VISION.trainer(**{**options, "compile": False})
    eager.fit()
    resumed = VISION.trainer(**options, load_path=tmp_path / "ep0-ba2")
    resumed.fit()

    torch.testing.assert_close(weights(compiled.state.model), weights(eager.state.model))
    assert not same(weights(compiled.state.model), weights(eager.state.model))
    assert same(weights(resumed.state.model), weights(compiled.state.model))


# --- every method ---


METHODS = {case.name: case.algorithm for case in all_cases() if case.algorithm}
ROUNDED = {"blurpool": 1e-6}
"""Methods whose compiled layers compute in another order."""


def test_methods_with_another_number_of_graphs_exist():
    assert METHODS.keys() >= GRAPHS.keys()


@pytest.mark.compile
@pytest.mark.parametrize("name", drawn(METHODS, 6))
def test_method_trains_compiled_model(name):
    algorithm = METHODS[name]
    problem = next(one for one in PROBLEMS if algorithm.acts_on(one))
    torch.compiler.reset()
    backend = counting_aot()

    def train(**options):
        return problem.trainer(
            algorithms=[algorithm.example], eval_dataloader=problem.batches(), **options
        ).fit()

    compiled, eager = train(compile={"backend": backend}), train()

    tolerance = ROUNDED.get(name, 0.0)
    for key, tensor in weights(eager.model).items():
        torch.testing.assert_close(
            weights(compiled.model)[key], tensor, rtol=tolerance, atol=tolerance
        )
    assert compiled.metrics["eval"] == pytest.approx(eager.metrics["eval"], rel=tolerance)
    assert len(backend) == GRAPHS.get(name, (USUAL_GRAPHS, ""))[0]
