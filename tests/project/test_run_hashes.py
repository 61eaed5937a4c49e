"""Runs on one process keep the bits of their weights; `tools.run_hashes` compares all of them."""

import pytest

from tools.run_hashes import RECORD, RUNS, main, recorded

FAST = ("plain", "EMA and BlurPool", "accumulation", "SAM")


@pytest.mark.parametrize("name", FAST)
def test_the_weights_of_a_run_are_those_recorded_on_such_a_machine(name):
    found = RUNS[name]()
    assert found == (recorded().get(name) or RUNS[name]())


def test_a_hash_that_differs_is_reported(monkeypatch, tmp_path, capsys):
    record = tmp_path / RECORD.name
    record.write_text("{}")
    monkeypatch.setattr("tools.run_hashes.RECORD", record)
    hashes = iter(["a", "a", "b"])
    monkeypatch.setattr("tools.run_hashes.RUNS", {"plain": lambda: next(hashes)})
    assert [main(["--record"]), main([]), main([])] == [0, 0, 1]
    assert "b  plain: was a" in capsys.readouterr().out
