"""The weights with which a run is evaluated, and their exchange with the trained ones.

During a call of the Trainer the model holds the training weights. Between calls it holds the
evaluated ones: the averages of algorithms and schedule-free optimizers, or the best checkpoint's
weights. Values are exchanged in place, so that tied parameters, optimizers and CUDA graphs keep
their tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from typing_extensions import TypedDict

from composable._support.dtensors import LentModel, local_part
from composable._support.warn import warn_user
from composable.core.algorithm import leaves
from composable.core.event import Event
from composable.core.state import State
from composable.core.stateful import SavedFields, saved
from composable.engines.modules import bind_loss
from composable.functional import with_tensors
from composable.optim.multi import schedule_free_parts
from composable.optim.schedule_free import ScheduleFree
from composable.plan.plan import Plan
from composable.resume.modules import module_tensors
from composable.trainer.parameters import temporary_weights


class ChangedWeightsWarning(UserWarning):
    """The weights of an averaging run were changed between two calls of its Trainer."""


_NONE: Mapping[str, Any] = MappingProxyType({})


class Weights(NamedTuple):
    """Values of tensors by name, for the model and for the module that computes the loss."""

    model: Mapping[str, Tensor] = _NONE
    loss_fn: Mapping[str, Tensor] = _NONE


class BestWeights(TypedDict):
    """Values of tensors, and the averages and the memory of the algorithms that determine them."""

    model: dict[str, Any]
    loss_fn: dict[str, Any]
    averages: dict[str, Any]
    memory: dict[str, Any]


@attrs.define(eq=False)
class EvaluatedWeights(SavedFields):
    """The evaluated weights of a run: a part that its checkpoints save.

    Args:
        plan: Returns the plan, whose changes to the model at `EVAL_START` determine the evaluated
            weights.
        strict: Whether to raise an error, and not to warn, if the evaluated model has other
            parameters or buffers than the trained one, so that they cannot be exchanged.
    """

    plan: Callable[[], Plan]
    strict: bool = False
    best: BestWeights | None = saved(BestWeights | None, default=None)
    """The weights of the best checkpoint, from the end of training until it continues."""
    installed: bool = False
    """Whether the model holds the evaluated weights."""
    _held: list[tuple[Tensor, Tensor]] = attrs.field(factory=list)
    """Tensors of the model, and their training values."""
    _switched: list[ScheduleFree] = attrs.field(factory=list)
    """The optimizers that are in evaluation mode while the weights are installed."""
    _kept: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    """The averages and the memory of the training weights, while `best` has the used ones."""
    _left: Any = None
    """The names and shapes of the tensors when the last call ended, and the marks of changes."""

    def of(self, state: State) -> Weights:
        """Return the tensors whose evaluated values differ from the model's."""
        if self.best is not None:
            return Weights(self.best["model"], self.best["loss_fn"])
        averages = averaged_weights(state.model, state.optimizers)
        loss = averaged_weights(loss_module_of(state), state.optimizers)
        model = with_tensors(state.model, averages) if averages else state.model
        for algorithm in self.plan().transforms(Event.EVAL_START):
            if "model" not in algorithm.writes:
                continue
            model = algorithm(Event.EVAL_START, state.evolve(model=model)).model
        return self._in(model, state, loss)

    def _in(self, model: nn.Module, state: State, loss_fn: Mapping[str, Tensor] = _NONE) -> Weights:
        """Return the tensors of an evaluated model that differ from the state's model."""
        differing: set[str] = set()
        if model is not state.model and not isinstance(model, LentModel):
            differing = module_tensors(model).keys() ^ module_tensors(state.model).keys()
        if not differing:
            return Weights(dict(_replaced(state.model, model)), loss_fn)
        text = (
            "an algorithm replaced the model at EVAL_START by one with other parameters or "
            f"buffers, {sorted(differing)[:5]}, which the trained model cannot hold"
        )
        if self.strict:
            raise RuntimeError(f"{text}; in an external loop, evaluate that model yourself.")
        warn_user(
            f"{text}: after training, and in checkpoints, it has the training weights.",
            UserWarning,
        )
        return Weights()

    def values(self, state: State) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the tensors of the model that are exchanged: each, evaluated, and trained."""
        if self.installed:
            states = (pair for free in self._switched for pair in free.state.items())
            trained = [(p, values["y"]) for p, values in states if "y" in values]
            return [(tensor, tensor, value) for tensor, value in [*self._held, *trained]]
        own = module_tensors(state.model)
        return [(own[name], value, own[name]) for name, value in self.of(state).model.items()]

    def model(self, state: State) -> nn.Module:
        """Return a model with the evaluated weights; the state's if it has them."""
        weights = _NONE if self.installed else self.of(state).model
        return with_tensors(state.model, weights) if weights else state.model

    # --- exchange ---

    def install(self, state: State, evaluated: nn.Module | None = None) -> State:
        """Write the evaluated weights into the model, and return the state that belongs to them.

        Args:
            state: The state, whose model has the training weights.
            evaluated: The model that is evaluated, if it is known; by default the plan's.
        """
        self.installed = True
        for optimizer in schedule_free_parts(state.optimizers):
            if all(group["train_mode"] for group in optimizer.param_groups):
                optimizer.eval()
                self._switched.append(optimizer)
        weights = self.of(state) if evaluated is None else self._in(evaluated, state)
        for tensor, value in _exchanged(state, weights):
            if tensor is not value:
                self._held.append((tensor, copy_of(tensor)))
                copy_into(tensor, value)
        averages = bool(self._held or self._switched)
        self._left = _names(state), _marks(state) if averages else None
        if self.best is None:
            return state
        self._kept = state.averages, state.memory
        memory = {**state.memory, **self.best["memory"]}
        return state.evolve(averages=self.best["averages"], memory=memory)

    def remove(self, state: State) -> State:
        """Restore the training weights, and return the state that belongs to them."""
        for tensor, value in reversed(self._held):
            copy_into(tensor, value)
        for optimizer in self._switched:
            optimizer.train()
        kept = self._kept
        self.forget()
        if kept is None:
            return state
        return state.evolve(averages=kept[0], memory=kept[1])

    def forget(self) -> None:
        """Take the weights that the model holds for the trained ones."""
        self.installed, self._held, self._switched, self._kept = False, [], [], None

    def adopt_changes(self, state: State) -> State:
        """Return the state to continue from if the weights were changed since the last call.

        The changed weights are then those that are trained, and averages start again. Seen are
        writes that PyTorch counts, tensors in other memory, and other values among 64 of each
        tensor; so a single value that was written through `parameter.data` may be missed.

        Warns:
            ChangedWeightsWarning: They were changed.
        """
        if self._left is None or self._left[1] is None or not self._changed(state):
            return state
        warn_user(
            "the weights of the model were changed after the last call of the Trainer, which left "
            "averaged ones there. Training continues from the changed weights, and the average "
            "starts again; to keep the average, change a copy.deepcopy(model).",
            ChangedWeightsWarning,
        )
        self._held, self._switched, self._kept, self.best, self._left = [], [], None, None, None
        for optimizer in schedule_free_parts(state.optimizers):
            optimizer.restart_average()
        names = averaging_names(self.plan())
        memory = {name: value for name, value in state.memory.items() if name not in names}
        averages = {name: value for name, value in state.averages.items() if name not in names}
        return state.evolve(averages=averages, memory=memory)

    def _changed(self, state: State) -> bool:
        """Return whether the tensors have other values than those that the last call left."""
        (values, counts), (new_values, new_counts) = self._left[1], _marks(state)
        if not torch.equal(values, new_values):
            return True
        written = [one for one, count in new_counts.items() if count != counts.get(one)]
        known = dict(_exchanged(state, self.of(state))) if written else {}
        return not all(
            parameter in known and equal_bits(local_part(parameter), local_part(known[parameter]))
            for parameter in written  # perhaps with the same values
        )

    def check_names(self, state: State) -> None:
        """Check that the model has the tensors that it had when the last call ended.

        Raises:
            ValueError: It has others.
        """
        before, now = {} if self._left is None else self._left[0], _names(state)
        for name in sorted(before.keys() | now.keys()):
            change = _change(before.get(name), now.get(name))
            if before and change is not None:
                raise ValueError(
                    f"the model was changed between two calls of the Trainer: {name} "
                    f"{change}. The optimizer and the checkpoints belong to the earlier one; build "
                    "a new Trainer for the changed model."
                )


@contextmanager
def at_averaged_weights(state: State) -> Iterator[State]:
    """Yield the state with the averages of schedule-free optimizers as its weights.

    Its model is a copy; the model of `state` keeps its weights. The parameters of the loss are set
    to their averages, and restored at the end.
    """
    if not schedule_free_parts(state.optimizers):
        yield state
        return
    tensors = averaged_weights(state.model, state.optimizers)
    loss = loss_module_of(state)
    with temporary_weights(dict(loss.named_parameters()), averaged_weights(loss, state.optimizers)):
        yield bind_loss(state.evolve(model=with_tensors(state.model, tensors)))


def averaged_weights(module: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Return the averages of schedule-free optimizers in training mode, by parameter name."""
    averages: dict[Tensor, Tensor] = {}
    for optimizer in schedule_free_parts(optimizers):
        averages |= optimizer.averaged_weights()
    named = module.named_parameters()
    return {name: averages[p] for name, p in named if averages.get(p, p) is not p}


def averaging_names(plan: Plan) -> set[str]:
    """Return the names of the algorithms on whose averages or memory evaluations depend."""
    parts = (leaf for algorithm in plan.algorithms for leaf in leaves(algorithm))
    return {leaf.name for leaf in parts if Event.EVAL_START in leaf.events}


def loss_module_of(state: State) -> nn.Module:
    """Return the module that computes the loss, or one without tensors."""
    return nn.Module() if state.loss_module is None else state.loss_module


def _replaced(model: nn.Module, evaluated: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the evaluated model that differ from the trained model's."""
    if evaluated is model:
        return
    own = module_tensors(model)
    new = evaluated.tensors if isinstance(evaluated, LentModel) else module_tensors(evaluated)
    for name, tensor in own.items():
        other = new.get(name)
        if other is None or other is tensor or other.shape != tensor.shape:
            continue
        # A copy of a model has buffers of its own.
        if isinstance(tensor, nn.Parameter) or not equal_bits(other, tensor):
            yield name, other.detach().to(tensor.dtype)


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape on one device have the same bits.

    Of a `DTensor`, each process has other bits, so False is what all of them return.
    """
    if one.dtype != other.dtype or one.device != other.device or local_part(one) is not one:
        return False
    return torch.equal(_bits(one), _bits(other))


@torch.no_grad()
def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Write a value into a tensor, of a `DTensor` the part of this process."""
    local_part(tensor.detach()).copy_(local_part(value))


def copy_of(tensor: Tensor) -> Tensor:
    """Copy a tensor: to the memory of the host, if its device's is full."""
    local = local_part(tensor.detach())
    try:
        return local.clone()
    except torch.OutOfMemoryError:
        return local.to("cpu", copy=True)


def _exchanged(state: State, weights: Weights) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tensors of the model and the loss, each with its evaluated value."""
    pairs = (state.model, weights.model), (loss_module_of(state), weights.loss_fn)
    for module, values in pairs:
        own = module_tensors(module)
        yield from ((own[name], value) for name, value in values.items())


# --- changes between two calls ---


def _names(state: State) -> dict[str, tuple[int, torch.Size | None]]:
    """Return the identity and the shape, if it is known, of each parameter.

    An optimizer keeps the parameters alive, so that no other has its identity.
    """
    named = state.model.named_parameters()
    return {name: (id(one), None if is_lazy(one) else one.shape) for name, one in named}


def _change(old: Any, new: Any) -> str | None:
    """Say how a parameter differs from the one that had its name, if it does."""
    if old is None:
        return "is new"
    if new is None:
        return "is gone"
    unknown = None in (old[1], new[1])
    if old[0] == new[0] and (unknown or old[1] == new[1]):
        return None
    if old[1] == new[1] or old[1] is None:
        return "is another parameter"
    return f"has shape {list(new[1])}, and had {list(old[1])}"


_MARKED = 64
"""How many values of a tensor are read to see whether it was changed."""


def _marks(state: State) -> tuple[Tensor, dict[nn.Parameter, tuple[int, int]]]:
    """Return values of each tensor, and how often each parameter was written, and its address.

    The values show writes through `parameter.data`, which are not counted. Buffers are marked by
    their values alone, since forward passes write to them.
    """
    tensors = [t for module in state.modules.values() for t in module_tensors(module).values()]
    found: dict[torch.device, list[Tensor]] = {}
    counts = {}
    for tensor in tensors:
        local = local_part(tensor.detach())
        some = _spread(local)
        found.setdefault(local.device, []).append(_bits(some).long().flatten())
        if isinstance(tensor, nn.Parameter) and some.stride() != (1,):  # it has more values
            counts[tensor] = local._version, local.data_ptr()
    values = [torch.cat(every).cpu() for every in found.values()]
    return torch.cat(values) if values else torch.empty(0), counts


def _spread(tensor: Tensor) -> Tensor:
    """Return at most 64 elements of a tensor, at equal distances in memory, without reading it."""
    if not tensor.numel():
        return tensor.flatten()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    step = -(-extent // _MARKED)
    return tensor.as_strided(((extent - 1) // step + 1,), (step,))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.resolve_neg().view(_INTEGERS[tensor.element_size()])
