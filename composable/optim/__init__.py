"""Schedules as pure functions of time."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.optim.schedules import Schedule as Schedule
    from composable.optim.schedules import constant as constant
    from composable.optim.schedules import cosine as cosine
    from composable.optim.schedules import linear as linear
    from composable.optim.schedules import step as step
else:
    export_lazily(__name__)
