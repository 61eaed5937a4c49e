"""DeepSpeed: its engine computes gradients, steps the optimizer, and divides both among processes.

The engine reduces, clips and scales gradients, so its configuration has the settings of these, and
algorithms that change gradients or steps are rejected.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.core.algorithm import Algorithm
from composable.core.precision import Precision
from composable.core.state import State
from composable.distributed.strategies import Strategy

__all__ = ["DeepSpeed", "DeepSpeedEngine"]

_INSTEAD = {
    "optimizer": "pass optimizers= to the Trainer",
    "scheduler": "pass schedulers= to the Trainer",
    "fp16": "use {'bf16': {'enabled': True}}; fp16 has not been tested",
    "amp": "pass precision='bf16'",
    "torch_autocast": "pass precision='bf16'",
}
_OWNED = {
    "gradients": "writes gradients; {'gradient_clipping': 1.0} in the configuration clips by norm",
    "second_pass": "requests a second pass",
    "lr_override": "overrides the learning rate of a step",
    "frozen": "freezes parameters",
}

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_PARTITIONS = (
    "single_partition_of_fp32_groups",  # stages 1 and 2
    "fp32_groups_flat_partition",  # stage 1 with bfloat16
    "fp32_partitioned_groups_flat",  # stage 3
)


@attrs.frozen
class DeepSpeed(Strategy):
    """ZeRO, by the engine of DeepSpeed: `shards` and `data` are those of `DDP`.

    `Trainer(deepspeed_config=config)` is short for `Trainer(parallel=DeepSpeed(config=config))`.

    Args:
        config: The configuration of DeepSpeed. It must not contradict the arguments of the Trainer,
            from which the batch sizes and the precision are filled in.

    Example:
        >>> from composable.distributed import DeepSpeed
        >>> DeepSpeed(config={"zero_optimization": {"stage": 2}}).stage
        2
    """

    config: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not isinstance(self.config, Mapping):
            raise TypeError(f"deepspeed_config={self.config!r} must be a mapping; {{}} is valid.")
        for name in self.config:
            if not isinstance(name, str):
                raise TypeError(f"deepspeed_config has the key {name!r}; keys must be strings.")
        if not isinstance(self.config.get("zero_optimization", {}), Mapping):
            raise TypeError(
                f"deepspeed_config['zero_optimization']={self.config['zero_optimization']!r} must "
                "be a mapping, such as {'stage': 2}."
            )
        for name, instead in _INSTEAD.items():
            value = self.config.get(name)
            if value is not None and _enabled(value):
                raise ValueError(f"deepspeed_config has {name!r}={value!r}; {instead}.")
        if self.config.get("managed_gradient_accumulation"):
            raise ValueError(
                "deepspeed_config['managed_gradient_accumulation']=True must be False or absent: "
                "the Trainer determines when a step is complete."
            )
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(
                f"deepspeed_config['zero_optimization']['stage']={self.stage!r} must be 0, 1, 2 or "
                "3."
            )

    @property
    def stage(self) -> int:
        """The stage of ZeRO: what is divided among the processes."""
        return self.config.get("zero_optimization", {}).get("stage", 0)  # type: ignore[no-any-return]

    @property
    def bf16(self) -> bool:
        """Whether the configuration selects bfloat16."""
        return _enabled(self.config.get("bf16", False))

    def precision(self, given: Precision) -> Precision:
        """Return the precision of a run, that of the configuration if the given one is "fp32".

        Raises:
            ValueError: The two differ, or DeepSpeed cannot be combined with the given one.
        """
        if given.name not in ("fp32", "bf16"):
            raise ValueError(
                f"precision={given.name!r} with deepspeed_config must be 'fp32' or 'bf16'."
            )
        if given.name == "bf16" and "bf16" in self.config and not self.bf16:
            raise ValueError(
                "precision='bf16' contradicts deepspeed_config['bf16'], which is not enabled; drop "
                "one of them."
            )
        return Precision.of("bf16") if self.bf16 else given

    def complete(
        self, *, precision: Precision, processes: int, batch_size: int | None, grad_accum: int
    ) -> dict[str, Any]:
        """Return the configuration of the engine.

        Args:
            precision: That of the run.
            processes: Number of processes.
            batch_size: Number of examples in a global batch, or None if unknown.
            grad_accum: Number of microbatches of a batch.

        Raises:
            ValueError: The configuration contradicts these values.

        Example:
            >>> from composable import Precision
            >>> from composable.distributed import DeepSpeed
            >>> run = {"precision": Precision(), "processes": 2, "batch_size": 64, "grad_accum": 1}
            >>> DeepSpeed(config={"train_batch_size": 64}).complete(**run)["zero_optimization"]
            {'stage': 0}
            >>> DeepSpeed(config={"train_batch_size": 32}).complete(**run)
            Traceback (most recent call last):
                ...
            ValueError: deepspeed_config['train_batch_size']=32 contradicts the Trainer, ...
        """
        expected: dict[str, int] = {"gradient_accumulation_steps": grad_accum}
        if batch_size is not None:
            expected["train_batch_size"] = batch_size
            expected["train_micro_batch_size_per_gpu"] = batch_size // processes // grad_accum
        for name, value in expected.items():
            if self.config.get(name, "auto") not in ("auto", value):
                raise ValueError(
                    f"deepspeed_config[{name!r}]={self.config[name]!r} contradicts the Trainer, "
                    f"for which it is {value}; drop it from the configuration."
                )
        defaults = {
            "zero_optimization": {"stage": 0},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1_000_000_000,
        }
        # The engine counts neither batches nor microbatches: the Trainer ends a step.
        sizes = {
            "train_micro_batch_size_per_gpu": expected.get("train_micro_batch_size_per_gpu") or 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
        }
        given = {k: v for k, v in self.config.items() if k != "train_batch_size"}
        return {**defaults, **given, **sizes, "bf16": {"enabled": precision.name == "bf16"}}

    def check_algorithm(self, algorithm: Algorithm) -> None:
        """Check that an algorithm leaves to the engine what the engine computes.

        Raises:
            ValueError: It does not.
        """
        for field in sorted(algorithm.writes & set(_OWNED)):
            raise ValueError(
                f"{algorithm.name} {_OWNED[field]}, and with deepspeed_config the engine of "
                "DeepSpeed owns the gradients and the step; drop it, or use parallel='ddp'."
            )
        if self.stage == 3 and "averages" in algorithm.writes:
            raise ValueError(
                f"{algorithm.name} averages weights, of which each process has a part with stage 3 "
                "of deepspeed_config; use stage 0, 1 or 2."
            )


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _enabled(value: Any) -> bool:
    return bool(value.get("enabled", True)) if isinstance(value, Mapping) else bool(value)


class DeepSpeedEngine:
    """The engine of DeepSpeed, as a run uses it.

    Args:
        model: The model, on its device. Stage 3 divides its parameters in place.
        optimizer: An optimizer of its parameters.
        config: The result of `DeepSpeed.complete`.

    Raises:
        ImportError: DeepSpeed is not installed.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, config: Mapping[str, Any]) -> None:
        try:
            import deepspeed
        except ImportError as error:
            raise ImportError(
                "deepspeed_config needs DeepSpeed; install the extra: pip install "
                "'composable[deepspeed]'."
            ) from error
        self._mesh: Any = None
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        if not torch.cuda.is_available():
            # It would compile C++ for minutes, and is for processes of one machine only.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        os.environ.setdefault("LOCAL_RANK", "0")  # without a launcher; the engine reads it
        self.engine: Any = deepspeed.initialize(
            model=model, optimizer=optimizer, config=dict(config), dist_init_required=False
        )[0]

    def outputs(self, state: State) -> Any:
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

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        return self.engine.zero_optimization_stage()  # type: ignore[no-any-return]

    def check_saving(self, weights_only: bool) -> None:
        """Check that a complete checkpoint can hold the state of the engine.

        Raises:
            ValueError: It cannot.
        """
        if not weights_only and self._partitions() is None:
            raise ValueError(
                "a complete checkpoint with stage 0 of deepspeed_config and precision='bf16' is "
                "not supported; use stage 1, 2 or 3, or save_weights_only=True."
            )

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
        """
        result = dict(tree)
        if self.stage == 3:  # the gathered weights are freed
            weights = {name: _copied(one) for name, one in tree["model"]["weights"].items()}
            result["model"] = {**tree["model"], "weights": weights}
        if "optimizers" not in tree:
            return result
        partitions = [one.detach() for one in self._partitions() or ()]
        result["optimizers"] = [
            {**tree["optimizers"][0], "state": self._divided(tree["optimizers"][0]["state"])}
        ]
        result["engine"] = {
            "stage": self.stage,
            "processes": torch.distributed.get_world_size(),
            "partitions": [self._as_part(one) for one in partitions],
            "counters": {name: int(getattr(self.engine, name)) for name in _COUNTERS},
        }
        return result

    def check(self, tree: Mapping[str, Any], path: str) -> None:
        """Check that a checkpoint has the state of such an engine.

        Raises:
            ValueError: It was saved without DeepSpeed, with another stage, or on another number
                of processes.
        """
        saved = tree.get("engine")
        if saved is None:
            raise ValueError(
                f"{path} was saved without deepspeed_config; load_weights_only=True starts a new "
                "run from its weights."
            )
        own = {"stage": self.stage, "processes": torch.distributed.get_world_size()}
        for name, value in own.items():
            if saved.get(name) != value:
                raise ValueError(
                    f"{path}: state/engine/{name} is {str(saved.get(name))[:80]}, and {value} in "
                    "this run: the state of the optimizer is divided by both. Resume with the same "
                    "number of processes and the same stage, or start a new run from the weights "
                    "with load_weights_only=True."
                )
        partitions = self._partitions() or []
        expected = [[one.numel() * (own["processes"] if self.stage else 1)] for one in partitions]
        theirs = saved.get("partitions")
        shapes = [list(getattr(t, "shape", ())) for t in theirs] if type(theirs) is list else None
        counters = saved.get("counters")
        if (
            shapes != expected
            or not isinstance(counters, Mapping)
            or not all(type(counters.get(name)) is int for name in _COUNTERS)
        ):
            raise ValueError(
                f"{path}: state/engine has partitions of shapes {shapes}, and this run has "
                f"{expected}. Build the model and the optimizer as in the saved run, with the same "
                "deepspeed_config."
            )

    def own_part(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked checkpoint with this process's part of the optimizer's state."""
        if not self.stage:
            return dict(tree)
        shapes = {tuple(one.shape) for one in tree["engine"]["partitions"]}
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
            for own, one in zip(self._partitions() or (), saved["partitions"], strict=True):
                own.copy_(self._part_of(one, {tuple(one.shape)}))
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
        sizes = {tuple(one.shape) for one in self._partitions() or ()}
        return {
            number: {
                name: self._as_part(one) if tuple(getattr(one, "shape", ())) in sizes else one
                for name, one in values.items()
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

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, and reduce them if the stage divides them."""
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self, state: State) -> None:
        """Reduce and clip the gradients, and step the optimizer.

        Raises:
            ValueError: An algorithm wrote gradients, froze parameters or overrode the rate.
        """
        for field in ("gradients", "second_pass", "lr_override"):
            if getattr(state, field) is not None:
                raise ValueError(f"an algorithm {_OWNED[field]}, which DeepSpeed does not support.")
        if state.frozen:
            raise ValueError(f"an algorithm {_OWNED['frozen']}, which DeepSpeed does not support.")
        self.engine.step()
