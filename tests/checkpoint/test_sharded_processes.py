"""Checkpoints that processes write and read with DTensors, on gloo."""

import pytest

from composable.checkpoint import consolidate, import_dcp, read, unpack
from tests.checkpoint.sharded_workers import load, load_and_save, save
from tests.checkpoint.trees import same
from tests.support.processes import run

LIMIT = 240


@pytest.mark.slow
def test_dtensors_are_written_and_read_on_any_number_of_processes(tmp_path):
    two, four = tmp_path / "2", tmp_path / "4"
    two.mkdir()
    four.mkdir()
    run(save, 2, two, seconds=LIMIT)
    run(load_and_save, 4, two, four, seconds=LIMIT)
    run(load, 2, four, seconds=LIMIT)

    for folder in (two, four):
        sharded, whole = read(folder / "sharded"), read(folder / "whole")
        assert same(unpack(sharded.tensors, sharded.data), unpack(whole.tensors, whole.data))
        one = read(consolidate(folder / "sharded", folder / "one"))
        assert one.manifest.files == whole.manifest.files
        theirs = read(import_dcp(folder / "dcp", folder / "imported"))
        tree, expected = unpack(theirs.tensors, theirs.data), unpack(whole.tensors, whole.data)
        assert tree["step"] == 3
        assert same(tree["state"], {name: expected["state"][name] for name in tree["state"]})
