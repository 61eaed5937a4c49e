"""Laws of checkpoints: those that were changed are refused, and several processes may write one."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from composable.checkpoint import (
    Region,
    consolidate,
    pack,
    read,
    read_shards,
    unpack,
    verify,
    write,
)
from composable.checkpoint.shards import cover
from tests.checkpoint.sharding import divisions, regions, shard, together
from tests.checkpoint.trees import same, tensors, trees
from tools.fuzz_checkpoints import check


def test_a_mutated_checkpoint_is_refused_or_well_formed():
    tally = check(30, 12)

    assert sum(tally.values()) >= 60
    assert {seen for kind, _, seen in tally if kind == "damaged"} <= {"refused", "unchanged"}
    assert {seen for kind, _, seen in tally if kind == "forged"} == {"refused", "loaded"}
    assert {seen for kind, _, seen in tally if kind == "altered"} == {"refused", "trained"}


SIZES = st.sampled_from([2, 3, 4])


def write_divided(draw, folder, tensors, data, size):
    """Write tensors on a number of processes, each divided at random or whole."""
    parts = {
        name: draw(divisions(tensor.shape, size)) if draw(st.booleans()) else None
        for name, tensor in tensors.items()
    }

    def save(processes):
        own = {
            name: tensors[name] if blocks is None else shard(tensors[name], blocks[processes.rank])
            for name, blocks in parts.items()
        }
        return write(folder, own, data, processes=processes, info={"batch": 7})

    assert together(size, save) == [folder] * size
    return folder


@given(tree=trees, size=SIZES, draw=st.data())
def test_what_any_number_of_processes_writes_is_read_as_it_was(tree, size, draw):
    tensors, data = pack(tree)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_divided(draw.draw, Path(scratch, "it"), tensors, data, size)
        contents = read(folder)

    assert same(unpack(contents.tensors, contents.data), tree)
    assert contents.manifest.batch == 7


@given(
    each=st.lists(tensors, min_size=1, max_size=4), sizes=st.tuples(SIZES, SIZES), draw=st.data()
)
def test_any_division_is_read_from_any_other(each, sizes, draw):
    whole = {f"{number}": tensor for number, tensor in enumerate(each)}
    whole = {
        n: torch.view_as_real(t) if t.dtype == torch.complex128 else t for n, t in whole.items()
    }
    before, after = sizes
    blocks = {name: draw.draw(regions(tensor.shape, after)) for name, tensor in whole.items()}
    check = draw.draw(st.booleans())
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_divided(draw.draw, Path(scratch, "it"), whole, None, before)
        for rank in range(after):
            wanted = {name: r[rank] for name, r in blocks.items() if rank < len(r)}
            found = read_shards(folder, wanted, verify=check).tensors
            for name, tensor in whole.items():
                region = wanted.get(name, Region.whole(tensor.shape))
                assert same(found[name], tensor[region.within(Region.whole(tensor.shape))])


@given(tree=trees, size=SIZES, draw=st.data())
def test_a_consolidated_checkpoint_has_the_bytes_of_one_process(tree, size, draw):
    tensors, data = pack(tree)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_divided(draw.draw, Path(scratch, "it"), tensors, data, size)
        one = consolidate(folder, Path(scratch, "one"))
        alone = write(Path(scratch, "alone"), tensors, data, info={"batch": 7})
        assert verify(one).files == verify(alone).files
        assert consolidate(folder, folder, overwrite=True) == folder
        assert verify(folder).files == verify(alone).files


@given(
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple), size=st.integers(1, 5), draw=st.data()
)
def test_blocks_cover_a_tensor_if_each_element_is_in_one(shape, size, draw):
    blocks = draw.draw(regions(shape, size))
    assert cover(shape, blocks)
    if draw.draw(st.booleans()):  # move a block
        at = draw.draw(st.integers(0, len(blocks) - 1))
        moved = draw.draw(st.lists(st.integers(-1, 2), min_size=len(shape), max_size=len(shape)))
        blocks[at] = Region(
            [a + b for a, b in zip(blocks[at].offsets, moved, strict=True)], blocks[at].sizes
        )
    count = torch.zeros(shape, dtype=torch.int64)
    inside = all(block.fits(shape) for block in blocks)
    for block in blocks if inside else []:
        count[block.within(Region.whole(shape))] += 1
    assert cover(shape, blocks) == (inside and bool((count == 1).all()))
