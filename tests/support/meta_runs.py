"""Runs of models that are built on the meta device: functions that several processes import."""

import ctypes
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from composable import Trainer
from composable.distributed import DDP, FSDP2
from composable.distributed.starting import join_processes
from tests.support.parallel_runs import digest
from tests.support.runs import make_trainer


class Scaled(nn.Module):
    """A module whose parameter and buffer nothing sets by default."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("offsets", torch.arange(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift."""
        return x * self.scale + self.offsets


class Block(nn.Module):
    """A block whose own initialization changes that of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Compute a residual block."""
        return x + self.last(self.first(x).relu())


class Network(nn.Module):
    """A model with `_init_weights`, as those of Transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits."""
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)
        if isinstance(module, Block):
            nn.init.normal_(module.last.weight, std=0.01)


def attention() -> nn.Module:
    """Build a model that is initialized by `reset_parameters` alone."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return nn.Sequential(nn.Linear(8, 8), layer, nn.LayerNorm(8), nn.Linear(8, 3))


def scaled() -> nn.Module:
    """Build a model that needs `initialize=`."""
    return nn.Sequential(nn.Linear(8, 8), Scaled(), nn.Linear(8, 3))


def set_scaled(module: nn.Module) -> None:
    """Initialize `Scaled`."""
    if isinstance(module, Scaled):
        nn.init.uniform_(module.scale)
        module.offsets.copy_(torch.arange(8))


def set_in_block(module: nn.Module) -> None:
    """Change a child of a block."""
    if isinstance(module, Block):
        nn.init.zeros_(module.last.weight)


def language() -> nn.Module:
    """Build a small GPT-2, whose embedding is tied to its output."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout))  # type: ignore[arg-type]


adamw = partial(torch.optim.AdamW, lr=1e-2)
STRATEGIES: dict[str, Any] = {
    "one": None,
    "copies": DDP(shards=2),
    "parts": FSDP2(shards=2),
    "whole parts": FSDP2(shards=2, wrap=lambda one: isinstance(one, (Block, nn.LayerNorm))),
    "set": FSDP2(shards=2, initialize=set_scaled),
    "too late": FSDP2(shards=2, wrap=[nn.Linear], initialize=set_in_block),
}


def built(model: Callable[[], nn.Module], strategy: str, **options: Any) -> Trainer:
    """Build a Trainer of a model on the meta device."""
    with torch.device("meta"):
        module = model()
    generator = torch.Generator().manual_seed(1)
    data: list[Any] = [
        (torch.randn(8, 8, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(3)
    ]
    if model is language:
        data = [{"input_ids": y.view(2, 4), "labels": y.view(2, 4)} for _, y in data]
    loss = None if model is language else nn.functional.cross_entropy
    given = {"max_duration": "1ep", "seed": 3, "device": "cpu", "optimizers": adamw, **options}
    return make_trainer(module, data, loss_fn=loss, parallel=STRATEGIES[strategy], **given)


def weights_of(trainer: Trainer) -> str:
    """Return a hash of the parameters and buffers."""
    model = trainer.state.model
    return digest([dict(model.named_parameters()), dict(model.named_buffers())])


def each(cases: list[tuple[str, str]], folder: str | None = None) -> list[Any]:
    """Return the hash of initial weights, and the loss of training, of models and strategies."""
    join_processes()
    found: list[Any] = []
    for model, strategy in cases:
        options = {} if folder is None else {"load_path": folder, "load_weights_only": True}
        trainer = built(globals()[model], strategy, **options)
        first = weights_of(trainer)
        trainer.fit()
        found.append((first, float(trainer.state.loss)))  # type: ignore[arg-type]
    return found


def saved(folder: str, strategy: str) -> str:
    """Write weights into files of each kind, and return their hash."""
    join_processes()
    trainer = built(Network, strategy)
    trainer.export_weights(Path(folder, "weights.safetensors"))
    trainer.save_checkpoint(Path(folder, "checkpoint"), weights_only=True)
    return weights_of(trainer)


def pretrained(folder: str) -> list[str]:
    """Write a folder for `from_pretrained` with several files, and return their names."""
    torch.manual_seed(5)
    language().save_pretrained(folder, max_shard_size="4KB")  # type: ignore[operator]
    return [path.name for path in Path(folder).iterdir()]


def resumed(folder: str, model: str, strategy: str, duration: str) -> tuple[int, float]:
    """Train a model until a time, from the last checkpoint on."""
    join_processes()
    saving = {"save_folder": folder, "autoresume": True, "save_interval": "1ba"}
    trainer = built(globals()[model], strategy, max_duration=duration, **saving)
    first = trainer.state.timestamp.batch
    trainer.fit()
    return first, float(trainer.state.loss)  # type: ignore[arg-type]


class Wide(nn.Module):
    """A model of equal blocks, of a given size in bytes."""

    def __init__(self, size: int, blocks: int = 32) -> None:
        super().__init__()
        width = int((size / blocks / 4) ** 0.5)
        self.blocks = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(blocks)])

    def forward(self, x: Tensor) -> Tensor:
        """Call the blocks."""
        return self.blocks(x)  # type: ignore[no-any-return]


def growth(size: int) -> tuple[float, float]:
    """Build a Trainer of a model of a size in bytes, and return how far memory grew.

    Returns:
        The growth until the model was placed, and its largest value until then, as parts of `size`.
    """
    processes = join_processes()
    options: dict[str, Any] = {"parallel": FSDP2(), "progress_bar": False, "device": "cpu"}
    options |= {"optimizers": partial(torch.optim.SGD, lr=0.1), "seed": 1}
    Trainer(Wide(1 << 16), **options)  # it imports what the next one needs
    gc.collect()
    # What earlier cases of this process have freed would be reused.
    ctypes.CDLL(None).malloc_trim(0)
    before, files = _memory("VmRSS"), _memory("RssFile")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the current value
    with torch.device("meta"):
        model = Wide(size)
    trainer = Trainer(model, **options)
    processes.barrier()
    code = _memory("RssFile") - files  # pages of libraries that were used for the first time
    grown, peak = (_memory(name) - before - code for name in ("VmRSS", "VmHWM"))
    del trainer
    return grown / size, peak / size


def _memory(name: str) -> int:
    """Return a size in the status of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
