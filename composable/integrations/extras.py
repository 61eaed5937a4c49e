"""What Accelerate and Fabric have prepared beside the model and the optimizer: for `extra`."""

from typing import Any


def accelerate_parts(accelerator: Any) -> dict[str, Any]:
    """Return the schedulers, the loss scaler and the registered objects of an `Accelerator`.

    Call it when all are prepared, and before `t.resume(folder)`.

    Args:
        accelerator: The `Accelerator` that prepared the model and the optimizer of the loop.

    Example:
        >>> from accelerate import Accelerator
        >>> from composable.integrations import adapt_loop
        >>> from composable.integrations.extras import accelerate_parts
        >>> accelerator = Accelerator(cpu=True)
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        >>> model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        >>> sorted(accelerate_parts(accelerator))  # t.extra.update(accelerate_parts(accelerator))
        ['accelerate_scheduler_0']
    """
    registered = [*accelerator._schedulers], [*accelerator._custom_objects]
    found = {
        f"accelerate_{kind}_{i}": one
        for kind, some in zip(("scheduler", "object"), registered, strict=True)
        for i, one in enumerate(some)
    }
    return (
        found if accelerator.scaler is None else {**found, "accelerate_scaler": accelerator.scaler}
    )


def fabric_parts(fabric: Any) -> dict[str, Any]:
    """Return the loss scaler of a `Fabric`, if it has one.

    Fabric prepares no schedulers: add them to `t.extra`.

    Args:
        fabric: The `Fabric` that set up the model and the optimizer of the loop.

    Example:
        >>> from lightning.fabric import Fabric
        >>> from composable.integrations.extras import fabric_parts
        >>> fabric_parts(Fabric(accelerator="cpu", devices=1))
        {}
    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return {} if scaler is None else {"fabric_scaler": scaler}
