"""Checkpoints that processes write and read with DTensors, on gloo."""

import pytest

from composable.checkpoint import consolidate, import_dcp, read, unpack
from tests.checkpoint.sharded_workers import launch
from tests.checkpoint.trees import same


@pytest.mark.slow
def test_dtensors_are_written_and_read_on_any_number_of_processes(tmp_path):
    two, four = tmp_path / "2", tmp_path / "4"
    two.mkdir()
    four.mkdir()
    launch(2, "save", two)
    launch(4, "load_and_save", two, four)
    launch(2, "load", four)

    for folder in (two, four):
        sharded, whole = read(folder / "sharded"), read(folder / "whole")
        assert same(unpack(sharded.tensors, sharded.data), unpack(whole.tensors, whole.data))
        one = read(consolidate(folder / "sharded", folder / "one"))
        assert one.manifest.files == whole.manifest.files
        theirs = read(import_dcp(folder / "dcp", folder / "imported"))
        tree, expected = unpack(theirs.tensors, theirs.data), unpack(whole.tensors, whole.data)
        assert tree["step"] == 3
        assert same(tree["state"], {name: expected["state"][name] for name in tree["state"]})
