"""Optimizers, parameter groups, and schedules as pure functions of time."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.optim.by_role import by_role as by_role
    from composable.optim.cautious_weight_decay import (
        with_cautious_weight_decay as with_cautious_weight_decay,
    )
    from composable.optim.decay import decay_groups as decay_groups
    from composable.optim.ema_nesterov import with_ema_nesterov as with_ema_nesterov
    from composable.optim.find_lr import find_lr as find_lr
    from composable.optim.layerwise import layerwise_groups as layerwise_groups
    from composable.optim.lookahead import with_lookahead as with_lookahead
    from composable.optim.momentum_warmup import with_momentum_warmup as with_momentum_warmup
    from composable.optim.multi import MultiOptimizer as MultiOptimizer
    from composable.optim.muon import Muon as Muon
    from composable.optim.muon_groups import muon_groups as muon_groups
    from composable.optim.one_cycle import one_cycle as one_cycle
    from composable.optim.per_name import per_group as per_group
    from composable.optim.per_name import per_option as per_option
    from composable.optim.periodic import cosine_restarts as cosine_restarts
    from composable.optim.periodic import exponential as exponential
    from composable.optim.periodic import multi_step as multi_step
    from composable.optim.periodic import step as step
    from composable.optim.roles import role_groups as role_groups
    from composable.optim.row_adagrad import RowAdagrad as RowAdagrad
    from composable.optim.scaling import scale_schedule as scale_schedule
    from composable.optim.scaling_rule import scaling_rule as scaling_rule
    from composable.optim.schedule import Schedule as Schedule
    from composable.optim.schedule_free import AdamWScheduleFree as AdamWScheduleFree
    from composable.optim.schedule_free import SGDScheduleFree as SGDScheduleFree
    from composable.optim.scheduler import ConstantScheduler as ConstantScheduler
    from composable.optim.scheduler import (
        ConstantWithWarmupScheduler as ConstantWithWarmupScheduler,
    )
    from composable.optim.scheduler import CosineAnnealingScheduler as CosineAnnealingScheduler
    from composable.optim.scheduler import (
        CosineAnnealingWarmRestartsScheduler as CosineAnnealingWarmRestartsScheduler,
    )
    from composable.optim.scheduler import (
        CosineAnnealingWithWarmupScheduler as CosineAnnealingWithWarmupScheduler,
    )
    from composable.optim.scheduler import ExponentialScheduler as ExponentialScheduler
    from composable.optim.scheduler import LinearScheduler as LinearScheduler
    from composable.optim.scheduler import LinearWithWarmupScheduler as LinearWithWarmupScheduler
    from composable.optim.scheduler import MultiStepScheduler as MultiStepScheduler
    from composable.optim.scheduler import (
        MultiStepWithWarmupScheduler as MultiStepWithWarmupScheduler,
    )
    from composable.optim.scheduler import PolynomialScheduler as PolynomialScheduler
    from composable.optim.scheduler import (
        PolynomialWithWarmupScheduler as PolynomialWithWarmupScheduler,
    )
    from composable.optim.scheduler import StepScheduler as StepScheduler
    from composable.optim.schedules import constant as constant
    from composable.optim.schedules import cosine as cosine
    from composable.optim.schedules import linear as linear
    from composable.optim.schedules import one_minus_sqrt as one_minus_sqrt
    from composable.optim.schedules import polynomial as polynomial
    from composable.optim.schedules import warmup_stable_decay as warmup_stable_decay
else:
    export_lazily(__name__)
