"""What a folder at a URL costs, relative to a local folder and to a plain copy.

    python benchmarks/remote_folder.py                  # all of it
    python benchmarks/remote_folder.py thread           # one part: thread, upload, memory

The store is a server of moto in a process of its own. `thread` compares the CPU seconds of the
training thread with the same run in a local folder, alone and beside another process that copies
its checkpoints by fsspec, since both share caches and memory. `upload` compares the time of an
upload of 200 MB with `put` of fsspec, and `memory` measures by how much the resident memory of a
process grows during the upload of a small and a large checkpoint. The variants run in turns.
"""

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fsspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.checkpoint import write
from composable.storage import RemoteFolder

PARTS = ("thread", "upload", "memory")
WIDTH, ROWS, STEPS, INTERVAL = 512, 224, 60, 12  # steps of about 26 ms, checkpoints of 9 MB
MIB = 2**20


@contextmanager
def server() -> Iterator[None]:
    """Start a server, of which the environment tells, with a bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        fsspec.filesystem("s3").mkdir("bucket")
        yield
    finally:
        process.kill()
        process.wait()


def fit(folder: str) -> float:
    """Return the CPU seconds of the training thread for a run in a folder."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    batch = torch.randn(ROWS, WIDTH), torch.randint(WIDTH, (ROWS,))
    trainer = Trainer(
        model,
        train_dataloader=[batch] * STEPS,
        max_duration="1ep",
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.Adam, lr=1e-4),
        save_folder=folder,
        save_interval=f"{INTERVAL}ba",
        save_num_checkpoints_to_keep=1,
        progress_bar=False,
        device="cpu",
        seed=17,
    )
    began = time.thread_time()
    trainer.fit()
    return time.thread_time() - began


COPY = """
import sys, time
from pathlib import Path
import fsspec

files, copied = fsspec.filesystem("s3"), set()
while True:
    for manifest in Path(sys.argv[1]).glob("ep*/manifest.json"):
        if manifest not in copied:
            copied.add(manifest)
            try:
                files.put(str(manifest.parent), f"{sys.argv[2]}/{len(copied)}", recursive=True)
            except FileNotFoundError:  # the run has deleted it
                pass
    time.sleep(0.02)
"""


def fit_beside_copies(folder: str, url: str) -> float:
    """Return the same, while another process copies each checkpoint to a URL."""
    process = subprocess.Popen([sys.executable, "-c", COPY, folder, url])
    time.sleep(2.0)  # it imports fsspec
    try:
        return fit(folder)
    finally:
        process.kill()
        process.wait()


def checkpoint(folder: Path, size: int) -> None:
    """Write a checkpoint of so many bytes."""
    folder.mkdir(exist_ok=True)
    write(folder / "ba1", {"w": torch.zeros(size // 4)}, None, info={"batch": 1, "run": "a"})


def upload(folder: Path, url: str, size: int) -> float:
    """Return the seconds of the upload of a new checkpoint."""
    remote = RemoteFolder(url, local_folder=folder)
    remote.claim()
    checkpoint(folder, size)
    began = time.perf_counter()
    remote.push()
    remote.finish()
    return time.perf_counter() - began


def put(folder: Path, url: str, size: int) -> float:
    """Return the seconds of a plain copy of the same files."""
    checkpoint(folder, size)
    files = fsspec.filesystem("s3")
    began = time.perf_counter()
    files.put(f"{folder}/ba1", f"{url}/ba1", recursive=True)
    return time.perf_counter() - began


def compare(ways: Mapping[str, Callable[[str], float]], rounds: int) -> None:
    """Measure the ways in turns, and print the median ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, way in ways.items():
            taken = way(f"{name.replace(' ', '-')}-{number}")
            if number >= 0:  # the first round loads modules
                times[name].append(taken)
    first = next(iter(times.values()))
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, first, strict=True))
        print(f"{name:34} {statistics.median(taken):7.3f} s   {ratio:6.3f}", flush=True)


def grown(size: int) -> float:
    """Return by how many MiB the memory of this process grows during an upload."""
    with tempfile.TemporaryDirectory() as scratch:
        upload(Path(scratch, "first"), f"s3://bucket/{size}-first", MIB)  # loads modules
        remote = RemoteFolder(f"s3://bucket/{size}", local_folder=Path(scratch, "second"))
        remote.claim()
        command = f"from remote_folder import *; checkpoint(Path({str(remote.folder)!r}), {size})"
        subprocess.run([sys.executable, "-c", command], check=True, cwd=Path(__file__).parent)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        remote.push()
        remote.finish()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # kiB on Linux


def main() -> None:
    """Measure the parts and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.size:
        print(f"upload of {given.size // MIB:4} MiB grows by     {grown(given.size):7.0f} MiB")
        return
    with server(), tempfile.TemporaryDirectory() as scratch:
        if "thread" in given.parts:
            local, remote = f"{scratch}/", "s3://bucket/"
            os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
            ways = {
                "local save_folder": lambda name: fit(local + name),
                "same, copied by another process": lambda name: fit_beside_copies(
                    local + name, f"{remote}{name}-copy"
                ),
                "save_folder at a URL": lambda name: fit(remote + name),
            }
            compare(ways, given.rounds)
        if "upload" in given.parts:
            ways = {"put of fsspec": put, "upload": upload}
            calls = {
                title: lambda name, way=way: way(
                    Path(scratch, name), f"s3://bucket/{name}", 200 * MIB
                )
                for title, way in ways.items()
            }
            compare(calls, given.rounds)
        if "memory" in given.parts:
            for size in (50, 400):
                command = [sys.executable, __file__, "--size", str(size * MIB)]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
