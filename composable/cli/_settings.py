"""Read the file of `composable train`, check what it calls, and build the Trainer."""

import inspect
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from typing import Any, NoReturn, TypeAlias

import yaml
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from composable._other_trainers import ARGUMENTS, CLASS_ARGUMENTS, advice_on_argument, suggestion
from composable.cli._errors import SettingsError
from composable.utils.reproducibility import seed_context

Place: TypeAlias = tuple[str, ...]
"""The keys, and positions in lists, that lead to a setting."""

_UNREADABLE = (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException)
_KEYS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_PARTS = """
    composable.algorithms composable.batches composable.callbacks composable.core composable.data
    composable.distributed composable.functional composable.loggers composable.metrics
    composable.models composable.optim composable.plan composable.recipes composable.trainer
    torch.nn torch._C._nn torch.optim torch.utils.data.dataloader torch.utils.data.dataset
    torch.utils.data.distributed torch.utils.data.sampler
"""
"""The modules of what any file may call: nothing there executes a text or a file."""


class SettingsFile:
    """The settings of a Trainer in a file.

    Args:
        file: A file of YAML.
        allowed: Packages that the file may call, besides this library and parts of torch.
    """

    def __init__(self, file: str, allowed: Sequence[str] = ()) -> None:
        self._allowed = tuple(allowed)
        self._origins: dict[Place, str] = {(): file}  # the line, or the override, of each setting
        self._calls: dict[Any, Place] = {}  # by their code, as Hydra doesn't make partial calls
        self._texts: list[Place] = []

    def build(self, overrides: Sequence[str] = ()) -> Any:
        """Build the Trainer, with weights that its seed determines.

        Args:
            overrides: Texts KEY=VALUE, which replace settings.

        Raises:
            SettingsError: The file cannot be read, or a setting is unknown, refused or wrong.
        """
        tree = {"_target_": "composable.Trainer", **self._read(overrides), "_partial_": False}
        self._check(tree, ())
        try:
            with seed_context(tree.get("seed") or 0):
                return instantiate(tree, _convert_="all")
        except (InstantiationException, TypeError) as error:
            cause = error.__cause__ or error
            frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
            if any(one.f_globals.get("__name__", "").startswith(self._allowed) for one in frames):
                raise  # in a package of --allow, whose author needs the traceback
            # OmegaConf writes an item of a list as "a[0]" or "a0".
            key = "".join(_place("".join(re.findall(r"full_key: (.+)", str(error)))))
            place = max((one for one in self._origins if key.startswith("".join(one))), key=len)
            words, calls = re.findall(r"\w+", str(cause)), [one.f_code for one in frames]
            if not key and (code := next((c for c in calls if c in self._calls), None)):
                place = self._calls[code]
            texts = [text for text in self._texts if text[:-1] == place]
            named = [(*place, word) for word in words if word not in _KEYS]
            named += texts if len(texts) == 1 else []  # a text in place of a number, most likely
            place = next((one for one in named if one in self._origins), place)
            self._refuse(place, str(cause) if " " in str(cause) else repr(cause))

    def _read(self, overrides: Sequence[str]) -> Any:
        """Return the settings as mappings, lists and values."""
        file = self._origins[()]
        try:
            text = Path(file).read_text(encoding="utf-8")
            node = yaml.compose(text, yaml.SafeLoader)
            if not isinstance(node, yaml.MappingNode):
                raise ValueError("it must have arguments of the Trainer, such as max_duration: 9ep")
            tree = OmegaConf.create(text)
            self._origins.update(_lines(node, file))
            for self._origins[()] in overrides:
                self._override(tree, self._origins[()])
            self._origins[()] = file
            return OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
        except _UNREADABLE as error:
            if (mark := getattr(error, "problem_mark", None)) and self._origins[()] == file:
                self._origins[()] += f":{mark.line + 1}"
            problem = getattr(error, "problem", error)
            self._refuse(_place(getattr(error, "full_key", None) or ""), problem)

    def _override(self, tree: Any, text: str) -> None:
        place = _place(text.partition("=")[0])
        if not place or "=" not in text:
            raise ValueError("write KEY=VALUE, such as seed=3")
        for inner in [origin for origin in self._origins if origin[: len(place)] == place]:
            del self._origins[inner]
        for i in range(1, len(place) + 1):
            self._origins.setdefault(place[:i], text)
        tree.merge_with_dotlist([text])

    def _check(self, value: Any, place: Place) -> None:
        """Check that each call in a tree is allowed, and has arguments that exist."""
        if isinstance(value, str) and place[-1] not in _KEYS:
            self._texts.append(place)
        if isinstance(value, str) and "${" in value:  # Hydra would resolve it
            self._refuse(place, f"{value!r} is an interpolation within an interpolation")
        if isinstance(value, dict) and "_target_" in value:
            target = self._find(value["_target_"], (*place, "_target_"))
            if place and (code := getattr(getattr(target, "__init__", target), "__code__", None)):
                self._calls[code] = place
            try:
                inspect.signature(target).bind_partial(**{k: None for k in value if k not in _KEYS})
            except TypeError as error:
                key, called = str(error).rpartition("argument ")[2].strip("'"), value["_target_"]
                table = {**CLASS_ARGUMENTS, "Trainer": ARGUMENTS}.get(called.split(".")[-1], {})
                advice = advice_on_argument(key, target, table)
                self._refuse((*place, key), f"{called} {error}{advice}")
            except ValueError:  # a function of C
                pass
        parts = value if isinstance(value, dict) else {}
        for name, one in enumerate(value) if isinstance(value, list) else parts.items():
            self._check(one, (*place, str(name)))

    def _find(self, name: Any, place: Place) -> Any:
        """Import what a name means, and check that a file may call it."""
        parents = tuple(f"{one}." for one in (*_PARTS.split(), *self._allowed))
        module, _, last = str(name).rpartition(".")
        root = f"{module.partition('.')[0]}."
        if any(parent.startswith(root) for parent in parents) and "._" not in name:
            try:
                found: Any = locate(name)
            except (ImportError, ErrorDuringImport) as error:
                self._refuse(place, error)
            if not callable(found):
                self._refuse(place, f"cannot call {name!r}{suggestion(last, dir(locate(module)))}")
            module = str(found.__module__)
            if module == "torch" or f"{module}.".startswith(parents):
                return found
        return self._refuse(place, f"{name!r} may run any code; it needs --allow {module or name}")

    def _refuse(self, place: Place, error: object) -> NoReturn:
        """Raise an error with the origin of a setting, or of the nearest one around it."""
        while place not in self._origins:
            place = place[:-1]
        text = re.split(r"\n\s*full_key", str(error))[0]
        raise SettingsError(f"{self._origins[place]}: {text}") from None


def _place(key: str) -> Place:
    return tuple(re.findall(r"[^.\[\]]+", key))


def _lines(node: yaml.Node, file: str, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield the line of each setting below a node of YAML."""
    parts = [(one, str(i), one) for i, one in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        parts = [(key, key.value, one) for key, one in node.value]
    for key, name, one in parts if isinstance(node, yaml.CollectionNode) else ():
        yield (*place, name), f"{file}:{key.start_mark.line + 1}"
        yield from _lines(one, file, (*place, name))
