"""Law: every public function has every property, or a reason; and the page shows it."""

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import composable.functional as F
from composable._support.tree import tensors_of
from composable.testing.properties import PROPERTIES, no_copies
from composable.utils.reproducibility import preserve_rng
from tests.support.campaign import drawn
from tests.support.cases import FunctionCase, MissingCaseError, all_function_cases, public_functions
from tools.pages import COLUMNS, recorded_answers, shown_answers

ROWS = [row for _, row in all_function_cases()]
DRAWING = [row for row in ROWS if "generator" in inspect.signature(row.function).parameters]
ONLY_WITH_OPTIONS = ("`resize_batch`", "`factorize`")
AGAIN = "the answers have changed: rewrite the page with `python -m tools.write_pages --matrix`"


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap maps some by a loop
@pytest.mark.filterwarnings("ignore:.* should not be instantiated")  # by torch.compile itself
@pytest.mark.parametrize("row", drawn(ROWS, 20), ids=repr)
def test_the_matrix_shows_the_answers_of_a_run(row):
    report = row.report().require(except_=row.expected_failures)

    assert recorded_answers().get(row.name) == shown_answers(report), AGAIN


@pytest.mark.parametrize(
    "row", [row for row in DRAWING if row.name not in ONLY_WITH_OPTIONS], ids=repr
)
def test_without_a_generator_a_function_draws_from_the_global_one(row):
    given, results = row.valid(), []
    for seed in (0, *range(8)):
        torch.manual_seed(seed)
        result = row.function(**given)
        tree = result.state_dict() if isinstance(result, nn.Module) else result
        results.append([tensor.tolist() for tensor in tensors_of(tree)])

    first, again, *others = results
    assert first == again
    assert any(first != other for other in others)


@pytest.mark.compile
def test_numbers_may_be_arguments_of_a_graph():  # not in tests/functional, which checks annotations
    def everything(x, y, number, count):
        mixed = F.mixup(x, y, alpha=number)
        loss, soft = mixed.loss(cross_entropy, mixed.inputs), mixed.soft_targets(count)
        chosen = F.select_using_loss(x[0], keep=number)
        (clipped,) = F.clip_gradients([x], threshold=number)
        average = F.ema({"x": x}, {"x": clipped}, smoothing=number)["x"]
        smooth = F.smooth_labels(y, smoothing=number, num_classes=count)
        return loss, soft, chosen, average, smooth

    x, y = torch.eye(4), torch.arange(4)
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager", dynamic=True)
    for number in (0.25, 0.5, 0.75):
        loss, soft, chosen, *others = compiled(x, y, number, 4)
        assert loss.isfinite()
        assert_close(soft.sum(1), torch.ones(4))
        assert len(chosen) == 4 * number
        assert_close(others, list(everything(x, y, number, 4)[3:]))


def test_every_row_has_a_name_of_its_own_and_a_public_function():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.name for row in ROWS} == recorded_answers().keys(), AGAIN
    assert {row.function for row in ROWS} <= set(public_functions())


def test_every_exported_function_is_found_and_no_private_one():
    found = public_functions()

    assert {F.mixup, F.draw_mixup, F.blur, F.with_tensors, F.images.rotate} <= set(found)
    assert not any(function.__name__.startswith("_") for function in found)
    assert F.MixUpDraw not in found


def test_the_matrix_has_a_column_for_every_property():
    assert list(COLUMNS) == list(PROPERTIES)


@pytest.mark.parametrize("row", [row for row in ROWS if row.expected_failures], ids=repr)
def test_an_expected_failure_has_a_reason_in_words(row):
    assert row.expected_failures.keys() <= PROPERTIES.keys()
    assert all(len(reason.split()) > 3 for reason in row.expected_failures.values())


def test_a_function_whose_arguments_are_not_known_names_what_to_add():
    def brighten(pictures):
        return pictures + 1

    with pytest.raises(
        MissingCaseError, match=r"brighten can't be called .*\n.*FunctionCase\(brighten, "
    ):
        FunctionCase(brighten).report()


@pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")
def test_a_surgery_that_finds_nothing_to_replace_needs_another_model():
    with pytest.raises(MissingCaseError, match="found no"):
        FunctionCase(F.squeeze_excite, {"min_channels": 1000}).report()


# --- devices ---


class NoEarlyReads(TorchFunctionMode):
    """Raises at copies that would not have arrived on the CPU, were the tensor on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is Tensor.to and result.device.type == "cpu" and (kwargs or {}).get("non_blocking"):
            raise AssertionError("a copy to the CPU must have arrived before it is read")
        return result


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "no_sync" not in row.expected_failures], ids=repr
)
def test_with_tensors_on_a_device_no_function_copies_from_the_host_and_waits(row):
    with preserve_rng():
        no_copies(row.subject().inner())


@pytest.mark.parametrize("row", DRAWING, ids=repr)
def test_a_draw_of_a_generator_on_a_device_has_arrived_before_the_cpu_reads_it(row):
    with preserve_rng(), NoEarlyReads():
        row.subject().call(row.subject().arguments())
