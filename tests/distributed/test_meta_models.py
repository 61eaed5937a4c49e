"""Models that are built on the meta device, on one process and on two."""

import sys

import pytest

from composable.distributed import FSDP2
from tests.support import meta_runs as runs
from tests.support.campaign import FULL
from tests.support.processes import attempt, run

EQUAL = {
    "attention": ("copies", "parts", "whole parts") if FULL else ("copies",),
    "Network": ("copies", "parts", "whole parts") if FULL else ("parts", "whole parts"),
    "scaled": ("set",),
    "language": ("parts",),
}


def test_initial_weights_are_the_same_on_any_number_of_processes():
    pairs = [(model, strategy) for model, several in EQUAL.items() for strategy in several]
    alone = run(runs.each, 1, [*pairs, ("Network", "one")])[0]
    first, second = run(runs.each, 2, pairs)
    assert first == second
    for (one, loss), (many, other), pair in zip(alone, first, pairs, strict=False):
        assert one == many, pair
        assert other == pytest.approx(loss, rel=1e-5)
    assert len({one for one, _ in alone}) == 4
    assert alone[-1][0] == dict(zip(pairs, alone, strict=False))["Network", "parts"][0]


FAULTS = {
    ("scaled", "parts"): "nothing sets 1.scale, 1.offsets: define reset_parameters in Scaled",
    ("Network", "too late"): "initialize changed last.weight when it was called for Block",
}


@pytest.mark.parametrize("case", FAULTS, ids=str)
def test_model_without_an_initializer_is_an_error_on_all_processes(case):
    for one in attempt(runs.each, 2, [case]):
        assert one.kind == "ValueError"
        assert FAULTS[case] in one.message


@pytest.mark.parametrize("kind", ["weights.safetensors", "checkpoint"])
def test_weights_of_a_file_are_loaded_by_parts(kind, tmp_path):
    (expected,) = run(runs.saved, 1, str(tmp_path), "one")
    cases = [("Network", "parts"), ("Network", "copies")]
    for found in run(runs.each, 2, cases, str(tmp_path / kind)):
        assert [one for one, _ in found] == [expected] * 2


def test_folder_of_transformers_is_loaded_by_parts(tmp_path):
    (names,) = run(runs.pretrained, 1, str(tmp_path))
    assert len([name for name in names if name.endswith(".safetensors")]) > 1
    (alone,) = run(runs.each, 1, [("language", "one")], str(tmp_path))
    for found in run(runs.each, 2, [("language", "parts")], str(tmp_path)):
        assert found[0][0] == alone[0][0]
        assert found[0][1] == pytest.approx(alone[0][1], rel=1e-5)


def test_model_on_the_meta_device_resumes(tmp_path):
    (whole,) = run(runs.resumed, 1, str(tmp_path / "whole"), "Network", "parts", "2ep")
    run(runs.resumed, 2, str(tmp_path / "parts"), "Network", "parts", "1ep")
    for first, loss in run(runs.resumed, 2, str(tmp_path / "parts"), "Network", "parts", "2ep"):
        assert first == 3
        assert loss == pytest.approx(whole[1], rel=1e-5)


SIZE = 1 << (30 if FULL else 27)
"""The size of a model in bytes."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_ever_has_the_whole_model():
    for grown, peak in run(runs.growth, 2, SIZE):
        assert 0.45 < grown < 0.6
        assert peak < 0.6


def test_rejects_an_initializer_that_is_no_function():
    with pytest.raises(TypeError, match="initialize='normal' must be a function of a module"):
        FSDP2(initialize="normal")
