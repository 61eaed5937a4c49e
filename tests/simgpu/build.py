"""Compile the extension into a cache, if this machine and its PyTorch allow it."""

import fcntl
import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
ROOT = Path(__file__).parents[2]
FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1")


class UnavailableError(RuntimeError):
    """This machine or its PyTorch can't have simulated GPUs; the message says why."""


@cache
def torch_folder() -> Path:
    """Return the folder of PyTorch, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise UnavailableError("PyTorch is not installed")
    return Path(found.origin).parent


def compiler() -> str:
    """Return the C++ compiler.

    Raises:
        UnavailableError: It, or something else that is needed, is missing.
    """
    version = runpy.run_path(str(torch_folder() / "version.py"))
    found = version["__version__"].partition("+")[0]
    pinned = re.search(r"(?m)^torch==(\S+)", (ROOT / "constraints.txt").read_text())
    assert pinned, "constraints.txt has no line torch=="
    if version["cuda"] or version.get("hip"):
        raise UnavailableError(
            f"PyTorch {version['__version__']} is built for GPUs, and only a build for the CPU can "
            "simulate some; install that into another environment, with PIP_EXTRA_INDEX_URL set "
            "to the address of PyTorch's CPU wheels"
        )
    if found != pinned[1]:
        raise UnavailableError(f"it needs PyTorch {pinned[1]}, and {found} is installed")
    command = shutil.which(os.environ.get("CXX", "g++"))
    if command is None:
        raise UnavailableError("there is no C++ compiler; install g++, or name one in CXX")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise UnavailableError("the headers of Python are missing; install python3-dev")
    return command


def extension(kind: str) -> Path:
    """Return the compiled extension, "cuda" or "sim", which is compiled unless it is cached.

    Raises:
        UnavailableError: It can't be compiled here.
        RuntimeError: The compiler failed.
    """
    command = [compiler(), *FLAGS, *_options(kind)]
    hashed = hashlib.sha256(repr(command).encode())
    for path in sorted(SOURCES.iterdir()):
        hashed.update(path.read_bytes())
    hashed.update((torch_folder() / "version.py").read_bytes())
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "composable-simgpu" / hashed.hexdigest()[:16]
    path = folder / f"{module_name(kind)}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:  # the second worker waits for the first
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(command, path)
    return path


def module_name(kind: str) -> str:
    """Return the name of the extension's module."""
    return f"_simgpu_{kind}"


def _options(kind: str) -> list[str]:
    torch = torch_folder()
    include = torch / "include"
    folders = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    return [
        f"-DSIM_MODULE={module_name(kind)}",
        *(["-DSIM_AS_CUDA"] if kind == "cuda" else []),
        *(part for folder in folders for part in ("-isystem", str(folder))),
        str(SOURCES / "module.cpp"),
        *(f"-L{torch}/lib", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
        f"-Wl,-rpath,{torch}/lib",
    ]


def _compile(command: list[str], path: Path) -> None:
    """Compile next to the file and rename, so that no process loads a part of it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the simulated GPU does not compile:\n{done.stderr[-5000:]}")
        made.replace(path)
