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
from torchmetrics.functional.classification import multiclass_f1_score

from composable import Callback, Evaluator
from composable.algorithms import EMA
from composable.distributed import DDP, FSDP2
from composable.metrics import OfAll, accuracy, token_accuracy
from composable.trainer.trainer import Trainer
from tests.support.data import Stream, batches
from tests.support.models import CLASSES, linear, mlp
from tests.support.processes import run
from tests.support.runs import make_trainer
from tests.support.strategies import fewer

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
    trainer = make_trainer(mlp(dtype=torch.float64), metrics=metrics, callbacks=[seen], **options)
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
    make_trainer(
        mlp(dtype=torch.float64),
        batches(12, **DOUBLE),
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
    trainer: Trainer = make_trainer(
        mlp(dtype=torch.float64), metrics=metrics, parallel=parallel, device="cpu"
    )
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
