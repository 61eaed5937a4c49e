"""Models of Transformers whose layers were changed: `from_pretrained` would build others."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

_for_resume: ContextVar[Callable[[Path], None] | None] = ContextVar(
    "saving_for_resume", default=None
)


def guard_saving(model: nn.Module, changed: Collection[str]) -> None:
    """Let `save_pretrained` raise for the parts of a new model that `from_pretrained` can't build.

    Args:
        model: A model of which layers were replaced.
        changed: Their names.
    """
    for name, module in model.named_modules():
        inside = [one for one in changed if not name or f"{one}.".startswith(f"{name}.")]
        if inside and hasattr(type(module), "save_pretrained"):
            vars(module)["save_pretrained"] = partial(_save, module, inside[0])


@contextmanager
def saving_for_resume(refuse: Callable[[Path], None]) -> Iterator[None]:
    """Let `save_pretrained` write a folder whose weights are loaded into the changed model.

    Args:
        refuse: Changes such a folder, so that `from_pretrained` raises for it.
    """
    token = _for_resume.set(refuse)
    try:
        yield
    finally:
        _for_resume.reset(token)


def _save(model: nn.Module, changed: str, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
    kind: Any = type(model)
    refuse = _for_resume.get()
    if refuse is None:
        raise RuntimeError(
            f"{kind.__name__}.from_pretrained would not build this model, since {changed} was "
            "replaced: it would ignore the change. Save the weights with "
            "trainer.export_weights('model.safetensors') or torch.save(model.state_dict(), path), "
            "and load them into a model that was changed in the same way."
        )
    result = kind.save_pretrained(model, save_directory, *args, **kwargs)
    refuse(Path(save_directory))
    return result
