"""Evaluation and prediction: their results, their data, and the state that they don't change."""

import weakref
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load, load_file
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Evaluator, Event, SplitLossError, Trainer
from composable._support.object_stores import ObjectStore
from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.trainer.guards import NonFiniteLossWarning
from tests.support.data import batches, stream
from tests.support.hugging_face import build, tokens
from tests.support.models import CLASSES, linear, same, seeded
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer, training_weights

UNEVEN = batches([4, 4, 1])


# Results


@pytest.mark.parametrize("returned", [None, {"f1": 0.5}])
def test_metric_that_returns_no_number_is_named(returned):
    trainer = make_trainer(metrics={"f1": lambda outputs, targets: returned})

    with pytest.raises(TypeError, match=r"metrics\['f1'\] returned .*, or their mean"):
        trainer.eval(UNEVEN)


class Recall:
    """Like torchmetrics' objects: a metric other than a mean over the examples."""

    def __init__(self):
        self.resets = 0

    def reset(self):
        self.resets += 1
        self.right = self.real = torch.tensor(0.0)

    def update(self, outputs, targets):
        real = targets == 1
        self.real = self.real + real.sum()
        self.right = self.right + (real & (outputs.argmax(1) == 1)).sum()

    def compute(self):
        return self.right / self.real

    def __call__(self, outputs, targets):  # torchmetrics has this one too
        raise AssertionError


def test_metric_object_is_reset_updated_and_computed():
    model, metric = linear(), Recall()
    trainer = make_trainer(model, metrics={"recall": metric})

    first = trainer.eval(UNEVEN)
    second = trainer.eval(UNEVEN)

    inputs, targets = (torch.cat(part) for part in zip(*UNEVEN, strict=True))
    right = model(inputs).argmax(1)[targets == 1] == 1
    assert first["eval"]["recall"] == pytest.approx(right.float().mean().item())
    assert first == second
    assert metric.resets == 2


@pytest.mark.parametrize("mean_over", ["tokens", lambda batch: int((batch[1] != -100).sum())])
@pytest.mark.parametrize("targets", [[0, 1, -100, -100, 2, -100], [0, 1, -100, -100, -100, 2]])
def test_loss_over_tokens_is_a_mean_over_tokens(targets, mean_over):
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor(targets)
    data = list(zip(inputs.split(2), targets.split(2), strict=True))  # one has no tokens
    model = linear()

    results = make_trainer(model, loss_mean_over=mean_over).eval(data)

    expected = cross_entropy(model(inputs), targets).item()
    assert results["eval"]["loss"] == pytest.approx(expected)


def root(outputs, targets):
    return cross_entropy(outputs, targets).sqrt()


@pytest.mark.parametrize("loader", [batches(12), stream(12)], ids=["sized", "unsized"])
def test_loss_of_all_outputs_is_refused_if_they_take_too_much_memory(loader, monkeypatch):
    trainer = make_trainer(linear(), loss_fn=root)
    monkeypatch.setattr("composable.trainer.evaluation._LIMIT", 200)
    trainer.eval(batches(12)[:1])

    with pytest.raises(SplitLossError, match=r"more than 1 GiB.*loss_mean_over="):
        trainer.eval(loader)


def test_loss_of_all_outputs_needs_outputs_of_one_shape():
    def squares(outputs, targets):
        return outputs.square().mean().sqrt()

    data = [(torch.randn(2, 4), torch.zeros(2)), (torch.randn(2, 3, 4), torch.zeros(2))]
    with pytest.raises(SplitLossError, match="can't be joined"):
        make_trainer(linear(), loss_fn=squares).eval(data)


def test_batches_with_losses_of_different_kinds_are_refused():
    def squares_of_short_batches(outputs, targets):
        return outputs.square().mean() if len(outputs) < 4 else cross_entropy(outputs, targets)

    with pytest.raises(SplitLossError, match=r"different|another way"):
        make_trainer(linear(), loss_fn=squares_of_short_batches).eval(batches([8, 3]))


def test_accuracy_of_maps_is_a_mean_over_each_map():
    targets = torch.tensor([[[0, 1]], [[1, 1]]])
    outputs = nn.functional.one_hot(torch.tensor([[[0, 1]], [[1, 0]]]), 2).movedim(-1, 1)

    assert accuracy(outputs.float(), targets).tolist() == [1.0, 0.5]


# Several evaluators


def test_each_evaluator_has_its_label_and_its_metrics():
    memory = InMemoryLogger()
    trainer = make_trainer(
        metrics={"accuracy": accuracy},
        eval_dataloader=[
            Evaluator("train", batches(12)),
            Evaluator("test", UNEVEN, metrics={"recall": Recall()}),
            Evaluator("bare", UNEVEN, metrics={}),
        ],
        loggers=[memory],
        max_duration="1ep",
    )
    state = trainer.fit()

    assert {k: list(v) for k, v in state.metrics.items()} == {
        "train": ["loss", "accuracy"],
        "test": ["loss", "recall"],
        "bare": ["loss"],
    }
    assert memory.latest["metrics/test/recall"] == state.metrics["test"]["recall"]
    assert memory.latest["metrics/train/loss"] == state.metrics["train"]["loss"]


EVALUATOR = Evaluator("eval", UNEVEN)


@pytest.mark.parametrize("given", [UNEVEN, tuple(UNEVEN), EVALUATOR, [EVALUATOR], {"eval": UNEVEN}])
def test_forms_of_eval_dataloader(given):
    assert make_trainer(eval_dataloader=given).eval() == make_trainer().eval(UNEVEN)


# When it is due


# Intervals in batches, epochs, samples and fractions: property_tests/test_event_order.py.


@pytest.mark.parametrize(
    ("interval", "evaluated"),
    [
        (1, [3, 6, 9, 12]),
        (None, []),
        (lambda state, event: state.timestamp.batch == 4, [4, 12]),
        (lambda state, event: event is Event.EPOCH_END, [3, 6, 9, 12]),
        ("100ba", [12]),  # training ends with one
        ("1iter", [6, 12]),
        ("2iter", [12]),
    ],
)
def test_evaluations_of_an_interval(interval, evaluated):
    watch = Watch(Event.EVAL_START, read=lambda s: s.timestamp.batch)

    make_trainer(
        eval_dataloader=UNEVEN,
        eval_interval=interval,
        iteration_length="2ep",
        max_duration="4ep",
        callbacks=[watch],
    ).fit()

    assert watch.values == evaluated


# What stays


class Modes(nn.Module):
    """A model one part of which is frozen in evaluation mode, as in fine-tuning."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, CLASSES)
        self.norm.eval()

    def forward(self, inputs):
        return self.head(self.drop(self.norm(inputs)))


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize("error", [None, RuntimeError("no disk")])
@pytest.mark.parametrize("action", ["eval", "predict"])
def test_modes_of_modules_and_gradients_are_restored(action, error):
    event = Event.EVAL_BATCH_END if action == "eval" else Event.PREDICT_BATCH_END
    model, inside = Modes(), []
    trainer, before = make_trainer(model, callbacks=[Raise(error, event, 0)]), modes(model)
    model.register_forward_hook(
        lambda *_: inside.append({*modes(model).values(), torch.is_grad_enabled()})
    )

    with pytest.raises(RuntimeError, match="no disk") if error else nullcontext():
        getattr(trainer, action)(UNEVEN)

    assert inside == [{False}] * (1 if error else 3)
    assert modes(model) == before
    assert not before["norm"]
    assert before["drop"]
    assert torch.is_grad_enabled()


EVENTS = {
    "eval": "eval_standalone_start eval_start eval_batch_start eval_before_forward "
    "eval_after_forward eval_batch_end eval_end eval_standalone_end",
    "predict": "predict_start predict_batch_start predict_before_forward predict_after_forward "
    "predict_batch_end predict_end",
}


@pytest.mark.parametrize("action", EVENTS)
def test_events_of_a_direct_call(action):
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    watch.seen.clear()

    getattr(trainer, action)(UNEVEN[:1])

    assert [event.value for event, _ in watch.seen] == EVENTS[action].split()


# Prediction


def test_predictions_are_the_outputs_of_each_batch():
    model = linear()
    trainer = make_trainer(model)

    outputs = trainer.predict(UNEVEN)

    assert [len(one) for one in outputs] == [4, 4, 1]
    for one, (inputs, _) in zip(outputs, UNEVEN, strict=True):
        assert torch.equal(one, model(inputs))
        assert one.device == torch.device("cpu")
        assert not one.requires_grad


@pytest.mark.parametrize("batch", [lambda inputs: inputs, lambda inputs: (inputs,)])
def test_prediction_needs_inputs_alone_and_keeps_the_structure_of_outputs(batch):
    class Nested(nn.Module):
        def forward(self, inputs):
            return {"twice": (inputs * 2, "text")}

    (inputs, _), *_ = UNEVEN
    (output,) = make_trainer(Nested(), optimizers=None).predict([batch(inputs)])

    assert torch.equal(output["twice"][0], inputs * 2)
    assert output["twice"][1] == "text"


# Other weights


def test_loss_of_a_model_is_that_of_the_average():
    class WithLoss(nn.Linear):
        def forward(self, batch):
            return super().forward(batch[0])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch[1]) + self.weight.sum() * 0.01

    model, ema = seeded(lambda: WithLoss(4, CLASSES)), EMA(half_life=None, smoothing=0.5)
    trainer = make_trainer(model, loss_fn=None, algorithms=[ema])
    averaged = ema.averaged_model(trainer.fit())

    expected = averaged.loss(averaged(UNEVEN[0]), UNEVEN[0]).item()
    assert trainer.eval(UNEVEN[:1])["eval"]["loss"] == pytest.approx(expected)
    assert expected == pytest.approx(model.loss(model(UNEVEN[0]), UNEVEN[0]).item())
    model.load_state_dict(training_weights(trainer))
    assert expected != pytest.approx(model.loss(model(UNEVEN[0]), UNEVEN[0]).item())


def test_mean_of_a_bfloat16_metric_is_exact():
    def one(outputs, targets):
        return torch.ones(len(outputs), dtype=torch.bfloat16)  # whose sums stop at 256

    results = make_trainer(loss_fn=None, metrics={"one": one}).eval(batches([1] * 300))
    assert results["eval"]["one"] == 1.0


@pytest.mark.parametrize(
    ("action", "event", "count"),
    [
        *(("fit", event, 1) for event in (Event.EVAL_BEFORE_ALL, Event.EVAL_AFTER_ALL)),
        *(("eval", event, 1) for event in (Event.EVAL_STANDALONE_START, Event.EVAL_STANDALONE_END)),
        *(("predict", event, 1) for event in (Event.PREDICT_START, Event.PREDICT_END)),
        *(("eval", Event.EVAL_BATCH_END, 3), ("predict", Event.PREDICT_BATCH_END, 3)),
    ],
)
def test_memory_of_an_algorithm_is_kept_after_an_evaluation(action, event, count):
    def increment(at, state):
        return state.remember("n", state.memory.get("n", 0) + 1) if at is event else state

    trainer = make_trainer(algorithms=[increment], eval_dataloader=UNEVEN, max_duration="1ep")
    getattr(trainer, action)(*([UNEVEN] if action == "predict" else []))

    assert trainer.state.memory["n"] == count


class Noise(nn.Module):
    """A model that draws in evaluation too, as a VAE does."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, inputs):
        return self.layer(inputs) + torch.randn(len(inputs), CLASSES)


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_random_numbers_of_an_evaluation_do_not_depend_on_callbacks(kind):
    before = Event.EVAL_BATCH_START if kind == "eval" else Event.PREDICT_BATCH_START
    after = Event.EVAL_AFTER_FORWARD if kind == "eval" else Event.PREDICT_AFTER_FORWARD

    def outputs(*callbacks):
        seen = Watch(after, read=lambda state: state.outputs)
        getattr(make_trainer(Noise(), callbacks=[*callbacks, seen]), kind)(UNEVEN)
        return torch.cat(seen.values)

    gambler = Watch(before, read=lambda state: torch.rand(3))
    assert torch.equal(outputs(gambler), outputs())


def test_evaluators_prediction_and_training_have_their_own_random_streams():
    one = [(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64))]
    forward = (Event.AFTER_FORWARD, Event.EVAL_AFTER_FORWARD, Event.PREDICT_AFTER_FORWARD)
    seen = Watch(*forward, read=lambda state: state.outputs.detach())
    trainer = make_trainer(
        Noise(),
        train_dataloader=one,
        max_duration="1ba",
        callbacks=[seen],
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.0),  # noise alone differs
        eval_dataloader=[Evaluator("a", one), Evaluator("b", one)],
    )
    trainer.fit()
    trainer.predict(one)

    drawn = seen.values
    assert len(drawn) == 4
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize("call", [lambda trainer: trainer.fit(), lambda trainer: trainer.eval()])
def test_evaluation_loss_that_is_nan_is_a_warning_with_its_evaluator(call):
    bad = batches(12)
    bad[1][0][0, 0] = torch.nan
    trainer = make_trainer(eval_dataloader=Evaluator("test", bad), max_duration="1ep")

    message = "the loss of Evaluator 'test' is nan: look for values that are not finite in its data"
    with pytest.warns(NonFiniteLossWarning, match=message):
        call(trainer)


def test_evaluation_loss_that_is_nan_since_the_weights_are_names_the_weights():
    model = linear()
    torch.nn.init.constant_(model.bias, torch.nan)

    with pytest.warns(NonFiniteLossWarning, match=r"weights of the model .* such as 'bias'"):
        make_trainer(model, eval_dataloader=batches(12)).eval()


# --- predictions that are written as they are computed ---


def predictor(*callbacks, fitted=True, **options):
    """Build a Trainer with averaged weights, and count the batches that it predicts."""
    watch = Watch(Event.PREDICT_BATCH_END)
    trainer = make_trainer(
        callbacks=[watch, *callbacks], algorithms=EMA(half_life="2ba"), **options
    )
    if fitted:
        trainer.fit()
    return trainer, watch.seen


class Killed(Watch):
    """Fails at the third batch that is predicted."""

    def run_event(self, event, state, logger):
        super().run_event(event, state, logger)
        if len(self.seen) == 3:
            raise RuntimeError("killed")


@pytest.mark.parametrize("remote", [False, True])
def test_killed_prediction_is_continued(remote, tmp_path):
    to = f"memory://predictions/{tmp_path.name}" if remote else tmp_path / "outputs"
    loader = batches(20)
    killed, _ = predictor(Killed(Event.PREDICT_BATCH_START))
    with pytest.raises(RuntimeError, match="killed"):
        killed.predict(loader, to=to)

    trainer, seen = predictor()
    assert trainer.predict(loader, to=to) == to

    assert len(seen) == 3  # of five
    outputs = trainer.predict(loader)
    for i, output in enumerate(outputs):
        name = f"part-{i:08d}.safetensors"
        found = load(ObjectStore("to", to).read(name)) if remote else load_file(to / name)
        assert torch.equal(found["outputs"], output)


def test_folder_of_other_weights_or_files_is_refused(tmp_path):
    trainer, _ = predictor()
    trainer.predict(batches(4), to=tmp_path / "outputs")
    trainer.fit(duration="1ba")
    (tmp_path / "notes.txt").touch()

    with pytest.raises(FileExistsError, match="has outputs of other weights; pass a new"):
        trainer.predict(batches(4), to=tmp_path / "outputs")
    with pytest.raises(FileExistsError, match=r"has the file 'notes.txt'; pass a new"):
        trainer.predict(batches(4), to=tmp_path)


def test_outputs_have_names_and_the_cache_of_a_model_is_omitted(tmp_path):
    ids = tokens(5)
    model = build("gpt2")
    trainer = Trainer(model, progress_bar=False)
    trainer.predict([{"input_ids": ids}], to=tmp_path)

    found = load_file(tmp_path / "part-00000000.safetensors")
    assert found.keys() == {"logits"}
    assert torch.equal(found["logits"], model(input_ids=ids).logits)


def test_output_that_a_file_has_not_is_named(tmp_path):
    class Notes(nn.Module):
        def forward(self, x):
            return {"sum": x.sum(), "notes": ["a", 3]}

    with pytest.raises(TypeError, match=r"the output notes\.0 is a str, .* use predict_each"):
        Trainer(Notes(), progress_bar=False).predict(batches(4), to=tmp_path)


# --- the iterator


def test_iterator_yields_the_outputs_and_keeps_none():
    trainer, _ = predictor()
    kept, outputs = [], []
    for output in trainer.predict_each(batches(20)):
        outputs.append(output.clone())
        kept.append(weakref.ref(output))
        del output
        assert sum(one() is not None for one in kept) <= 1  # in the state of the last batch

    expected = trainer.predict(batches(20))
    assert all(map(torch.equal, outputs, expected))
    assert len(outputs) == len(expected)


def test_between_two_outputs_nothing_is_switched():
    trainer = make_trainer()
    trainer.state.model.train()
    torch.manual_seed(3)
    expected = torch.rand(5)

    torch.manual_seed(3)
    drawn = []
    for _ in trainer.predict_each(batches(20)):
        drawn.append(torch.rand(1))
        assert torch.is_grad_enabled()
        assert trainer.state.model.training
    assert torch.equal(torch.cat(drawn), expected)


def test_iterator_that_is_left_ends_the_call():
    (left, _), (plain, _) = (
        predictor(max_duration="3ep", fitted=False),
        predictor(max_duration="3ep", fitted=False),
    )
    for trainer in (left, plain):
        trainer.fit(duration="1ep")
    for _ in left.predict_each(batches(20)):
        break
    for trainer in (left, plain):
        trainer.fit()

    assert same(training_weights(left), training_weights(plain))
