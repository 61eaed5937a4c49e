"""Write the evaluated weights of a run for plain PyTorch or for Transformers."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.paths import open_to_write, replacing, write_atomically
from composable.batches.model_call import has_adapters, is_transformers_model
from composable.checkpoint.atomic import new_folder
from composable.checkpoint.errors import CheckpointExistsError, UnsavableError
from composable.checkpoint.safetensors import DTYPES, write_tensors
from composable.distributed.processes import Processes
from composable.functional import batch_norm_statistics

SUFFIX = ".safetensors"
CARD = "README.md"
CARD_MARK = "<!-- Written by composable, which replaces a card that has this line. -->"
Describe = Callable[[Path, str], None]
LIST = "exported_files.txt"
"""The file of an exported folder that lists its files, so that another export may replace it."""


def export_weights(
    model: nn.Module,
    path: Path,
    processes: Processes,
    *,
    overwrite: bool,
    describe: Describe = lambda folder, library: None,
    beside: bool = False,
) -> Path:
    """Write the weights of a model; all processes call it together.

    Args:
        model: The model, whose parameters may be sharded.
        path: A file with the suffix ".safetensors", or a folder for a model of Transformers.
        processes: The processes, of which rank 0 writes.
        overwrite: Replace the file. A folder is replaced if it has nothing but exported files.
        describe: Writes the card of the model to a folder, given the library that reads the model.
        beside: Write the card beside a file, too.
    """
    weights = {name: _whole(name, value) for name, value in model.state_dict().items()}

    def write() -> str:
        if path.suffix == SUFFIX:
            if os.path.lexists(path) and not overwrite:
                raise CheckpointExistsError(f"{path} exists; pass overwrite=True to replace it.")
            with replacing(path) as partial, open_to_write(partial, "xb") as file:
                write_tensors(file.write, weights)
            if beside:
                describe(path.parent, "pytorch")
        else:
            _write_folder(model, weights, path, describe)
        return str(path)

    return Path(processes.on_main(write))


def _whole(name: str, value: Any) -> Tensor:
    """Return a tensor of the state dict, gathered from the processes that have parts of it."""
    if not isinstance(value, Tensor):
        raise UnsavableError(
            f"{name} of the state dict is a {type(value).__name__}, and a file of safetensors has "
            "tensors only; use save_checkpoint."
        )
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if value.dtype not in DTYPES.values():
        raise UnsavableError(
            f"{name} has dtype {value.dtype}, which safetensors does not support; use "
            "save_checkpoint."
        )
    whole: Tensor = value.detach()
    return whole


def _write_folder(
    model: nn.Module,
    weights: dict[str, Tensor],
    path: Path,
    describe: Describe = lambda folder, library: None,
) -> None:
    inner, prefix = _transformers_model(model, path)
    own = {name.removeprefix(prefix): value for name, value in weights.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(path, _check_place) as partial:
        inner.save_pretrained(partial, state_dict={n: t.cpu() for n, t in own.items()})
        check = _check_adapter if has_adapters(inner) else _check_folder
        check(inner, own, partial, path)
        describe(partial, "peft" if has_adapters(inner) else "transformers")
        names = "\n".join([LIST, *sorted(_names(partial))])
        write_atomically(partial / LIST, names.encode())


def _check_place(path: Path, _: bool) -> None:
    """Check that a path is free, or a folder with nothing but exported files."""
    listed = path / LIST
    known = listed.read_text().split("\n") if listed.is_file() else ()
    is_folder = path.is_dir() and not path.is_symlink()
    foreign = sorted(_names(path).difference(known)) if is_folder else [path.name]
    if os.path.lexists(path) and foreign:
        raise CheckpointExistsError(
            f"{path} exists, and {foreign[0]!r} is not from export_weights: use another path."
        )


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _transformers_model(model: nn.Module, path: Path) -> tuple[Any, str]:
    """Return the model of Transformers that has all parameters, and its path in the given one."""
    whole = set(map(id, model.parameters()))
    for name, module in model.named_modules():
        if is_transformers_model(module) and whole == set(map(id, module.parameters())):
            return module, f"{name}." if name else ""
    raise ValueError(
        f"path={str(path)!r} must end in {SUFFIX!r}: a folder is written for models of "
        f"Transformers, and {type(model).__name__} is not one."
    )


def _check_folder(inner: Any, weights: dict[str, Tensor], folder: Path, path: Path) -> None:
    """Check that `from_pretrained` builds the same model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about entries that are missing: they are compared
        loaded = type(inner).from_pretrained(folder, dtype=inner.dtype)
    found = loaded.state_dict()
    for name in sorted(found.keys() | weights.keys()):
        both = name in found and name in weights
        if both and torch.equal(found[name].cpu(), weights[name].cpu()):
            continue
        raise UnsavableError(
            f"{type(inner).__name__}.from_pretrained would build another model than the trained "
            f"one, which differs in {name}; export to a file that ends in {SUFFIX!r}, and load it "
            f"into the changed model. Nothing was written to {path}."
        )


def _check_adapter(inner: Any, weights: dict[str, Tensor], folder: Path, path: Path) -> None:
    """Check that the folder of adapters has all that was trained.

    It is loaded into the base model as that was before the training.
    """
    from peft import get_peft_model_state_dict  # an extra

    tensors = inner.state_dict(keep_vars=True)
    saved: set[int] = set()
    for adapter in inner.peft_config:
        found = get_peft_model_state_dict(inner, state_dict=tensors, adapter_name=adapter)
        saved.update(map(id, found.values()))
    for name, tensor in _trained(inner.get_base_model()):
        if id(tensor) not in saved:
            raise UnsavableError(
                f"{path} would have the adapters alone, and {name} of the base model was trained, "
                "too: name its module in modules_to_save of the PEFT config, freeze it, or export "
                f"to a file that ends in {SUFFIX!r}. Nothing was written."
            )


def _trained(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what training changes: parameters that are not frozen, statistics of batch norms."""
    yield from ((name, one) for name, one in model.named_parameters() if one.requires_grad)
    for name in batch_norm_statistics(model):
        if model.get_submodule(name.rpartition(".")[0]).training:
            yield name, model.get_buffer(name)
