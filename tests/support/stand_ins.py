"""Algorithms that only declare: stand-ins for methods of every stage."""

import attrs

from composable import Algorithm, Event, Stage


def stand_in(name, stage, *events, writes=("batch",), **declared):
    """Build a class of algorithms that do nothing, with these declarations."""

    def apply(self, event, state):
        return state

    body = {
        "events": frozenset(events or {Event.AFTER_DATALOADER}),
        "stage": stage,
        "writes": frozenset(writes),
        "apply": apply,
        **declared,
    }
    return attrs.frozen(type(name, (Algorithm,), body), repr=False)


BEFORE_BATCH = Event.BEFORE_TRAIN_BATCH
INIT = Event.INIT

CutMix = stand_in("CutMix", Stage.MIX, BEFORE_BATCH, Event.BEFORE_LOSS)
SWA = stand_in("SWA", Stage.AVERAGE, Event.EPOCH_END, Event.EVAL_START, writes=["model", "memory"])
ProgressiveResizing = stand_in("ProgressiveResizing", Stage.RESIZE)
SeqLengthWarmup = stand_in("SeqLengthWarmup", Stage.RESIZE)
SqueezeExcite = stand_in(
    "SqueezeExcite", Stage.SURGERY, INIT, writes=["model"], replaces=frozenset({"convolution"})
)
GhostBatchNorm = stand_in(
    "GhostBatchNorm", Stage.SURGERY, INIT, writes=["model"], replaces=frozenset({"batch norm"})
)
