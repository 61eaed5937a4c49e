"""What can be asked of a function of tensors or modules: a question each, and their table."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from composable.core.batch import map_tensors, tensors_of
from composable.testing.modules import description
from composable.testing.no_sync import NoSync
from composable.utils.reproducibility import (
    get_rng_state,
    preserve_rng,
    seed_all,
    seed_context,
    seed_torch,
)

__all__ = ["PROPERTIES", "Inapplicable", "Refuted", "Subject", "no_sync_on"]

Arguments = tuple[Any, ...] | Mapping[str, Any]
"""Positional arguments, or arguments by name."""

_DRAWS = ("draw", "offset")
"""What a parameter is called that takes a draw."""

SIZE = 4
"""Examples in a batch, where nothing is asked about that."""


class Refuted(AssertionError):
    """A function doesn't have a property."""


class Inapplicable(Exception):
    """A question that can't be asked of a function."""


@attrs.frozen(eq=False)
class Subject:
    """A function, and how to make arguments for it."""

    function: Callable[..., Any]
    make: Callable[[int], Arguments]
    """The arguments, by the size of the batch."""
    inputs: Callable[[int], Any]
    """What a module is called on, by the size of the batch."""
    sized: bool = True
    """Whether the arguments depend on the size."""

    @property
    def draws(self) -> bool:
        """Whether it takes a generator."""
        return _generator(self.function) is not None

    def arguments(self, size: int = SIZE) -> Arguments:
        """New arguments, the same ones every time."""
        with seed_context(0):
            return self.make(size)

    def sample(self, size: int = SIZE) -> Any:
        """New inputs for a module, the same ones every time."""
        with seed_context(0):
            return self.inputs(size)

    def call(self, arguments: Arguments, *, seed: int = 0) -> Any:
        """The result, drawn from a generator where it takes one."""
        return call(self.function, arguments, seed=seed)

    def numbers(self, result: Any, inputs: Any) -> list[Tensor]:
        """The tensors of a result; a module's are its own and what it makes of the inputs."""
        if not isinstance(result, nn.Module):
            return list(tensors_of(result))
        with preserve_rng():
            seed_torch(0)
            outputs = tensors_of(copy.deepcopy(result)(inputs))
            return [*result.state_dict().values(), *outputs]

    def drawn(self, size: int = SIZE) -> "Subject":
        """The same with its draw for a constant, of its own type and on the CPU."""
        given = self.arguments(size)
        names = given if isinstance(given, Mapping) else _parameters(self.function)
        values = given.values() if isinstance(given, Mapping) else given
        named = dict(zip(names, values, strict=False))
        draws = {name: named.pop(name) for name in _DRAWS if name in named}
        if not draws:
            return self
        return attrs.evolve(self, function=partial(self.function, **draws), make=lambda _: named)

    def inner(self, size: int = SIZE) -> "Subject":
        """What is called at every step: the function, or the module that it returns."""
        arguments = self.arguments(size)
        result = self.call(arguments) if _modules(arguments) else None
        if not isinstance(result, nn.Module):
            return self
        return Subject(result, lambda size: (self.inputs(size),), self.inputs, self.sized)


# --- the questions ---


def _pure(subject: Subject) -> None:
    """It changes no argument: no tensor, no module, no container."""
    arguments, inputs = subject.arguments(), subject.sample()
    models = _modules(arguments)
    computed = [subject.numbers(model, inputs) for model in models]
    looks = [description(model) for model in models]
    structure = _structure(arguments)
    before = [(t, t._version, t.detach().clone()) for t in _every_tensor(arguments)]
    subject.call(arguments)
    if _structure(arguments) != structure:
        raise Refuted("it changes what a container holds that it is given")
    for tensor, version, value in before:
        if tensor._version != version or not _same(tensor, value):
            raise Refuted(f"it writes to a tensor that it is given, of shape {list(value.shape)}")
    if [description(model) for model in models] != looks:
        raise Refuted("it changes the model that it is given")
    for model, old in zip(models, computed, strict=True):
        if not all(map(_same, subject.numbers(model, inputs), old)):
            raise Refuted("the model that it was given computes something else than before")


def _generator_decides(subject: Subject) -> None:
    """What it draws depends on the generator that it is given, and on nothing else."""
    results = []
    for seed in (1, 2):
        with preserve_rng():
            seed_all(seed)
            result = subject.call(subject.arguments())
            results.append(subject.numbers(result, subject.sample()))
    if len(results[0]) != len(results[1]) or not all(map(_same, *results)):
        asked = "the same generator" if subject.draws else "the same arguments"
        raise Refuted(f"with {asked} it gives another result when the global ones are seeded anew")
    if not subject.draws:
        raise Inapplicable("it takes no generator, and draws nothing")


def _global_generators(subject: Subject) -> None:
    """It moves no global generator: not PyTorch's, not Python's, not NumPy's."""
    for mover in _moved_by(lambda: subject.call(subject.arguments())):
        raise Refuted(f"it moves {mover}'s global generator")
    if isinstance((inner := subject.inner()).function, nn.Module):
        for mover in _moved_by(lambda: inner.call(inner.arguments())):
            raise Refuted(f"the model that it returns moves {mover}'s global generator")


def _keeps(dtype: torch.dtype) -> Callable[[Subject], None]:
    def keeps(subject: Subject) -> None:
        subject = subject.drawn()
        given = subject.arguments()
        floats = [t for t in _every_tensor(given) if t.is_floating_point()]
        if not floats:
            raise Inapplicable("no argument is a float")
        arguments = _converted(given, lambda t: t.to(dtype), lambda m: m.to(dtype))
        inputs = map_tensors(
            lambda t: t.to(dtype) if t.is_floating_point() else t, subject.sample()
        )
        results = subject.numbers(subject.call(arguments), inputs)
        found = [t for t in results if t.is_floating_point()]
        if not found:
            raise Inapplicable("no result is a float")
        shapes = {t.shape for t in floats}
        # A weight or a count that goes with the result may be of a more precise kind.
        for tensor in [t for t in found if t.shape in shapes] or found:
            if tensor.dtype != dtype:
                raise Refuted(f"it gives {tensor.dtype} for {dtype}")

    keeps.__doc__ = f"For {str(dtype).removeprefix('torch.')} it gives results of that type."
    return keeps


def _channels_last(subject: Subject) -> None:
    """Images that lie in memory with the channels last come back so."""
    images = [t for t in _every_tensor(subject.arguments()) if _has_layout(t)]
    if not images and not _modules(subject.arguments()):
        raise Inapplicable("no argument has the four dimensions of images")
    arguments = _converted(subject.arguments(), _last, _module_last)
    result = subject.call(arguments)
    if isinstance(result, nn.Module):
        results = list(tensors_of(result(map_tensors(_last, subject.sample()))))
    else:
        results = list(tensors_of(result))
    maps = [t for t in results if _has_layout(t)]
    if not maps:
        raise Inapplicable("no result has the four dimensions of images")
    if not all(map(_lies_last, maps)):
        raise Refuted("it gives images with the channels first for images with the channels last")


def _compile(subject: Subject) -> None:
    """`torch.compile` makes one graph of it, which gives the same."""
    inner = subject.inner()
    _without_generator(inner, "torch.compile takes none into a full graph")
    torch.compiler.reset()
    compiled = torch.compile(_apart(inner.function), fullgraph=True, backend="aot_eager")
    results = [_plainly(f, inner.arguments()) for f in (compiled, inner.function)]
    _agree(results[0], results[1], exactly=not inner.draws)


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with globals of its own.

    Dynamo adds names to a function's globals and takes them out when it is collected, which fails
    where somebody cleared them first, as doctest does.
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
    """`torch.func.vmap` maps it over a stack of batches, with the result of a loop."""
    inner = subject.inner()
    _without_generator(inner, "torch.func.vmap takes none")
    leaves = [t.detach() for t in tensors_of(inner.arguments())]
    if not leaves:
        raise Inapplicable("no argument is a tensor")
    stacks = [torch.stack([_rolled(t, by) for by in range(3)]) for t in leaves]

    def of_one(*tensors: Tensor) -> list[Tensor]:
        arguments = _replaced(inner.arguments(), tensors)
        return list(tensors_of(_bound(inner.function, arguments)()))

    with preserve_rng():
        together = torch.func.vmap(of_one, randomness="different")(*stacks)
    drawn = inner.draws or bool(_moved_by(lambda: of_one(*leaves)))
    for i in range(3):
        with preserve_rng():
            alone = of_one(*(stack[i] for stack in stacks))
        _agree([t[i] for t in together], alone, exactly=not drawn)


def _gradients(subject: Subject) -> None:
    """Gradients flow through it, and are those of finite differences."""
    inner = subject.inner().drawn(2)
    arguments = _converted(inner.arguments(2), lambda t: t.detach().double(), lambda m: m.double())
    function = inner.function
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    leaves = list(tensors_of(arguments))
    places = [i for i, t in enumerate(leaves) if t.is_floating_point() and t.numel()]
    if not places:
        raise Inapplicable("no argument is a float")

    def of_floats(*floats: Tensor) -> tuple[Tensor, ...]:
        given = list(leaves)
        for place, tensor in zip(places, floats, strict=True):
            given[place] = tensor
        with preserve_rng():  # what it draws, it draws alike each time
            seed_torch(0)
            results = tensors_of(call(function, _replaced(arguments, given)))
        return tuple(t for t in results if t.is_floating_point())

    floats = [leaves[i].clone().requires_grad_() for i in places]
    results = of_floats(*floats)
    if not results:
        raise Inapplicable("no result is a float")
    if not any(t.requires_grad for t in results):
        raise Refuted("no result has a gradient with respect to its arguments")

    def with_gradient(*floats: Tensor) -> tuple[Tensor, ...]:
        return tuple(t for t in of_floats(*floats) if t.requires_grad)

    with preserve_rng():
        gradcheck(with_gradient, floats, fast_mode=True)


def _no_sync(subject: Subject) -> None:
    """It never makes the host wait for the device."""
    inner = subject.inner()
    arguments = inner.arguments()
    with NoSync():
        inner.call(arguments)
    if torch.cuda.is_available():
        no_sync_on(torch.device("cuda"), inner)


def no_sync_on(device: torch.device, subject: Subject) -> None:
    """Call it on a device, with an error for everything that waits there: torch's own."""
    function, arguments = subject.drawn().function, subject.drawn().arguments()
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).to(device)
    arguments = map_tensors(lambda t: t.to(device), arguments)
    call(function, arguments)  # the first call sets up what the device needs, which may wait
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(function, arguments)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _batch_of(size: int, words: str) -> Callable[[Subject], None]:
    def takes(subject: Subject) -> None:
        if not subject.sized:
            raise Inapplicable("its arguments don't depend on the size of a batch")
        results = subject.numbers(subject.call(subject.arguments(size)), subject.sample(size))
        if not all(bool(t.isfinite().all()) for t in results):
            raise Refuted("it gives numbers that are not finite")

    takes.__doc__ = f"It takes {words}, and gives finite numbers."
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
"""The questions by name. One raises `Refuted`, or the function's own error, where it says no."""


# --- calling ---


def call(function: Callable[..., Any], arguments: Arguments, *, seed: int = 0) -> Any:
    """The result, drawn from a generator of this seed where the function takes one."""
    bound = _bound(function, arguments)
    if _generator(function) is None:
        return bound()
    return bound(generator=torch.Generator().manual_seed(seed))


def _plainly(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    with preserve_rng():
        seed_torch(0)
        return list(tensors_of(_bound(function, arguments)()))


def _moved_by(act: Callable[[], Any]) -> list[str]:
    """Whose global generators an act moves."""
    with preserve_rng():
        before = get_rng_state()
        act()
        after = get_rng_state()
    return [who for who, state in after.items() if not same_state(state, before.get(who, state))]


def _bound(function: Callable[..., Any], arguments: Arguments) -> Callable[..., Any]:
    def bound(**more: Any) -> Any:
        if isinstance(arguments, Mapping):
            return function(**arguments, **more)
        return function(*arguments, **more)

    return bound


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _generator(function: Callable[..., Any]) -> inspect.Parameter | None:
    return _parameters(function).get("generator")


def _without_generator(subject: Subject, why: str) -> None:
    taken = _generator(subject.function)
    if taken is not None and taken.default is inspect.Parameter.empty:
        raise Inapplicable(f"it needs a generator, and {why}")


# --- looking into arguments ---


def _modules(arguments: Any) -> list[nn.Module]:
    """The modules among the arguments."""
    values = arguments.values() if isinstance(arguments, Mapping) else arguments
    return [value for value in values if isinstance(value, nn.Module)]


def _every_tensor(arguments: Arguments) -> Iterator[Tensor]:
    yield from tensors_of(arguments)
    for model in _modules(arguments):
        yield from (*model.parameters(), *model.buffers())


def _structure(arguments: Any) -> Any:
    """The containers, and who is in them."""
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
    """The arguments with their floats converted."""
    converted: Any = map_tensors(lambda t: tensor(t) if t.is_floating_point() else t, arguments)
    if isinstance(converted, Mapping):
        return {k: module(v) if isinstance(v, nn.Module) else v for k, v in converted.items()}
    return tuple(module(v) if isinstance(v, nn.Module) else v for v in converted)


def _replaced(arguments: Arguments, tensors: Any) -> Arguments:
    """The arguments with other tensors, in order."""
    rest = iter(tensors)
    replaced: Arguments = map_tensors(lambda _: next(rest), arguments)
    return replaced


def _rolled(tensor: Tensor, by: int) -> Tensor:
    """The same rows from another one on."""
    return tensor.roll(by, 0) if tensor.ndim else tensor.clone()


def _has_layout(tensor: Tensor) -> bool:
    """Whether channels first and channels last can be told apart."""
    return tensor.ndim == 4 and tensor.is_floating_point() and min(tensor.shape[1:]) > 1


def _lies_last(tensor: Tensor) -> bool:
    """Whether the channels are next to one another; a crop of such images has gaps."""
    _, channel, row, column = tensor.stride()
    return channel < column <= row


def _last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _module_last(module: nn.Module) -> nn.Module:
    moved: nn.Module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


# --- comparing ---


def _agree(ours: list[Tensor], theirs: list[Tensor], *, exactly: bool) -> None:
    """The same numbers to rounding; of what is drawn anew, the same shapes."""
    if len(ours) != len(theirs):
        raise Refuted(f"it gives {len(ours)} tensors in place of {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if exactly:
            assert_close(one, other, equal_nan=True)
        elif (one.shape, one.dtype) != (other.shape, other.dtype):
            raise Refuted(f"it gives {list(one.shape)} in place of {list(other.shape)}")


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the bit; NaN is equal to itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal."""
    if isinstance(one, (tuple, list)):
        return all(map(same_state, one, other))
    if hasattr(one, "tolist"):  # of torch, or of NumPy, which is not imported here
        return bool((one == other).all())
    return bool(one == other)
