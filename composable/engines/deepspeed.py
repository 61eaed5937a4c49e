"""ZeRO: the engine of DeepSpeed computes gradients, steps, and shards both among processes."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable._support.extras import needs
from composable._support.tree import map_tensors
from composable.checkpoint.errors import MismatchError
from composable.core.state import State
from composable.distributed.deepspeed import OWNED, DeepSpeed
from composable.distributed.starting import form_group
from composable.engines.engine import SAVED_AS, Setup
from composable.engines.modules import check_dense
from composable.engines.partitioned import Partitioned
from composable.plan.compatibility import occurrences

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_PARTITIONS = (
    "single_partition_of_fp32_groups",  # stages 1 and 2
    "fp32_groups_flat_partition",  # stage 1 with bfloat16
    "fp32_partitioned_groups_flat",  # stage 3
)


@attrs.define(eq=False)
class Zero(Partitioned):
    """The engine of `DeepSpeed`, which may reduce the gradients of a microbatch at once."""

    engine: Any = attrs.field(init=False, default=None)
    """The engine of DeepSpeed."""
    _mesh: Any = attrs.field(init=False, default=None)

    rescales: ClassVar[bool] = False

    def prepare(self, state: State, setup: Setup) -> State:
        """Build the engine of DeepSpeed.

        Raises:
            ValueError: The configuration contradicts the run, or an algorithm does.
            ImportError: DeepSpeed is not installed.
        """
        check_dense(state, "DeepSpeed")
        state = super().prepare(state, setup)
        form_group()
        strategy: DeepSpeed = self.strategy  # type: ignore[assignment]
        for algorithm in setup.algorithms:
            for occurrence in occurrences(algorithm):
                strategy.check_algorithm(occurrence.algorithm)
        if len(state.optimizers) != 1:
            raise ValueError(
                f"optimizers has {len(state.optimizers)} optimizers, and deepspeed_config needs "
                "one."
            )
        if state.loss_module is not None and any(True for _ in state.loss_module.parameters()):
            raise ValueError(
                "loss_fn is a module with parameters, which DeepSpeed's engine would not train; "
                "make it a part of the model."
            )
        config = strategy.complete(
            precision=state.precision,
            processes=self.processes.size,
            batch_size=setup.batch_size,
            grad_accum=setup.grad_accum,
        )
        self.engine = start_engine(state.model, state.optimizers[0], config)
        self._prepare_passes(state, self._outputs)
        return state

    def _outputs(self, state: State) -> Any:
        """Call the model on the batch of a state; an average of it is called directly.

        Raises:
            ValueError: The state requests what the engine does not do.
        """
        if state.model is not self.engine.module:
            if state.model.training:
                raise ValueError(
                    "an algorithm replaced the model after DeepSpeed's engine was built; let it "
                    "act at BEFORE_LOAD."
                )
            return state.forward()
        return state.model_call(self.engine, state.batch, state.batch_spec)

    def backward(self, loss: Any, gradients: Sequence[Tensor] | None = None) -> None:
        """Compute gradients, and reduce them if the stage divides them."""
        if gradients is not None:  # as for a sum: the engine takes a loss
            products = (a.float() * b for a, b in zip(loss, gradients, strict=True))
            loss = torch.stack([product.sum() for product in products]).sum()
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self, state: State) -> State:
        """Reduce and clip the gradients, step the optimizer, and return the state.

        Raises:
            ValueError: An algorithm wrote gradients, froze parameters or overrode the rate.
        """
        for field, what in OWNED.items():
            if getattr(state, field):
                raise ValueError(f"an algorithm {what}, which DeepSpeed does not support.")
        self.engine.step()
        return state

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        return self.engine.zero_optimization_stage()  # type: ignore[no-any-return]

    @property
    def can_undo(self) -> bool:
        """False: DeepSpeed keeps the state of its optimizer itself."""
        return False

    def check_whole(self, message: str) -> None:
        """Raise a ValueError in stage 3, where each process has a part of the parameters."""
        if self.stage == 3:
            raise ValueError(message)

    def writes_together(self, weights_only: bool) -> bool:
        """Return whether all processes take part in saving, rather than rank 0 alone."""
        return self.stage == 3 or (self.stage > 0 and not weights_only)

    @contextmanager
    def whole(self, *, writing: bool = False) -> Iterator[None]:
        """Gather the weights of stage 3, and give its optimizer the divided parameters.

        Args:
            writing: Whether the weights of rank 0 replace the divided ones at the end.
        """
        if self.stage < 3:
            yield
            return
        import deepspeed

        parameters = list(self.engine.module.parameters())
        rank = 0 if writing else None
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=rank):
            self.engine.optimizer._set_fp32_optimizer_param_groups()
            try:
                yield
            finally:
                self.engine.optimizer._clear_fp32_optimizer_param_groups()

    def captured(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Add the state of the engine to what a checkpoint holds, inside `whole`.

        State that ZeRO divides is a `DTensor` there, of which each process writes its part.

        Args:
            tree: The model, and for a complete checkpoint all of the run.

        Raises:
            ValueError: A complete checkpoint can't hold the state of the engine.
        """
        result = dict(tree)
        if self.stage == 3:  # the gathered weights are freed
            weights = map_tensors(lambda one: one.detach().clone(), tree["model"]["weights"])
            result["model"] = {**tree["model"], "weights": weights}
        if "optimizers" not in tree:
            return result
        partitions = self._partitions()
        if partitions is None:
            raise ValueError(
                "a complete checkpoint with stage 0 of deepspeed_config and precision='bf16' is "
                "not supported; use stage 1, 2 or 3, or save_weights_only=True."
            )
        result["optimizers"] = [
            {**tree["optimizers"][0], "state": self._divided(tree["optimizers"][0]["state"])}
        ]
        result[SAVED_AS] = {
            "stage": self.stage,
            "processes": torch.distributed.get_world_size(),
            "partitions": [self._as_part(partition.detach()) for partition in partitions],
            "counters": {name: int(getattr(self.engine, name)) for name in _COUNTERS},
        }
        return result

    @contextmanager
    def restoring(self, tree: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
        """Gather the weights of stage 3, and yield this process's part of a checkpoint.

        Raises:
            MismatchError: It does not fit the engine.
        """
        self.check(tree, path)
        with self.whole(writing=True):
            yield self.own_part(tree)
        self.load(tree[SAVED_AS])

    def check(self, tree: Mapping[str, Any], path: str) -> None:
        """Check that a checkpoint has the state of such an engine.

        Raises:
            MismatchError: It was saved without DeepSpeed, with another stage, or on another number
                of processes.
        """
        saved = tree.get(SAVED_AS)
        if saved is None:
            raise MismatchError(
                f"{path} was saved without deepspeed_config; load_weights_only=True starts a new "
                "run from its weights."
            )
        own = {"stage": self.stage, "processes": torch.distributed.get_world_size()}
        for name, value in own.items():
            if saved.get(name) != value:
                raise MismatchError(
                    f"{path}: state/engine/{name} is {str(saved.get(name))[:80]}, and {value} in "
                    "this run: the state of the optimizer is divided by both. Resume with the same "
                    "number of processes and the same stage, or start a new run from the weights "
                    "with load_weights_only=True."
                )
        partitions = self._partitions() or []
        expected = [[one.numel() * (own["processes"] if self.stage else 1)] for one in partitions]
        shapes = [list(partition.shape) for partition in saved["partitions"]]
        if shapes != expected:
            raise MismatchError(
                f"{path}: state/engine has partitions of shapes {shapes}, and this run has "
                f"{expected}. Build the model and the optimizer as in the saved run, with the same "
                "deepspeed_config."
            )

    def own_part(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked checkpoint with this process's part of the optimizer's state."""
        if not self.stage:
            return dict(tree)
        shapes = {tuple(partition.shape) for partition in tree[SAVED_AS]["partitions"]}
        (saved,) = tree["optimizers"]
        state = {
            number: {name: self._part_of(value, shapes) for name, value in values.items()}
            for number, values in saved["state"].items()
        }
        return {**tree, "optimizers": [{**saved, "state": state}]}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the weights of the optimizer and the counters, after `whole` has ended."""
        optimizer = self.engine.optimizer
        with torch.no_grad():
            for own, partition in zip(self._partitions() or (), saved["partitions"], strict=True):
                own.copy_(self._part_of(partition, {tuple(partition.shape)}))
        if self.stage == 3 and optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)
        for name in _COUNTERS:
            setattr(self.engine, name, saved["counters"][name])

    def _partitions(self) -> list[Tensor] | None:
        """Return this process's weights of the optimizer; None if they cannot be saved."""
        optimizer = self.engine.optimizer
        for name in _PARTITIONS:
            if hasattr(optimizer, name):
                return list(getattr(optimizer, name))
        return [] if isinstance(optimizer, Optimizer) and self.stage == 0 else None

    def _divided(self, state: Mapping[Any, Any]) -> dict[Any, Any]:
        sizes = {tuple(partition.shape) for partition in self._partitions() or ()}
        return {
            number: {
                name: self._as_part(value) if tuple(getattr(value, "shape", ())) in sizes else value
                for name, value in values.items()
            }
            for number, values in state.items()
        }

    def _as_part(self, tensor: Tensor) -> Tensor:
        from torch.distributed.device_mesh import init_device_mesh  # on use: slow to import
        from torch.distributed.tensor import DTensor, Shard

        if self._mesh is None:
            size = torch.distributed.get_world_size()
            self._mesh = init_device_mesh(tensor.device.type, (size,))
        return DTensor.from_local(tensor.detach(), self._mesh, [Shard(0)], run_check=False)

    def _part_of(self, value: Any, shapes: set[tuple[int, ...]]) -> Any:
        """Return this process's part of a tensor that is divided."""
        if hasattr(value, "device_mesh"):
            return value.to_local()
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes:
            return value
        size = torch.distributed.get_world_size()
        return value.chunk(size)[torch.distributed.get_rank()].clone()


def start_engine(model: nn.Module, optimizer: Optimizer, config: Mapping[str, Any]) -> Any:
    """Return the engine of DeepSpeed.

    Args:
        model: The model, on its device. Stage 3 divides its parameters in place.
        optimizer: An optimizer of its parameters.
        config: The result of `DeepSpeed.complete`.

    Raises:
        ImportError: DeepSpeed is not installed.
    """
    with needs("deepspeed_config", "deepspeed"):
        import deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        # It would compile C++ for minutes, and is for processes of one machine only.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.setdefault("LOCAL_RANK", "0")  # without a launcher; the engine reads it
    return deepspeed.initialize(
        model=model, optimizer=optimizer, config=dict(config), dist_init_required=False
    )[0]
