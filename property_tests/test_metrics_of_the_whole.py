"""Law: a metric is the value for all examples, computed by hand, or it is refused by its name."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
from torchmetrics.functional.classification import multiclass_f1_score

from composable import Callback, Evaluator
from composable.algorithms import (
    EMA,
    SAM,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
    WholeLoss,
)
from composable.distributed import DDP, FSDP2
from composable.functional import MixedTargets
from composable.loggers import InMemoryLogger
from composable.metrics import OfAll, OfLoss, accuracy, token_accuracy
from composable.trainer.trainer import Trainer
from property_tests.test_resume import check_resuming, points
from tests.support.data import Stream, batches
from tests.support.models import CLASSES, linear, mlp
from tests.support.processes import run
from tests.support.runs import make_trainer
from tests.support.strategies import fewer, single

DOUBLE = {"dtype": torch.float64}


def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    return multiclass_f1_score(outputs, targets, CLASSES, average="macro")


def root(outputs: Tensor, targets: Tensor) -> float:
    return cross_entropy(outputs, targets).sqrt().item()


def perplexity(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets).exp()


def recalls(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a value for each class."""
    right = outputs.argmax(1) == targets
    return torch.stack([right[targets == i].double().mean() for i in range(CLASSES)])


def errors(outputs: Tensor, targets: Tensor) -> int:
    return int((outputs.argmax(1) != targets).sum())


def fails_on_few(outputs: Tensor, targets: Tensor) -> Tensor:
    if 1 < len(targets) < 6:
        raise ZeroDivisionError("too few examples")
    return cross_entropy(outputs, targets)


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return accuracy(outputs, targets).double().mean()


NO_MEANS = [f1, root, perplexity, recalls, errors, fails_on_few]
MEANS = {
    "mean": mean,
    "number": lambda *batch: cross_entropy(*batch).item(),
    "entropy": cross_entropy,
    "each": lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"),
    "positions": token_accuracy,
    "columns": lambda outputs, targets: outputs,
    "constant": lambda outputs, targets: 0,
}
WHOLES: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (f1, root, perplexity, errors)},
    "several": lambda *batch: {"f1": f1(*batch), "errors": errors(*batch)},
}


def objects() -> dict[str, Any]:
    return {"f1": MulticlassF1Score(CLASSES), "auroc": MulticlassAUROC(CLASSES)}


def trainer_of(sizes: list[int], **options: Any) -> Trainer:
    """Build a Trainer of batches of these sizes, in double precision."""
    return make_trainer(mlp(dtype=torch.float64), batches(sizes, **DOUBLE), **options)


class Seen(Callback):
    """Keeps the outputs and targets of the evaluations, each by itself."""

    def __init__(self) -> None:
        self.evaluations: list[Any] = []

    def eval_start(self, state: Any, logger: Any) -> None:
        self.evaluations.append([])

    def eval_after_forward(self, state: Any, logger: Any) -> None:
        self.evaluations[-1].append((state.outputs.clone(), state.targets))

    def by_hand(self, function: Callable[..., Any], number: int = -1) -> Any:
        """Return a function of all outputs and targets of an evaluation."""
        return function(*map(torch.cat, zip(*self.evaluations[number], strict=True)))


def evaluated(metrics: dict[str, Any], sizes: list[int], known: bool = True, **options: Any) -> Any:
    data, seen = batches(sizes, **DOUBLE), Seen()
    trainer = trainer_of([4], metrics=metrics, callbacks=[seen], **options)
    return trainer.eval(data if known else Stream(data))["eval"], seen


# --- one value for a batch ---


@pytest.mark.parametrize("function", NO_MEANS)
@pytest.mark.parametrize("sizes", [[8, 6, 8], [1, 7, 1], [9, 1, 1]], ids=str)
def test_a_value_that_is_no_mean_over_examples_is_refused_by_name(function, sizes):
    with pytest.raises(ValueError, match=r"metrics\['it'\] returned .*OfAll") as caught:
        evaluated({"it": function}, sizes)
    assert len(str(caught.value).split()) <= 60


@fewer
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), known=st.booleans())
def test_a_mean_over_examples_is_that_of_all(sizes, known):
    results, seen = evaluated(MEANS, sizes, known)
    for name, function in MEANS.items():
        expected = torch.as_tensor(seen.by_hand(function), dtype=torch.float64).mean().item()
        assert results[name] == pytest.approx(expected, rel=1e-12), name


def test_values_of_classes_are_refused_where_batches_have_as_many_examples():
    with pytest.raises(ValueError, match=rf"returned {CLASSES} values for {CLASSES} examples"):
        evaluated({"it": recalls}, [CLASSES] * 3)


@pytest.mark.parametrize("size", [2, 64, 4096])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e8])
def test_a_mean_near_zero_of_large_values_is_accepted(size, scale):
    data = [(scale * (one - one.mean(0)), torch.zeros(size)) for one in torch.randn(3, size, 4)]
    metrics = {"it": lambda outputs, targets: (outputs[:, 0] - targets).mean()}
    make_trainer(torch.nn.Identity(), metrics=metrics, loss_fn=None, optimizers=None).eval(data)


def test_one_value_for_each_example_needs_no_dimension_for_one_and_no_halves_that_fail():
    class Router(torch.nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            return {"logits": super().forward(inputs), "weights": self.weight}

    metrics = {"it": lambda outputs, targets: (outputs["logits"].squeeze() - targets).abs()}
    data = [(torch.randn(n, 4), torch.randn(n)) for n in (2, 3)]
    make_trainer(Router(4, 1), metrics=metrics, loss_fn=None).eval(data)
    squeezed = {"it": lambda outputs, targets: outputs.squeeze().abs()}
    make_trainer(torch.nn.Linear(4, 1), metrics=squeezed, loss_fn=None).eval(data)


def unlabeled_as_0(outputs: Tensor, targets: Tensor) -> Tensor:
    targets[targets == -100] = 0
    return accuracy(outputs, targets)


@pytest.mark.parametrize("where", ["metrics", "train_metrics"])
@pytest.mark.parametrize(
    "change", [unlabeled_as_0, lambda outputs, targets: outputs.sigmoid_().mean(1)]
)
def test_a_function_that_changes_what_others_get_is_refused_by_name(where, change):
    data = [(torch.randn(6, 4), torch.tensor([0, 1, 2, -100, -100, -100])) for _ in range(2)]
    trainer = make_trainer(loader=data, eval_dataloader=data, **{where: {"it": change}})
    with pytest.raises(ValueError, match=r"metrics\['it'\] changed .* in place"):
        trainer.fit()


def test_the_only_batch_may_have_any_value():
    results, seen = evaluated({"f1": f1}, [9])
    assert results["f1"] == seen.by_hand(f1).item()


def test_functions_are_compared_until_an_evaluation_has_confirmed_them():
    counts: list[int] = []

    def counted(outputs: Tensor, targets: Tensor) -> Tensor:
        counts.append(len(targets))
        return cross_entropy(outputs, targets)

    trainer = make_trainer(metrics={"it": counted}, eval_dataloader=batches([1, 4, 4]))
    trainer.eval()
    assert counts == [1, 4, 2, 2, 4, 2, 2]
    trainer.eval()
    assert counts[7:] == [1, 4, 4]
    undecided = make_trainer(metrics={"it": f1}, eval_dataloader=batches([1, 1]))
    undecided.eval()
    with pytest.raises(ValueError, match="returned"):
        undecided.eval(Evaluator("eval", batches([8, 8]), metrics={"it": f1}))


# --- a function of all batches ---


@fewer
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), known=st.booleans())
def test_a_function_of_all_is_computed_on_all_to_the_bit(sizes, known):
    metrics = {name: OfAll(function) for name, function in WHOLES.items()}
    results, seen = evaluated(metrics, sizes, known)
    several = seen.by_hand(WHOLES["several"])
    expected = {name: seen.by_hand(WHOLES[name]) for name in WHOLES if name != "several"}
    expected |= {f"several/{name}": value for name, value in several.items()}
    assert {name: results[name] for name in expected} == {k: float(v) for k, v in expected.items()}


RUNS = {
    "grad_accum": {"grad_accum": 2},
    "accumulate_batches": {"accumulate_batches": 2},
    "EMA": {"algorithms": [EMA("1ba")]},
}


@pytest.mark.parametrize("name", RUNS)
def test_evaluations_within_a_run_are_computed_on_all(name):
    seen, log = Seen(), []
    function = OfAll(lambda *batch: log.append(f1(*batch)) or log[-1])
    trainer_of(
        [4, 4, 4],
        metrics={"f1": function},
        eval_dataloader=batches([3, 1, 4], **DOUBLE),
        eval_interval="1ba",
        callbacks=[seen],
        **RUNS[name],
    ).fit()
    assert log == [seen.by_hand(f1, i) for i in range(len(log))]
    assert len(log) > 2


def shared(parallel: Any, sizes: list[int]) -> dict[str, float]:
    """Evaluate on the processes of this group."""
    metrics = {**{name: OfAll(one) for name, one in WHOLES.items()}, **MEANS}
    trainer = trainer_of([4], metrics=metrics, parallel=parallel, device="cpu")
    return trainer.eval(batches(sizes, **DOUBLE))["eval"]


@pytest.mark.parametrize("sizes", [[4, 4, 1], [5], [4, 2]], ids=str)
@pytest.mark.parametrize("parallel", [DDP(), FSDP2()], ids=["copies", "sharded"])
def test_processes_compute_what_one_computes(parallel, sizes):
    (alone,) = run(shared, 1, None, sizes)
    exact = {"errors", "several/errors"} | (
        {"f1", "several/f1"} if isinstance(parallel, DDP) else set()
    )
    for one in run(shared, 2, parallel, sizes):
        assert one == pytest.approx(alone, rel=1e-12)
        assert {name: one[name] for name in exact} == {name: alone[name] for name in exact}


@pytest.mark.parametrize("known", [True, False])
def test_outputs_that_take_too_much_memory_are_refused_by_name(known):
    seen: list[int] = []
    metrics = {"f1": OfAll(f1, max_bytes=4 * (CLASSES + 1) * 8 * 2)}
    evaluated(metrics, [4, 4], known)
    more = [4, 4, 4] if known else [4, 4, 1]
    with pytest.raises(ValueError, match=r"metrics\['f1'\] is an OfAll with max_bytes=256"):
        evaluated({**metrics, "each": lambda *batch: seen.append(1) or mean(*batch)}, more, known)
    assert len(seen) == (3 if known else 7)  # each with its halves: at the first batch, if known


def test_a_function_of_hugging_faces_trainer_works_unchanged():
    def compute_metrics(eval_pred):
        logits, labels = eval_pred
        assert eval_pred.predictions is logits
        mask = labels != -100
        return {"right": (logits.argmax(-1) == labels)[mask].mean(), "count": mask.sum().item()}

    data = [(torch.randn(2, n, 3), torch.randint(3, (2, n))) for n in (4, 2, 3)]
    metrics = {"of": OfAll.compute_metrics(compute_metrics)}
    trainer = make_trainer(torch.nn.Linear(3, 3), metrics=metrics, loss_fn=None, optimizers=None)
    results = trainer.eval(data)["eval"]
    right = [(trainer.state.model(x).argmax(-1) == y).flatten() for x, y in data]
    assert results == {"of/count": 18, "of/right": torch.cat(right).double().mean().item()}
    with pytest.raises(ValueError, match=r"metrics\['it'\] is an OfAll.*joined.*padding=-100"):
        make_trainer(torch.nn.Linear(3, 3), metrics={"it": OfAll(f1)}, loss_fn=None).eval(data)


def test_a_result_among_several_of_all_may_be_the_best(tmp_path):
    metrics = {"several": OfAll(WHOLES["several"])}
    options = {"save_folder": tmp_path, "eval_dataloader": batches(8)}
    trainer = make_trainer(metrics=metrics, save_best="eval/several/f1", **options)
    trainer.fit()
    assert trainer.best.metric == "metrics/eval/several/f1"


def test_labels_that_are_missing_refute_a_mean_and_not_a_loss_that_is_nan():
    def labeled(outputs, targets):
        return (outputs.argmax(1) == targets)[targets != -100].double().mean()

    targets = torch.tensor([0, 1, 2, -100, -100, -100])
    data = [(torch.randn(6, 4), targets)] * 2
    with pytest.raises(ValueError, match=r"metrics\['it'\]"):
        make_trainer(linear(), metrics={"it": labeled}, loss_fn=None).eval(data)
    missing = {"it": lambda outputs, targets: torch.tensor(math.nan)}
    assert math.isnan(make_trainer(metrics=missing, loss_fn=None).eval(data)["eval"]["it"])


# --- metrics of training ---


class Steps(Callback):
    """Keeps the loss, outputs and targets of each microbatch, once for each step."""

    def __init__(self) -> None:
        self.parts: dict[Any, Any] = {}
        self.losses: dict[Any, tuple[float, int]] = {}
        self.place = 0

    def batch_start(self, state: Any, logger: Any) -> None:
        self.place = 0

    def batch_end(self, state: Any, logger: Any) -> None:
        now = state.timestamp
        examples = now.sample - state.previous_timestamp.sample
        self.losses[now.epoch, now.batch, 0] = state.loss.item(), examples

    def after_forward(self, state: Any, logger: Any) -> None:
        key = state.timestamp.epoch, state.timestamp.batch + 1, self.place
        self.parts.setdefault(key, [state.outputs.detach().clone(), state.targets])
        self.place += 1


def weighted(function: Callable[..., Any], outputs: Tensor, targets: Any) -> tuple[float, float]:
    """Return the sum of values and their number, for both targets of a mixed batch."""
    if not isinstance(targets, MixedTargets):
        values = function(outputs, targets).double()
        return values.sum().item(), values.numel()
    pair = [function(outputs, one).double() for one in targets[:2]]
    mixed = targets.weight * pair[0] + (1 - targets.weight) * pair[1]
    return mixed.sum().item(), len(mixed)


def of_examples(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double()


def averages(sums: dict[Any, tuple[float, float]], due: Callable[[Any], Any]) -> dict[Any, float]:
    """Return the averages of sums and numbers over the places for which `due` returns the same."""
    found: dict[Any, list[float]] = {}
    for place, one in sums.items():
        found[due(place)] = [a + b for a, b in zip(found.get(due(place), [0, 0]), one, strict=True)]
    found.pop(None, None)
    return {key: total / number for key, (total, number) in found.items()}


TRAINED = {
    "plain": {},
    "grad_accum": {"grad_accum": 2},
    "accumulate_batches": {"accumulate_batches": 2},
    "shards": {"parallel": DDP(shards=2)},
    "EMA": {"algorithms": [EMA("1ba")]},
    "SAM": {"algorithms": [SAM(interval=1)]},
    "LabelSmoothing": {"algorithms": [LabelSmoothing(0.1)]},
    "MixUp": {"algorithms": [MixUp(0.4)]},
    "MixUp by example": {"algorithms": [MixUp(0.4, per_sample=True)], "grad_accum": 2},
    "WholeLoss": {"algorithms": [WholeLoss()], "grad_accum": 2},
    "SelectiveBackprop": {"algorithms": [SelectiveBackprop(0.0, 1.0, 0.5)]},
}
TRAIN_METRICS: dict[str, Any] = {
    "right": right,
    "entropy": of_examples,
    "perplexity": OfLoss(torch.exp),
}


def measured(name: str, interval: str, metrics: dict[str, Any]) -> Any:
    steps, log = Steps(), InMemoryLogger()
    trainer = trainer_of(
        [4, 4, 3],
        train_metrics=metrics,
        log_interval=interval,
        callbacks=[steps],
        loggers=[log],
        **TRAINED[name],
    )
    trainer.fit()
    return steps, log


def series(log: InMemoryLogger, name: str) -> dict[int, float]:
    return {now.batch: metrics[name] for now, metrics in log.records if name in metrics}


@pytest.mark.parametrize("interval", ["1ba", "2ba", "1ep"])
@pytest.mark.parametrize("name", TRAINED)
def test_metrics_of_training_are_those_of_the_outputs_of_the_steps(name, interval):
    steps, log = measured(name, interval, TRAIN_METRICS)
    parts = {place: one for place, one in steps.parts.items() if name != "SAM" or not place[2]}
    last = {epoch: batch for epoch, batch, _ in parts}
    ends = sorted(series(log, "metrics/train/right"))
    for label, due in {
        "train": lambda at: min((end for end in ends if end >= at[1]), default=None),
        "train_epoch": lambda at: last[at[0]],
    }.items():
        for metric, function in TRAIN_METRICS.items():
            sums = {place: (loss * n, n) for place, (loss, n) in steps.losses.items()}
            if not isinstance(function, OfLoss):
                sums = {place: weighted(function, *one) for place, one in parts.items()}
            expected = averages(sums, due)
            if isinstance(function, OfLoss):
                expected = {at: math.exp(one) for at, one in expected.items()}
            found = series(log, f"metrics/{label}/{metric}")
            assert found == pytest.approx(expected, rel=1e-12), (label, metric)
    assert ends


@pytest.mark.parametrize("metrics", ["functions", "objects"])
@single
@given(at=points)
def test_metrics_of_training_resume_to_the_bit(metrics, at):
    given = {"functions": lambda: TRAIN_METRICS, "objects": objects}
    check_resuming(at, train_metrics=given[metrics], log_interval=lambda: "4ba")


def test_objects_and_numbers_are_measured_over_all_microbatches():
    metrics = {"f1": MulticlassF1Score(CLASSES), "mean": mean, "tokens": token_accuracy}
    steps, log = measured("grad_accum", "1ep", metrics)
    assert metrics["f1"].update_count == 0  # a copy is updated
    for number, (_, at) in enumerate(sorted({(e, 3 * (e + 1)) for e, *_ in steps.parts})):
        outputs, targets = (
            torch.cat(part)
            for part in zip(*(v for k, v in steps.parts.items() if k[0] == number), strict=True)
        )
        expected = {"f1": f1(outputs, targets).item(), "mean": mean(outputs, targets).item()}
        expected["tokens"] = expected["mean"]
        for label in ("train", "train_epoch"):
            found = {name: series(log, f"metrics/{label}/{name}")[at] for name in metrics}
            assert found == pytest.approx(expected, rel=1e-6)


def train_shared(parallel: Any, folder: str | None = None) -> Any:
    """Train on the processes of this group, interrupted if there is a folder; return the logs."""
    log, metrics = InMemoryLogger(), {**TRAIN_METRICS, **objects()}

    def build(**options: Any) -> Any:
        return trainer_of(
            [4, 4, 1],
            train_metrics=metrics,
            log_interval="2ba",
            loggers=[log],
            parallel=parallel,
            device="cpu",
            **options,
        )

    trainer = build()
    if folder is not None:
        trainer.fit(duration="5ba")
        trainer = build(load_path=trainer.save_checkpoint(f"{folder}/half"), max_duration="6ba")
    trainer.fit()
    return [
        (now.batch, {name: one for name, one in logged.items() if name.startswith("metrics")})
        for now, logged in log.records
    ]


@pytest.mark.parametrize("parallel", [DDP(shards=2), FSDP2(shards=2)], ids=["copies", "sharded"])
def test_processes_train_with_the_metrics_of_one_and_resume(parallel, tmp_path):
    (alone,) = run(train_shared, 1, DDP(shards=2))
    several, nothing = run(train_shared, 2, parallel, str(tmp_path))
    assert nothing == []
    several, alone = ([one for one in logs if one[1]] for logs in (several, alone))
    for (batch, one), (at, other) in zip(several, alone, strict=True):
        assert batch == at
        assert one == pytest.approx(other, rel=1e-6)
        exact = {name: one[name] for name in one if "right" in name}
        assert exact == {name: other[name] for name in exact}


@pytest.mark.parametrize(
    ("metric", "algorithms", "message"),
    [
        (f1, [], r"\['it'\] returned .*OfAll"),
        (MulticlassF1Score(CLASSES), [MixUp(0.4)], r"train_metrics\['it'\] is an object"),
        (
            mean,
            [MixUp(0.4, per_sample=True)],
            r"train_metrics\['it'\] returned values of the shapes",
        ),
    ],
    ids=["f1", "object", "mean"],
)
def test_a_step_refuses_a_metric_by_name(metric, algorithms, message):
    trainer = make_trainer(
        mlp(), batches(18, 9), train_metrics={"it": metric}, algorithms=algorithms
    )
    with pytest.raises(ValueError, match=message):
        trainer.fit()


def test_skipped_batches_and_trials_are_not_counted():
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = cross_entropy(outputs, targets)
        return loss * math.nan if len(targets) == 3 else loss

    log = InMemoryLogger()
    options = {"nonfinite_loss": "skip", "log_interval": "1ep", "max_duration": "1ep"}
    trainer = make_trainer(
        mlp(),
        batches([4, 3, 4, 2]),
        loss_fn=broken,
        train_metrics={"count": lambda outputs, targets: targets.float() * 0 + len(targets)},
        loggers=[log],
        **options,
    )
    with trainer.trial() as trial:
        for number, batch in zip(range(2), trial.batches(), strict=False):
            trial.step(batch, number)
    with pytest.warns(UserWarning, match="is skipped"):
        trainer.fit()
    (found,) = series(log, "metrics/train_epoch/count").values()
    assert found == (4 * 4 + 4 * 4 + 2 * 2) / 10
