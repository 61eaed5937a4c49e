"""The options of compilation: what `torch.compile` accepts, and what it can compile here."""

import types
from collections.abc import Mapping
from typing import Any

import torch

from composable.core.state import State

__all__ = ["check_compilable", "check_compile", "copied"]

_OPTIONS = ("mode", "fullgraph", "dynamic", "backend", "options")


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
    ):
        if name in options and not isinstance(options[name], kinds):
            raise TypeError(f"compile={{{name!r}: {options[name]!r}}} must have {allowed} there.")
    _check_backend(options.get("backend", "inductor"))
    try:
        torch.compile(_identity, **copied(options))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"compile={options!r} is not accepted by torch.compile: {str(error)[:300]}"
        ) from error
    return options or True


def _identity(value: Any) -> Any:
    return value


def copied(options: Mapping[str, Any]) -> dict[str, Any]:
    """Copy options, since `torch.compile` removes entries of `options["options"]`."""
    inner = options.get("options")
    return dict(options) if inner is None else {**options, "options": dict(inner)}


def _check_backend(backend: Any) -> None:
    if callable(backend):
        return
    known = torch.compiler.list_backends()
    if not isinstance(backend, str) or backend not in torch._dynamo.list_backends(None):
        raise ValueError(
            f"compile={{'backend': {backend!r}}} must be a function, or one of "
            f"{', '.join(map(repr, known))}."
        )


def check_compilable(state: State, options: bool | Mapping[str, Any]) -> None:
    """Check that the model of a state can be compiled, on this machine.

    Raises:
        ValueError: The model has a TorchScript module.
        RuntimeError: There is no C++ compiler.
    """
    if not options:
        return
    for name, module in state.model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"compile={options!r} can't compile {name or 'model'}, a TorchScript module "
                f"({type(module).__name__}); pass the module that it was made from, or "
                "compile=False."
            )
    backend = options.get("backend", "inductor") if isinstance(options, Mapping) else "inductor"
    if backend == "inductor" and state.device.type == "cpu":
        _check_cpp_compiler()


def _check_cpp_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        raise RuntimeError(
            "compile=True needs a C++ compiler on the CPU, and finds none; install g++ or clang, "
            "or set the environment variable CXX to its path, or pass compile=False or "
            "compile={'backend': 'aot_eager'}, which compiles no code."
        ) from error
