"""Files that are damaged, and files that are forged: with hashes that fit."""

import hashlib
import json
import os

from composable.checkpoint import manifest
from composable.checkpoint.manifest import MANIFEST


def flip(path, position=-1):
    """Change a bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def cut(size):
    return lambda path: path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    **{f"truncated to {size}": (cut(size), "{}") for size in (0, 1, 9, -1)},
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b" "), "{}"),
    "changed": (flip, "{}"),
    "renamed": (lambda path: path.rename(path.parent / "x"), "{} is missing"),
    "link": (lambda path: path.symlink_to(path.rename(path.parents[1] / "x")), "{} is a symbolic"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "{} is not a regular file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "{} is not a regular file"),
}
"""Damages of a file of a checkpoint, each with the message that names the file."""


def edit_manifest(folder, changes=None):
    """Merge changes into the manifest, and seal it with the hashes of the present files."""
    body = json.loads((folder / MANIFEST).read_bytes())
    body.pop("sha256")
    for name, record in body["files"].items():
        content = (folder / name).read_bytes()
        record.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    (folder / MANIFEST).write_bytes(manifest.dump_sealed(merged(body, changes or {})))


def merged(body, changes):
    if not isinstance(changes, dict) or not isinstance(body, dict):
        return changes
    body = {**body, **{key: merged(body.get(key), value) for key, value in changes.items()}}
    return {key: value for key, value in body.items() if value is not None}


def forge(folder, name, content):
    """Change a file as an attacker would: write a manifest that matches it."""
    (folder / name).write_bytes(content)
    if name != MANIFEST:
        edit_manifest(folder)


def safetensors_of(header, size=0, length=None):
    """Return a file of tensors with a header, which may lie about its length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + b"\0" * size
