"""DeepSpeed: the strategy, and what its configuration and the arguments of a run must agree on.

Its engine reduces, clips and scales gradients, so the configuration has the settings of these, and
algorithms that change gradients or steps are rejected.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from composable.batches.precision import Precision
from composable.core.algorithm import Algorithm
from composable.distributed.processes import Processes
from composable.distributed.strategies import Strategy

_INSTEAD = {
    "optimizer": "pass optimizers= to the Trainer",
    "scheduler": "pass schedulers= to the Trainer",
    "fp16": "use {'bf16': {'enabled': True}}; fp16 has not been tested",
    "amp": "pass precision='bf16'",
    "torch_autocast": "pass precision='bf16'",
    "managed_gradient_accumulation": "the Trainer determines when a step is complete; drop it",
}
OWNED = {
    "gradients": "writes gradients; {'gradient_clipping': 1.0} in the configuration clips by norm",
    "second_pass": "requests a second pass",
    "lr_override": "overrides the learning rate of a step",
    "frozen": "freezes parameters",
}
"""The fields of a state that an algorithm must not write, and what it does with them."""


@attrs.frozen
class DeepSpeed(Strategy):
    """ZeRO, by the engine of DeepSpeed: `shards` and `data` are as in `DDP`.

    `Trainer(deepspeed_config=config)` is short for `Trainer(parallel=DeepSpeed(config=config))`.

    Args:
        config: The configuration of DeepSpeed. It must not contradict the arguments of the Trainer,
            from which the batch sizes and the precision are filled in.

    Example:
        >>> from composable.distributed import DeepSpeed
        >>> DeepSpeed(config={"zero_optimization": {"stage": 2}}).stage
        2
    """

    engine: ClassVar[Any] = "composable.engines.deepspeed.Zero"

    config: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not isinstance(self.config, Mapping):
            raise TypeError(
                f"deepspeed_config or config={self.config!r} must be a mapping; {{}} is valid."
            )
        if not isinstance(self.config.get("zero_optimization", {}), Mapping):
            raise TypeError(
                f"deepspeed_config['zero_optimization']={self.config['zero_optimization']!r} must "
                "be a mapping, such as {'stage': 2}."
            )
        for name, instead in _INSTEAD.items():
            value = self.config.get(name)
            if value is not None and _enabled(value):
                raise ValueError(f"deepspeed_config has {name!r}={value!r}; {instead}.")
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

    def engine_for(self, processes: Processes, shards: int) -> Any:
        """Return DeepSpeed's engine, for one process too."""
        return self.engine

    def check_options(self, options: Any) -> None:
        """Check that the arguments of the Trainer do not contradict its use of DeepSpeed.

        Args:
            options: The `TrainerOptions`.

        Raises:
            ValueError: They do.
        """
        for name, allowed, why in (
            ("compile", (False,), "the engine compiles by its own configuration"),
            ("microbatch_size", (None,), "use grad_accum"),
            ("nonfinite_loss", ("raise", "ignore"), "the engine cannot drop gradients"),
        ):
            if getattr(options, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(options, name)!r} cannot be combined with deepspeed_config: "
                    f"{why}; use {' or '.join(map(repr, allowed))}."
                )
        if options.load_best_at_end and self.stage == 3:
            raise ValueError(
                "load_best_at_end=True cannot be combined with stage 3 of deepspeed_config, where "
                "each process has a part of the weights; use stage 0, 1 or 2, or load the best "
                "checkpoint in a new run."
            )

    def precision(self, given: Precision) -> Precision:
        """Return the precision of a run: the configuration's if the given precision is "fp32".

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
            precision: The precision of the run.
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
        for field in sorted(algorithm.writes & set(OWNED)):
            raise ValueError(
                f"{algorithm.name} {OWNED[field]}, and with deepspeed_config the engine of "
                "DeepSpeed owns the gradients and the step; drop it, or use parallel='ddp'."
            )
        if self.stage == 3 and "averages" in algorithm.writes:
            raise ValueError(
                f"{algorithm.name} averages weights, of which each process has a part with stage 3 "
                "of deepspeed_config; use stage 0, 1 or 2."
            )


def _enabled(value: Any) -> bool:
    return bool(value.get("enabled", True)) if isinstance(value, Mapping) else bool(value)
