"""Evaluation and prediction: their results, their data, and the state that they don't change."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Callback, Evaluator, Event
from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from tests.support.tiny import (
    CLASSES,
    Watch,
    batches,
    linear,
    make_trainer,
    same,
    seeded,
    weights,
)

UNEVEN = batches([4, 4, 1], seed=3)


def all_at_once(data):
    inputs, targets = (torch.cat(part) for part in zip(*data, strict=True))
    return inputs, targets


# Results


def test_means_are_over_examples_and_not_over_batches():
    model = linear()
    results = make_trainer(model, metrics={"accuracy": accuracy}).eval(UNEVEN)

    inputs, targets = all_at_once(UNEVEN)
    outputs = model(inputs)
    assert results.keys() == {"eval"}
    assert results["eval"] == pytest.approx(
        {
            "loss": cross_entropy(outputs, targets).item(),
            "accuracy": (outputs.argmax(1) == targets).float().mean().item(),
        }
    )
    by_batch = [cross_entropy(model(x), y).item() for x, y in UNEVEN]
    assert results["eval"]["loss"] != pytest.approx(sum(by_batch) / 3)  # or nothing is tested


def test_a_metric_may_be_a_mean_or_a_value_for_each_example():
    def error_of_each(outputs, targets):
        return (outputs.argmax(1) != targets).float()

    def mean_error(outputs, targets):
        return error_of_each(outputs, targets).mean()

    def mean_error_as_a_number(outputs, targets):
        return mean_error(outputs, targets).item()

    chosen = {f.__name__: f for f in (error_of_each, mean_error, mean_error_as_a_number)}
    results = make_trainer(metrics=chosen).eval(UNEVEN)["eval"]

    assert results["error_of_each"] == pytest.approx(results["mean_error"])
    assert results["error_of_each"] == pytest.approx(results["mean_error_as_a_number"])


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


def test_a_metric_object_is_reset_updated_and_computed():
    model, metric = linear(), Recall()
    trainer = make_trainer(model, metrics={"recall": metric})

    first = trainer.eval(UNEVEN)
    second = trainer.eval(UNEVEN)

    inputs, targets = all_at_once(UNEVEN)
    right = model(inputs).argmax(1)[targets == 1] == 1
    assert first["eval"]["recall"] == pytest.approx(right.float().mean().item())
    assert first == second
    assert metric.resets == 2


def test_a_loss_over_tokens_is_a_mean_over_tokens():
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, -100, -100, 2, -100])
    data = list(zip(inputs.split([4, 2]), targets.split([4, 2]), strict=True))
    model = linear()

    results = make_trainer(model, loss_mean_over="tokens").eval(data)

    expected = cross_entropy(model(inputs), targets).item()
    assert results["eval"]["loss"] == pytest.approx(expected)


def test_a_batch_without_tokens_does_not_count():
    inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, -100, -100])
    data = list(zip(inputs.split(2), targets.split(2), strict=True))
    model = linear()

    results = make_trainer(model, loss_mean_over="tokens").eval(data)

    expected = cross_entropy(model(inputs), targets).item()
    assert results["eval"]["loss"] == pytest.approx(expected)


def test_a_model_without_a_loss_is_evaluated_by_its_metrics():
    results = make_trainer(loss_fn=None, metrics={"accuracy": accuracy}).eval(UNEVEN)

    assert results["eval"].keys() == {"accuracy"}


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
            Evaluator("train", batches()),
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


@pytest.mark.parametrize(
    "given",
    [
        UNEVEN,
        tuple(UNEVEN),
        Evaluator("eval", UNEVEN),
        [Evaluator("eval", UNEVEN)],
        {"eval": UNEVEN},
    ],
)
def test_an_evaluator_may_be_given_in_any_form(given):
    assert make_trainer(eval_dataloader=given).eval() == make_trainer().eval(UNEVEN)


# When it is due


@pytest.mark.parametrize(
    ("interval", "evaluated"),
    [
        ("1ep", [3, 6, 9]),
        (1, [3, 6, 9]),
        ("2ep", [6, 9]),  # training ends with one
        ("2ba", [2, 4, 6, 8, 9]),
        ("0.5dur", [5, 9]),
        ("12sp", [3, 6, 9]),
        (None, []),
        (lambda state, event: state.timestamp.batch == 4, [4, 9]),
        (lambda state, event: event is Event.EPOCH_END, [3, 6, 9]),
        ("100ba", [9]),
    ],
)
def test_evaluation_comes_each_interval_and_at_the_end(interval, evaluated):
    watch = Watch(Event.EVAL_START, read=lambda s: s.timestamp.batch)

    make_trainer(
        eval_dataloader=UNEVEN, eval_interval=interval, max_duration="3ep", callbacks=[watch]
    ).fit()

    assert watch.values == evaluated


def test_each_evaluator_may_have_its_own_interval():
    watch = Watch(Event.EVAL_END, read=lambda s: (s.timestamp.batch, len(s.metrics)))
    trainer = make_trainer(
        eval_dataloader=[
            Evaluator("often", UNEVEN, eval_interval="1ep"),
            Evaluator("rare", UNEVEN, eval_interval="2ep"),
        ],
        max_duration="3ep",
        callbacks=[watch],
    )
    state = trainer.fit()

    assert watch.values == [(3, 1), (6, 1), (6, 2), (9, 2), (9, 2)]
    # Both are about the last weights.
    assert state.metrics["rare"] == state.metrics["often"]


def test_the_evaluation_of_the_last_epoch_is_not_done_twice():
    watch = Watch(Event.EVAL_START)

    make_trainer(eval_dataloader=UNEVEN, max_duration="1ep", callbacks=[watch]).fit()

    assert len(watch.seen) == 1


@pytest.mark.parametrize("interval", ["1iter", "2iter"])
def test_evaluation_may_come_each_iteration(interval):
    watch = Watch(Event.EVAL_START, read=lambda s: s.timestamp.epoch)
    make_trainer(
        eval_dataloader=UNEVEN,
        eval_interval=interval,
        iteration_length="2ep",
        max_duration="8ep",
        callbacks=[watch],
    ).fit()

    assert watch.values == {"1iter": [2, 4, 6, 8], "2iter": [4, 8]}[interval]


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


@pytest.mark.parametrize("action", ["eval", "predict"])
def test_every_module_gets_back_the_mode_that_it_had(action):
    model = Modes()
    trainer, before = make_trainer(model), modes(model)
    inside = []
    model.register_forward_hook(lambda *_: inside.append(set(modes(model).values())))

    getattr(trainer, action)(UNEVEN)

    assert inside == [{False}] * 3
    assert modes(model) == before
    assert not before["norm"]
    assert before["drop"]


def test_modes_come_back_after_an_error_too():
    class Fails(Callback):
        def eval_batch_end(self, state, logger):
            raise RuntimeError("no disk")

    model = Modes()
    trainer, before = make_trainer(model, callbacks=[Fails()]), modes(model)

    with pytest.raises(RuntimeError, match="no disk"):
        trainer.eval(UNEVEN)

    assert modes(model) == before
    assert torch.is_grad_enabled()


def test_a_part_put_into_evaluation_mode_at_the_start_of_fit_stays_there_after_an_evaluation():
    class Freeze(Callback):
        def epoch_start(self, state, logger):
            state.model.norm.eval()

    model = Modes()
    watch = Watch(Event.BATCH_START, read=lambda s: modes(s.model)["norm"])
    make_trainer(
        model,
        eval_dataloader=UNEVEN,
        eval_interval="1ba",
        callbacks=[Freeze(), watch],
        check_effects=False,  # it changes a mode, which is not a callback's business
    ).fit()

    assert watch.values == [False] * 6


def test_evaluation_changes_nothing_in_training():
    def build():
        return seeded(
            lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES))
        )

    plain = make_trainer(build())
    plain.fit()
    trainer = make_trainer(build(), eval_dataloader=UNEVEN, eval_interval="1ba")
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_evaluation_records_no_gradient():
    watch = Watch(Event.EVAL_AFTER_FORWARD, read=lambda s: s.outputs.requires_grad)

    make_trainer(callbacks=[watch]).eval(UNEVEN)

    assert watch.values == [False] * 3


def test_a_direct_evaluation_fires_its_own_events():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    watch.seen.clear()

    trainer.eval(UNEVEN[:1])

    assert [e.value for e, _ in watch.seen] == [
        "eval_standalone_start",
        "eval_start",
        "eval_batch_start",
        "eval_before_forward",
        "eval_after_forward",
        "eval_batch_end",
        "eval_end",
        "eval_standalone_end",
    ]


def test_the_results_of_a_direct_evaluation_are_in_the_state():
    trainer = make_trainer()

    results = trainer.eval({"test": UNEVEN})

    assert trainer.state.metrics["test"] == results["test"]


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


def test_predictions_keep_their_structure():
    class Nested(nn.Module):
        def forward(self, inputs):
            return {"twice": (inputs * 2, "text")}

    (output,) = make_trainer(Nested(), optimizers=None).predict([batches([4])[0][0]])

    assert torch.equal(output["twice"][0], batches([4])[0][0] * 2)
    assert output["twice"][1] == "text"


def test_prediction_needs_inputs_alone():
    (inputs, _), *_ = UNEVEN
    trainer = make_trainer()

    assert torch.equal(trainer.predict([inputs])[0], trainer.predict([(inputs,)])[0])


def test_prediction_fires_its_own_events():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    watch.seen.clear()

    trainer.predict(UNEVEN[:1])

    assert [e.value for e, _ in watch.seen] == [
        "predict_start",
        "predict_batch_start",
        "predict_before_forward",
        "predict_after_forward",
        "predict_batch_end",
        "predict_end",
    ]


# Other weights


def test_the_average_evaluates_and_predicts_while_its_own_weights_train_on():
    plain = make_trainer()
    plain.fit()
    model, ema = linear(), EMA(half_life=None, smoothing=0.5)
    seen = Watch(Event.BATCH_END, Event.EVAL_AFTER_FORWARD, read=lambda s: weights(s.model))
    trainer = make_trainer(model, algorithms=[ema], eval_dataloader=UNEVEN[:1], callbacks=[seen])
    state = trainer.fit()

    trained = [w for e, w in seen.seen if e is Event.BATCH_END]
    average = trained[0]
    for current in trained[1:]:
        average = {k: torch.lerp(average[k], current[k], 0.5) for k in average}
    evaluated = [w for e, w in seen.seen if e is Event.EVAL_AFTER_FORWARD]

    assert same(weights(state.model), weights(plain.state.model))
    assert state.model is model
    torch.testing.assert_close(evaluated[-1], average)
    inputs, targets = UNEVEN[0]
    outputs = torch.nn.functional.linear(inputs, average["weight"], average["bias"])
    torch.testing.assert_close(trainer.predict(UNEVEN[:1])[0], outputs)
    assert state.metrics["eval"]["loss"] == pytest.approx(
        cross_entropy(outputs, targets).item(), rel=1e-5
    )
    assert same(weights(ema.averaged_model(state)), state.memory["EMA"]["average"])


def test_a_model_with_a_loss_of_its_own_is_evaluated_with_the_average_too():
    class WithLoss(nn.Linear):
        def forward(self, batch):
            return super().forward(batch[0])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch[1]) + self.weight.sum() * 0.01

    model = seeded(lambda: WithLoss(4, CLASSES))
    ema = EMA(half_life=None, smoothing=0.5)
    trainer = make_trainer(model, loss_fn=None, algorithms=[ema])
    state = trainer.fit()

    averaged = ema.averaged_model(state)
    expected = averaged.loss(averaged(UNEVEN[0]), UNEVEN[0]).item()
    assert trainer.eval(UNEVEN[:1])["eval"]["loss"] == pytest.approx(expected)
    assert expected != pytest.approx(model.loss(model(UNEVEN[0]), UNEVEN[0]).item())


def test_means_do_not_lose_precision_with_a_metric_in_a_short_dtype():
    def one(outputs, targets):
        return torch.ones(len(outputs), dtype=torch.bfloat16)  # whose sums stop at 256

    results = make_trainer(loss_fn=None, metrics={"one": one}).eval(batches([1] * 300))
    assert results["eval"]["one"] == 1.0


@pytest.mark.parametrize(
    ("action", "event"),
    [
        ("fit", Event.EVAL_BEFORE_ALL),
        ("fit", Event.EVAL_BATCH_END),
        ("fit", Event.EVAL_AFTER_ALL),
        ("eval", Event.EVAL_STANDALONE_START),
        ("eval", Event.EVAL_BATCH_END),
        ("eval", Event.EVAL_STANDALONE_END),
        ("predict", Event.PREDICT_START),
        ("predict", Event.PREDICT_BATCH_END),
        ("predict", Event.PREDICT_END),
    ],
)
def test_what_an_algorithm_remembers_in_an_evaluation_stays(action, event):
    def count(at, state):
        return state.remember("n", state.memory.get("n", 0) + 1) if at is event else state

    trainer = make_trainer(algorithms=[count], eval_dataloader=UNEVEN, max_duration="1ep")
    if action == "predict":
        trainer.predict(UNEVEN)
    else:
        getattr(trainer, action)()

    batch = event in (Event.EVAL_BATCH_END, Event.PREDICT_BATCH_END)
    assert trainer.state.memory["n"] == (len(UNEVEN) if batch else 1)


class Noise(nn.Module):
    """A model that draws in evaluation too, as a VAE does."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, inputs):
        return self.layer(inputs) + torch.randn(len(inputs), CLASSES)


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_what_a_model_draws_in_evaluation_depends_on_the_step_alone(kind):
    before = Event.EVAL_BATCH_START if kind == "eval" else Event.PREDICT_BATCH_START
    after = Event.EVAL_AFTER_FORWARD if kind == "eval" else Event.PREDICT_AFTER_FORWARD

    def outputs(*callbacks):
        seen = Watch(after, read=lambda state: state.outputs)
        getattr(make_trainer(Noise(), callbacks=[*callbacks, seen]), kind)(UNEVEN)
        return torch.cat(seen.values)

    gambler = Watch(before, read=lambda state: torch.rand(3))
    assert torch.equal(outputs(gambler), outputs())


def test_evaluators_prediction_and_training_draw_from_streams_of_their_own():
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
