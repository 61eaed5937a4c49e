"""Runs of many processes."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.distributed.deepspeed import DeepSpeed as DeepSpeed
    from composable.distributed.fsdp import FSDP2 as FSDP2
    from composable.distributed.processes import ProcessError as ProcessError
    from composable.distributed.processes import Processes as Processes
    from composable.distributed.shards import Shards as Shards
    from composable.distributed.strategies import DDP as DDP
else:
    export_lazily(__name__)
