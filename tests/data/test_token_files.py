"""Rows of tokens in memory-mapped files."""

import os
import pickle
import re
import struct

import pytest
import torch
from torch.utils.data import DataLoader

from composable.data import TokenFiles, seeded_batches, write_token_file
from tests.support.processes import forkserver


def written(folder, *sizes):
    """Write files with consecutive tokens, and return their paths."""
    start, paths = 0, []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        paths.append(write_token_file(path, torch.arange(start, start + size)))
        start += size
    return paths


def edited(path, at, content):
    """Replace bytes of a file."""
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)
    return path


def firsts(batches):
    return [row[0].item() for inputs, _ in batches for row in inputs]


# --- rows ---


def test_a_row_is_followed_by_its_next_token_and_stays_within_its_file(tmp_path):
    rows = TokenFiles(written(tmp_path, 10, 4, 7), length=3)

    starts = [inputs[0].item() for inputs, _ in rows]

    assert len(rows) == 3 + 1 + 2
    assert starts == [0, 3, 6, 10, 14, 17]
    for inputs, targets in rows:
        assert inputs.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)


def test_an_index_counts_from_the_end_and_is_checked(tmp_path):
    rows = TokenFiles(written(tmp_path, 10, 4), length=3)

    assert rows[-1][0].tolist() == [10, 11, 12]
    with pytest.raises(IndexError):
        rows[4]


def test_the_first_rows_alone_can_be_used(tmp_path):
    paths = written(tmp_path, 10, 4, 7)

    rows = TokenFiles(paths, length=3, rows=4)

    assert [inputs[0].item() for inputs, _ in rows] == [0, 3, 6, 10]
    assert rows[-1][0][0] == 10
    with pytest.raises(IndexError):
        rows[4]
    with pytest.raises(ValueError, match=r"rows=7 must be at most 6, the rows of length=3"):
        TokenFiles(paths, length=3, rows=7)


def test_large_ids_are_not_negative(tmp_path):
    path = write_token_file(tmp_path / "a.bin", torch.tensor([65535, 32768, 0]))

    (inputs, targets) = TokenFiles([path], length=2)[0]

    assert (inputs.tolist(), targets.tolist()) == ([65535, 32768], [32768, 0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.uint16])
def test_a_file_has_the_format_of_llm_c(dtype, tmp_path):
    path = write_token_file(str(tmp_path / "new" / "a.bin"), torch.tensor([7, 200, 3]).to(dtype))

    content = path.read_bytes()

    assert content == struct.pack("<3i", 20240520, 1, 3) + bytes(1012) + struct.pack(
        "<3H", 7, 200, 3
    )
    assert [one.name for one in path.parent.iterdir()] == ["a.bin"]


def test_a_file_can_be_read_by_whom_other_new_files_can(tmp_path):
    (path,) = written(tmp_path, 8)
    (tmp_path / "other").touch()

    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_files_are_read_through_links_and_need_not_be_writable(tmp_path):
    (path,) = written(tmp_path, 8)
    path.chmod(0o444)
    (tmp_path / "linked").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "link.bin").symlink_to(path)

    for one in (tmp_path / "link.bin", tmp_path / "linked" / path.name):
        assert TokenFiles([one], length=3)[1][0].tolist() == [3, 4, 5]


# --- loaders ---


def test_a_loader_without_shuffling_reads_the_files_as_one_stream(tmp_path):
    rows = TokenFiles(written(tmp_path, 10, 4, 7), length=3)

    loader = DataLoader(rows, batch_size=2)

    assert firsts(seeded_batches(loader, 17, epoch=0)) == [0, 3, 6, 10, 14, 17]
    assert firsts(seeded_batches(loader, 17, epoch=0, skip=2)) == [14, 17]


@pytest.mark.parametrize("context", ["fork", forkserver])
def test_rows_are_the_same_in_worker_processes(context, tmp_path):
    rows = TokenFiles(written(tmp_path, 100, 40), length=3)
    rows[0]  # the files are mapped before the workers start

    def batches(workers, **options):
        loader = DataLoader(rows, 4, shuffle=True, num_workers=workers, **options)
        return firsts(seeded_batches(loader, 17, epoch=0))

    assert batches(1, multiprocessing_context=context) == batches(0)


def test_a_pickle_has_the_paths_and_not_the_tokens(tmp_path):
    rows = TokenFiles(written(tmp_path, 10_000), length=3)
    rows[0]

    pickled = pickle.dumps(rows)

    assert len(pickled) < 1000
    assert pickle.loads(pickled)[1][0].tolist() == [3, 4, 5]


# --- bad files ---


def header(at, value):
    return lambda path: edited(path, at, struct.pack("<i", value))


def cut(size):
    return lambda path: os.truncate(path, size)


def without_tokens(count):
    return lambda path: os.truncate(header(8, count)(path), 1024)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((cut(size), rf"has {size} bytes.*1024.*Download it again") for size in (0, 11, 1023)),
        (header(0, 20240801), "begins with 20240801.*must begin.*write_token_file"),
        (header(4, 7), "the version 7.*must begin.*write_token_file"),
        *(
            (cut(size), rf"must have 1040 bytes: 8 tokens of 16 bits.*It has {size}: it was cut")
            for size in (1038, 1039, 1041, 1056)
        ),
        *((without_tokens(count), f"{count} tokens") for count in (0, -1)),
    ],
)
def test_a_damaged_file_is_refused_by_name(damage, message, tmp_path):
    paths = written(tmp_path, 8, 8)
    damage(paths[1])

    with pytest.raises(ValueError, match=rf"1\.bin .*{message}"):
        TokenFiles(paths, length=3)


def test_a_file_that_is_shorter_than_a_row_is_refused(tmp_path):
    paths = written(tmp_path, 8, 3)

    assert len(TokenFiles(paths, length=2)) == 3 + 1
    with pytest.raises(ValueError, match=r"1\.bin has 3 tokens, and a row of length=3 takes 4"):
        TokenFiles(paths, length=3)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape("none.bin")):
        TokenFiles([tmp_path / "none.bin"], length=3)
    with pytest.raises(OSError, match=f"not a regular file: '{re.escape(str(tmp_path))}'"):
        TokenFiles([tmp_path], length=3)


def test_a_file_is_replaced_and_a_link_is_not(tmp_path):
    (path,) = written(tmp_path, 8)
    (tmp_path / "link.bin").symlink_to(path)
    rows = TokenFiles([path], length=3)
    before = rows[0][0].tolist()

    write_token_file(path, torch.arange(50, 60))

    assert TokenFiles([path], length=3)[0][0].tolist() == [50, 51, 52]
    assert rows[1][0].tolist() == [before[2] + 1, before[2] + 2, before[2] + 3]  # still mapped
    with pytest.raises(FileExistsError, match=r"link\.bin is a link"):
        write_token_file(tmp_path / "link.bin", torch.arange(4))
    with pytest.raises(ValueError, match="ids from -1 to 5"):  # before it is opened
        write_token_file(tmp_path / "new.bin", torch.tensor([-1, 5]))
    assert not (tmp_path / "new.bin").exists()
