"""The demo on digits: its runs, its table and its plot."""

import pytest
import torch

from examples import digits


@pytest.fixture(scope="module")
def results():
    runs = digits.plan(2, 1, {digits.PLAIN: 0.1, digits.ALL: 0.05})
    return [digits.Result(run, [0.5], [0.99 if run.seed else 0.98]) for run in runs]


def test_the_plan_has_each_method_alone_and_all_without_it():
    runs = digits.plan(1, 12, {digits.PLAIN: 0.1, digits.ALL: 0.05})

    by_name = {run.arm: run for run in runs}

    assert len(runs) == len(by_name) == 15
    assert [run.epochs for run in runs] == [12, 24, *[12] * 13]
    assert by_name["only MixUp"].lr == 0.1
    assert by_name["without MixUp"].lr == 0.05
    assert len(by_name["without MixUp"].algorithms) == 5
    assert {run.part for run in runs} == {"all"}


def test_test_scans_are_never_trained_on():
    parts = {name: {bytes(x.numpy()) for x, _ in part} for name, part in digits.digits().items()}

    assert parts["all"] == parts["train"] | parts["validation"]
    assert not parts["test"] & parts["all"]


def test_the_table_has_means_intervals_and_runs_that_reach_the_target(results):
    rows = digits.summarize(results)

    assert rows[0]["error"] == pytest.approx(1.5)
    assert rows[0]["interval"] == pytest.approx(12.706 * 0.5, rel=1e-3)  # Student, 1 degree
    assert "1 of 2" in digits.format_table(rows)


def test_the_plot_is_written_also_for_runs_without_errors(tmp_path, results):
    perfect = [digits.Result(one.run, [1.0], [1.0]) for one in results]

    digits.draw(perfect, digits.summarize(perfect), tmp_path / "errors.png")

    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_a_run_is_evaluated_on_both_parts_after_each_epoch():
    threads = torch.get_num_threads()
    try:
        result = digits.train(digits.Run("plain", [], 0, 0.1, 2, "train"))
    finally:
        torch.set_num_threads(threads)

    assert len(result.validation) == len(result.test) == 2
    assert result.test[-1] > 0.5
