"""The properties of a function of tensors or modules: one check each, and a table of all."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from composable._support.tree import leaves_of, map_tensors, tensors_of
from composable.testing.modules import description, same_values
from composable.testing.no_sync import NoSync
from composable.utils.reproducibility import (
    get_rng_state,
    preserve_rng,
    seed_all,
    seed_context,
    seed_torch,
)

Arguments = tuple[Any, ...] | Mapping[str, Any]
"""Positional arguments, or arguments by name."""

_DRAWS = ("draw", "offset")
"""The names of parameters for random draws."""

SIZE = 4
"""The default number of examples in a batch."""


class PropertyFailed(AssertionError):
    """A function does not have a property."""


class NotApplicableError(Exception):
    """A property does not apply to a function."""


@attrs.frozen(eq=False)
class Subject:
    """A function, with factories for its arguments."""

    function: Callable[..., Any]
    make: Callable[[int], Arguments]
    """A function of the batch size that returns the arguments."""
    inputs: Callable[[int], Any]
    """A function of the batch size that returns the inputs of a module."""
    sized: bool = True
    """Whether the arguments depend on the batch size."""

    @property
    def draws(self) -> bool:
        """Whether it has a parameter `generator`."""
        return _generator(self.function) is not None

    def arguments(self, size: int = SIZE) -> Arguments:
        """Build new arguments, with the same values every time."""
        with seed_context(0):
            return self.make(size)

    def sample(self, size: int = SIZE) -> Any:
        """Build new inputs for a module, with the same values every time."""
        with seed_context(0):
            return self.inputs(size)

    def call(self, arguments: Arguments, *, seed: int = 0) -> Any:
        """Call the function, with a seeded generator if it takes one."""
        return call(self.function, arguments, seed=seed)

    def numbers(self, result: Any, inputs: Any) -> list[Tensor]:
        """Return the tensors of a result; for a module, its state and its outputs."""
        if not isinstance(result, nn.Module):
            return list(tensors_of(result))
        with preserve_rng():
            seed_torch(0)
            outputs = tensors_of(copy.deepcopy(result)(inputs))
            return [*result.state_dict().values(), *outputs]

    def drawn(self, size: int = SIZE) -> "Subject":
        """Return the same with the draw bound as a constant, made by its case on the CPU."""
        given = self.arguments(size)
        names = given if isinstance(given, Mapping) else _parameters(self.function)
        values = given.values() if isinstance(given, Mapping) else given
        named = dict(zip(names, values, strict=False))
        draws = {name: named.pop(name) for name in _DRAWS if name in named}
        if not draws:
            return self
        return attrs.evolve(self, function=partial(self.function, **draws), make=lambda _: named)

    def on(self, device: torch.device) -> "Subject":
        """Return the same on a device, with copies of modules, and with its draw on the CPU."""

        def leaf(value: Any) -> Any:
            return copy.deepcopy(value).to(device) if isinstance(value, nn.Module) else value

        moved = partial(map_tensors, lambda tensor: tensor.to(device), other=leaf)
        function = self.function
        if isinstance(function, partial):
            named = {n: v if n in _DRAWS else moved(v) for n, v in function.keywords.items()}
            function = partial(function.func, *moved(function.args), **named)
        drawn = attrs.evolve(self, function=moved(function)).drawn()
        return attrs.evolve(drawn, make=lambda size: moved(drawn.make(size)))

    def inner(self, size: int = SIZE) -> "Subject":
        """Return what a step calls: the function, or the module that it returns."""
        arguments = self.arguments(size)
        result = self.call(arguments) if _modules(arguments) else None
        if not isinstance(result, nn.Module):
            return self
        return Subject(result, lambda size: (self.inputs(size),), self.inputs, self.sized)


# --- the checks ---


def _pure(subject: Subject) -> None:
    """Check that no argument is modified: no tensor, no module, no container."""
    arguments, inputs = subject.arguments(), subject.sample()
    models = _modules(arguments)
    computed = [subject.numbers(model, inputs) for model in models]
    looks = [description(model) for model in models]
    structure = _structure(arguments)
    before = [(t, t._version, t.detach().clone()) for t in _every_tensor(arguments)]
    subject.call(arguments)
    if _structure(arguments) != structure:
        raise PropertyFailed("it modifies a container among its arguments")
    for tensor, version, value in before:
        if tensor._version != version or not same_values(tensor, value):
            raise PropertyFailed(
                f"it writes to a tensor among its arguments, of shape {list(value.shape)}"
            )
    if [description(model) for model in models] != looks:
        raise PropertyFailed("it modifies the model among its arguments")
    for model, old in zip(models, computed, strict=True):
        if not all(map(same_values, subject.numbers(model, inputs), old)):
            raise PropertyFailed("it changes the outputs of the model among its arguments")


def _generator_decides(subject: Subject) -> None:
    """Check that random results depend only on the generator."""
    results = []
    for seed in (1, 2):
        with preserve_rng():
            seed_all(seed)
            result = subject.call(subject.arguments())
            results.append(subject.numbers(result, subject.sample()))
    if len(results[0]) != len(results[1]) or not all(map(same_values, *results)):
        given = "the same generator" if subject.draws else "the same arguments"
        raise PropertyFailed(
            f"with {given}, its result depends on the seed of the global generators"
        )
    if not subject.draws:
        raise NotApplicableError("it takes no generator, and draws nothing")


def _global_generators(subject: Subject) -> None:
    """Check that the global generators of PyTorch, Python and NumPy are not used."""
    for used in used_by(lambda: subject.call(subject.arguments())):
        raise PropertyFailed(f"it uses {used}'s global generator")
    if isinstance((inner := subject.inner()).function, nn.Module):
        for used in used_by(lambda: inner.call(inner.arguments())):
            raise PropertyFailed(f"the model that it returns uses {used}'s global generator")


def _keeps(dtype: torch.dtype) -> Callable[[Subject], None]:
    def keeps(subject: Subject) -> None:
        subject = subject.drawn()
        given = subject.arguments()
        floats = [t for t in _every_tensor(given) if t.is_floating_point()]
        if not floats:
            raise NotApplicableError("no argument is a floating-point tensor")
        arguments = _converted(given, lambda t: t.to(dtype), lambda m: m.to(dtype))
        inputs = map_tensors(
            lambda t: t.to(dtype) if t.is_floating_point() else t, subject.sample()
        )
        results = subject.numbers(subject.call(arguments), inputs)
        found = [t for t in results if t.is_floating_point()]
        if not found:
            raise NotApplicableError("no result is a floating-point tensor")
        shapes = {t.shape for t in floats}
        # A weight or a count that is returned with the result may have a higher precision.
        for tensor in [t for t in found if t.shape in shapes] or found:
            if tensor.dtype != dtype:
                raise PropertyFailed(f"it returns {tensor.dtype} for {dtype}")

    keeps.__doc__ = f"Check that {str(dtype).removeprefix('torch.')} is preserved."
    return keeps


def _channels_last(subject: Subject) -> None:
    """Check that the channels-last memory format is preserved."""
    images = [t for t in _every_tensor(subject.arguments()) if _has_layout(t)]
    if not images and not _modules(subject.arguments()):
        raise NotApplicableError("no argument is a batch of images")
    arguments = _converted(subject.arguments(), _last, _module_last)
    result = subject.call(arguments)
    if isinstance(result, nn.Module):
        result = result(map_tensors(_last, subject.sample()))
    maps = [t for t in tensors_of(result) if _has_layout(t)]
    if not maps:
        raise NotApplicableError("no result is a batch of images")
    if not all(map(_lies_last, maps)):
        raise PropertyFailed("it returns channels-first images for channels-last images")


def _compile(subject: Subject) -> None:
    """Check that `torch.compile` compiles it into one graph with the same result."""
    inner = subject.inner()
    _without_generator(inner, "torch.compile does not support generators in a full graph")
    torch.compiler.reset()
    compiled = torch.compile(_apart(inner.function), fullgraph=True, backend="aot_eager")
    results = [_plainly(f, inner.arguments()) for f in (compiled, inner.function)]
    _agree(results[0], results[1], exactly=not inner.draws)


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function, with separate globals.

    Dynamo adds names to the globals of a function and deletes them at garbage collection, which
    fails if the globals were cleared before, as doctest does.
    """
    if not isinstance(function, FunctionType):
        return function
    apart = FunctionType(
        function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    apart.__kwdefaults__ = function.__kwdefaults__
    return apart


def _vmap(subject: Subject) -> None:
    """Check that `torch.func.vmap` over a stack of batches gives the result of a loop.

    Buffers that a model updates are stacked as well, as by `torch.func.stack_module_state`.
    """
    inner = subject.inner()
    _without_generator(inner, "torch.func.vmap does not support generators")
    leaves = [t.detach() for t in tensors_of(inner.arguments())]
    if not leaves:
        raise NotApplicableError("no argument is a tensor")
    updated = _updated_buffers(inner)
    stacks = [torch.stack([t.roll(by, 0) if t.ndim else t for by in range(3)]) for t in leaves]
    buffers = {name: torch.stack([buffer] * 3) for name, buffer in updated.items()}

    def of_one(own: dict[str, Tensor], *tensors: Tensor) -> list[Tensor]:
        arguments = _replaced(inner.arguments(), tensors)
        function: Any = inner.function
        if own:
            function = partial(torch.func.functional_call, function, own)
            arguments = (tuple(arguments),)
        return [*tensors_of(_apply(function, arguments)), *own.values()]

    def copied() -> dict[str, Tensor]:
        return {name: stack.clone() for name, stack in buffers.items()}

    with preserve_rng():
        together = torch.func.vmap(of_one, randomness="different")(copied(), *stacks)
    drawn = inner.draws or bool(used_by(lambda: of_one({}, *leaves)))
    separate = copied()
    for i in range(3):
        with preserve_rng():
            own = {name: stack[i] for name, stack in separate.items()}
            alone = of_one(own, *(stack[i] for stack in stacks))
        _agree([t[i] for t in together], alone, exactly=not drawn)


def _updated_buffers(subject: Subject) -> dict[str, Tensor]:
    """Return the buffers that a call of a module changes; none for a function."""
    if not isinstance(subject.function, nn.Module):
        return {}
    module = copy.deepcopy(subject.function)
    with preserve_rng():
        call(module, subject.arguments())
    before = dict(subject.function.named_buffers())
    return {
        name: before[name]
        for name, buffer in module.named_buffers()
        # Not by its version, which a batch norm doesn't increase.
        if not same_values(buffer, before[name])
    }


def _gradients(subject: Subject) -> None:
    """Check that gradients exist, and match finite differences."""
    inner = subject.inner().drawn(2)
    arguments = _converted(inner.arguments(2), lambda t: t.detach().double(), lambda m: m.double())
    function = inner.function
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    leaves = list(tensors_of(arguments))
    places = [i for i, t in enumerate(leaves) if t.is_floating_point() and t.numel()]
    if not places:
        raise NotApplicableError("no argument is a floating-point tensor")

    def of_floats(*floats: Tensor) -> tuple[Tensor, ...]:
        given = list(leaves)
        for place, tensor in zip(places, floats, strict=True):
            given[place] = tensor
        with preserve_rng():  # the same random numbers in each call
            seed_torch(0)
            results = tensors_of(call(function, _replaced(arguments, given)))
        return tuple(t for t in results if t.is_floating_point())

    floats = [leaves[i].clone().requires_grad_() for i in places]
    results = of_floats(*floats)
    if not results:
        raise NotApplicableError("no result is a floating-point tensor")
    if not any(t.requires_grad for t in results):
        raise PropertyFailed("no result has a gradient with respect to its arguments")

    def with_gradient(*floats: Tensor) -> tuple[Tensor, ...]:
        return tuple(t for t in of_floats(*floats) if t.requires_grad)

    with preserve_rng():
        gradcheck(with_gradient, floats, fast_mode=True)


def _no_sync(subject: Subject) -> None:
    """Check that it never synchronizes the host with the device."""
    inner = subject.inner()
    arguments = inner.arguments()
    with NoSync():
        inner.call(arguments)
    # A function may not run there, for example with constants on the CPU.
    with suppress(RuntimeError, ValueError):
        no_copies(inner)
    if torch.cuda.is_available():
        no_sync_on(torch.device("cuda"), inner)


def no_copies(subject: Subject) -> None:
    """Call it on the device "meta", where copies from the host are seen without a GPU."""
    moved = subject.on(torch.device("meta"))
    arguments = moved.arguments()
    with NoSync():
        moved.call(arguments)


def no_sync_on(device: torch.device, subject: Subject, *, generator: str = "cpu") -> None:
    """Call it on a device, where PyTorch raises at every synchronization."""
    moved = subject.on(device)
    act = partial(call, moved.function, moved.arguments(), device=generator)
    act()  # the first call may synchronize to initialize the device
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        act()
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _batch_of(size: int, words: str) -> Callable[[Subject], None]:
    def takes(subject: Subject) -> None:
        if not subject.sized:
            raise NotApplicableError("its arguments do not depend on the batch size")
        results = subject.numbers(subject.call(subject.arguments(size)), subject.sample(size))
        if not all(bool(t.isfinite().all()) for t in results):
            raise PropertyFailed("its result is not finite")

    takes.__doc__ = f"Check that {words} gives a finite result."
    return takes


PROPERTIES: dict[str, Callable[[Subject], None]] = {
    "pure": _pure,
    "generator": _generator_decides,
    "global_generators": _global_generators,
    "float16": _keeps(torch.float16),
    "bfloat16": _keeps(torch.bfloat16),
    "float64": _keeps(torch.float64),
    "channels_last": _channels_last,
    "compile": _compile,
    "vmap": _vmap,
    "gradients": _gradients,
    "no_sync": _no_sync,
    "batch_of_one": _batch_of(1, "a batch of one example"),
    "empty_batch": _batch_of(0, "an empty batch"),
}
"""The checks by name. A failed check raises `PropertyFailed`, or the function's error."""


# --- calling ---


def call(
    function: Callable[..., Any], arguments: Arguments, *, seed: int = 0, device: str = "cpu"
) -> Any:
    """Call a function, with a generator of this seed and on this device if it takes one."""
    if _generator(function) is None:
        return _apply(function, arguments)
    return _apply(function, arguments, generator=torch.Generator(device).manual_seed(seed))


def _plainly(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    with preserve_rng():
        seed_torch(0)
        return list(tensors_of(_apply(function, arguments)))


def used_by(act: Callable[[], Any]) -> list[str]:
    """List the libraries whose global generators a call advances."""
    with preserve_rng():
        before = get_rng_state()
        act()
        after = get_rng_state()
    return [who for who, state in after.items() if not _same_state(state, before.get(who, state))]


def _apply(function: Callable[..., Any], arguments: Arguments, **more: Any) -> Any:
    if isinstance(arguments, Mapping):
        return function(**arguments, **more)
    return function(*arguments, **more)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _generator(function: Callable[..., Any]) -> inspect.Parameter | None:
    return _parameters(function).get("generator")


def _without_generator(subject: Subject, reason: str) -> None:
    taken = _generator(subject.function)
    if taken is not None and taken.default is inspect.Parameter.empty:
        raise NotApplicableError(f"it requires a generator, and {reason}")


# --- arguments ---


def _modules(arguments: Any) -> list[nn.Module]:
    """List the modules among the arguments."""
    return [leaf for leaf in leaves_of(arguments) if isinstance(leaf, nn.Module)]


def _every_tensor(arguments: Arguments) -> Iterator[Tensor]:
    yield from tensors_of(arguments)
    for model in _modules(arguments):
        yield from (*model.parameters(), *model.buffers())


def _structure(arguments: Any) -> Any:
    """Describe the containers and their items."""
    if isinstance(arguments, Mapping):
        return {key: _structure(value) for key, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return [_structure(value) for value in arguments]
    return id(arguments) if isinstance(arguments, (Tensor, nn.Module)) else repr(arguments)


def _converted(
    arguments: Arguments,
    tensor: Callable[[Tensor], Tensor],
    module: Callable[[nn.Module], nn.Module],
) -> Arguments:
    """Convert the floating-point tensors and the modules among the arguments."""
    converted: Arguments = map_tensors(
        lambda t: tensor(t) if t.is_floating_point() else t,
        arguments,
        other=lambda v: module(v) if isinstance(v, nn.Module) else v,
    )
    return converted


def _replaced(arguments: Arguments, tensors: Any) -> Arguments:
    """Replace the tensors among the arguments, in order."""
    rest = iter(tensors)
    replaced: Arguments = map_tensors(lambda _: next(rest), arguments)
    return replaced


def _has_layout(tensor: Tensor) -> bool:
    """Return whether channels-first and channels-last strides differ for this shape."""
    return tensor.ndim == 4 and tensor.is_floating_point() and min(tensor.shape[1:]) > 1


def _lies_last(tensor: Tensor) -> bool:
    """Return whether the channels are adjacent in memory; a crop of images may have gaps."""
    _, channel, row, column = tensor.stride()
    return channel < column <= row


def _last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _module_last(module: nn.Module) -> nn.Module:
    moved: nn.Module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


# --- comparing ---


def _agree(ours: list[Tensor], theirs: list[Tensor], *, exactly: bool) -> None:
    """Check that tensors are equal up to rounding, or only in shape if they are random."""
    if len(ours) != len(theirs):
        raise PropertyFailed(f"it returns {len(ours)} tensors instead of {len(theirs)}")
    for our, other in zip(ours, theirs, strict=True):
        if exactly:
            assert_close(our, other, equal_nan=True)
        elif (our.shape, our.dtype) != (other.shape, other.dtype):
            raise PropertyFailed(
                f"it returns shape {list(our.shape)} instead of {list(other.shape)}"
            )


def _same_state(one: Any, other: Any) -> bool:
    """Return whether two states of a generator are equal."""
    if isinstance(one, (tuple, list)):
        return all(map(_same_state, one, other))
    if hasattr(one, "tolist"):  # a PyTorch tensor, or a NumPy array; NumPy is not imported here
        return bool((one == other).all())
    return bool(one == other)
