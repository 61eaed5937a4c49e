"""Compilation: call the model of a run through functions that `torch.compile` compiles.

The state keeps the plain module, so names, checkpoints, averages and surgeries are the same as
without compilation. The functions take the module as an argument: `torch.compile(model)` would
rename parameters, and `Sequential.compile()` compiles nothing.

Which graph a batch goes through depends on the batch and the state, and not on earlier batches.
Otherwise a resumed run would differ: by default, PyTorch replaces a graph by one with dynamic
sizes, whose results differ in the last bits, once it has seen two sizes.
"""

import inspect
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import torch
from torch import nn

from composable._support.tree import tensors_of
from composable._support.warn import warn_user
from composable.core.algorithm import Algorithm, Stage
from composable.core.state import State
from composable.engines.modules import sparse_tables
from composable.functional import NGramEmbedding
from composable.plan.compatibility import occurrences

_OPTIONS = ("mode", "fullgraph", "dynamic", "backend", "options")

Sizes: TypeAlias = tuple[torch.Size, ...]


class CompilationWarning(UserWarning):
    """A model, or some of its calls, are not compiled as requested."""


def compile_outputs(
    state: State, options: bool | Mapping[str, Any], algorithms: Sequence[Algorithm]
) -> Callable[[State], Any]:
    """Return the compiled function that computes the outputs of a run.

    Args:
        state: The state with the model.
        options: What `check_compile` returned.
        algorithms: The algorithms of the run.

    Raises:
        ValueError: The model has a TorchScript module, or tables of n-grams with sparse gradients.
        RuntimeError: There is no C++ compiler.
    """
    _check_compilable(state, options)
    given = options if isinstance(options, Mapping) else {}
    resizes = any(_resizes(one.algorithm) for a in algorithms for one in occurrences(a))
    dynamic = given.get("dynamic")
    return CompiledForward(given, (True if resizes else None) if dynamic is None else dynamic)


def _resizes(algorithm: Algorithm) -> bool:
    writes = algorithm.writes
    return algorithm.stage is Stage.RESIZE and "batch" in writes and "model" not in writes


def _call(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


_count = itertools.count()


def _fresh_call(name: str) -> Callable[..., Any]:
    """Return a copy of `_call` with separate graphs: PyTorch keeps graphs by code object.

    The number makes the name unique: PyTorch keeps the sizes that it has seen by the name.
    """
    code = _call.__code__.replace(co_name=f"{name}_{next(_count)}")
    return types.FunctionType(code, _call.__globals__)


@attrs.define(eq=False)
class CompiledForward:
    """Calls the model of a state through compiled functions.

    There is one function for each mode of the model, each set of frozen parameters and, unless
    sizes are dynamic, each set of sizes of the inputs, so that none of them replaces another's
    graph. A model that an algorithm puts in the place of another is compiled if its structure
    differs; an average of its weights goes through the same graphs.
    """

    options: Mapping[str, Any]
    """Options of `torch.compile`."""
    dynamic: bool | None = None
    """Whether graphs are for inputs of all sizes. None: a graph for each set of sizes, up to the
    recompile limit of PyTorch, and one for all others."""
    _functions: dict[tuple[Any, ...], Callable[..., Any]] = attrs.field(init=False, factory=dict)

    def __call__(self, state: State) -> Any:
        """Call the model on the batch."""
        call = partial(self._call, state.model, state.frozen)
        return state.evolve_unchecked(model=call).forward()

    def _call(self, model: nn.Module, frozen: frozenset[str], *args: Any, **kwargs: Any) -> Any:
        mode = model.training, frozen
        sizes = self._sizes(mode, (args, kwargs)) if self.dynamic is None else None
        key = (*mode, sizes)
        function = self._functions.get(key)
        if function is not None:
            return _watch(function, model, *args, **kwargs)
        first, before = not self._functions, _count_graphs()
        function = self._functions[key] = self._compiled(model, sizes)
        outputs = _watch(function, model, *args, **kwargs)
        if first and _count_graphs() == before:
            warn_user(
                f"torch.compile compiles nothing of {type(model).__name__}; find the cause with "
                "TORCH_LOGS=graph_breaks, or pass compile=False.",
                CompilationWarning,
            )
        return outputs

    def _sizes(self, mode: tuple[bool, frozenset[str]], inputs: Any) -> Sizes | None:
        """Return the sizes of the inputs, or None where they are one set of sizes too many."""
        sizes = tuple(tensor.shape for tensor in tensors_of(inputs))
        if (*mode, sizes) in self._functions:
            return sizes
        if (*mode, None) in self._functions:
            return None
        most = torch._dynamo.config.recompile_limit
        if sum(key[:2] == mode for key in self._functions) < most:
            return sizes
        warn_user(
            f"the model has been compiled for {most} sets of input sizes; others share a graph "
            "with dynamic sizes from now on, and after a resume, results may differ in the last "
            "bits. Pass compile={'dynamic': True} for such a graph from the start.",
            CompilationWarning,
        )
        return None

    def _compiled(self, model: nn.Module, sizes: Sizes | None) -> Callable[..., Any]:
        call = _fresh_call(f"{type(model).__name__}_{'train' if model.training else 'eval'}")
        dynamic = self.dynamic if self.dynamic is not None or sizes is not None else True
        options: dict[str, Any] = {**_copied(self.options), "dynamic": dynamic, **_ISOLATION}
        compiled: Callable[..., Any] = torch.compile(call, **options)
        return compiled


_ISOLATION = (
    {"isolate_recompiles": True}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters  # torch >= 2.12
    else {}
)


def _count_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


# --- options ---


def check_compile(given: Any) -> bool | dict[str, Any]:
    """Return whether to compile the model, or the options of `torch.compile`.

    Raises:
        TypeError: It is neither a bool nor a mapping, or an option is of the wrong type.
        ValueError: There is no such option, or `torch.compile` doesn't allow its value.
    """
    if isinstance(given, bool):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(
            f"compile={given!r} must be True, False, or a mapping of options of torch.compile, "
            "such as {'mode': 'max-autotune'}."
        )
    options = dict(given)
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ValueError(f"compile has the options {unknown}; it may have {', '.join(_OPTIONS)}.")
    for name, kinds, allowed in (
        ("fullgraph", bool, "True or False"),
        ("dynamic", (bool, types.NoneType), "True, False or None"),
        ("options", (Mapping, types.NoneType), "a mapping of names to values"),
        ("mode", (str, types.NoneType), "a string, such as 'max-autotune'"),
        ("backend", (str, Callable), "a function, or a name of torch.compiler.list_backends()"),
    ):
        if name in options and not isinstance(options[name], kinds):  # type: ignore[arg-type]
            raise TypeError(f"compile={{{name!r}: {options[name]!r}}} must have {allowed} there.")
    try:
        torch.compile(lambda value: value, **_copied(options))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"compile={options!r} is not accepted by torch.compile: {str(error)[:300]}"
        ) from error
    return options or True


def _copied(options: Mapping[str, Any]) -> dict[str, Any]:
    """Copy options, since `torch.compile` removes entries of `options["options"]`."""
    inner = options.get("options")
    return dict(options) if inner is None else {**options, "options": dict(inner)}


def _check_compilable(state: State, options: bool | Mapping[str, Any]) -> None:
    """Check that the model of a state can be compiled, on this machine."""
    for name, module in state.model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"compile={options!r} can't compile {name or 'model'}, a TorchScript module "
                f"({type(module).__name__}); pass the module that it was made from, or "
                "compile=False."
            )
    backend = options.get("backend", "inductor") if isinstance(options, Mapping) else "inductor"
    if backend == "inductor" and sparse_tables(state, (NGramEmbedding,)):
        raise ValueError(
            f"compile={options!r} does not support sparse gradients of n-grams: Inductor fails in "
            "some graphs. Use sparse=False, compile=False or compile={'backend': 'aot_eager'}."
        )


# --- what PyTorch would do silently ---


def _watch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a compiled function, and notice hooks of modules.

    By default, PyTorch ignores hooks that are registered or removed after a compilation.
    """
    config = torch._dynamo.config
    held, config.skip_nnmodule_hook_guards = config.skip_nnmodule_hook_guards, False
    try:
        return function(*args, **kwargs)
    finally:
        config.skip_nnmodule_hook_guards = held
