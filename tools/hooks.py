"""The tables of the page of hooks, from a traced run and the hooks that the errors know."""

from collections.abc import Iterator
from functools import cache

from composable import Event
from composable._other_trainers import HOOKS
from tests.support.traced import traced_run

LIBRARIES = {
    "Composer": "Composer",
    "Cerebras Model Zoo": "the Cerebras Model Zoo",
    "Lightning": "Lightning",
    "Hugging Face Transformers": "Transformers",
}
"""The headings of the page, and the names that the errors use."""

OFTEN = {
    "once per Trainer": "init before_load after_load",
    "each fit": "fit_start fit_end",
    "each iteration": "iteration_start iteration_end iteration_checkpoint",
    "each epoch": "epoch_start epoch_end epoch_checkpoint",
    "each fetch": "before_dataloader",
    "each batch": """
        after_dataloader batch_start before_train_batch after_train_batch before_optimizer_step
        after_optimizer_step before_zero_grad after_zero_grad batch_end batch_checkpoint
    """,
    "each microbatch": """
        before_forward after_forward before_loss after_loss before_backward after_backward
    """,
    "each step of the schedulers": "before_scheduler_step after_scheduler_step",
    "each log": "log",
    "each save": "before_save after_save",
    "each evaluation in a fit": "eval_before_all eval_after_all",
    "each evaluator": "eval_start eval_end",
    "each batch of an evaluation": """
        eval_batch_start eval_before_forward eval_after_forward eval_batch_end
    """,
    "each eval": "eval_standalone_start eval_standalone_end",
    "each predict": "predict_start predict_end",
    "each batch of a prediction": """
        predict_batch_start predict_before_forward predict_after_forward predict_batch_end
    """,
}
HOW_OFTEN = {event: words for words, events in OFTEN.items() for event in events.split()}

WITHOUT = {
    "on_sanity_check_start": "there is no evaluation before training; call `eval` for one",
    "on_sanity_check_end": "there is no evaluation before training; call `eval` for one",
    "on_push_begin": "push in a callback's `after_save`",
}
"""What to do instead of a hook that has no counterpart."""


def hook_table(heading: str) -> list[str]:
    """Render the hooks of a library."""
    lines = ["| theirs | ours | when | how often |", "|---|---|---|---|"]
    for ours, theirs in _by_events(heading).items():
        if ours:
            often = "; ".join(HOW_OFTEN[event] for event in ours)
            cells = [_listed(theirs), _listed(ours), _when(ours), often]
        else:
            cells = [_listed(theirs), "none", WITHOUT[theirs[0]], "never"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _by_events(heading: str) -> dict[tuple[str, ...], list[str]]:
    """Return the hooks of a library by their events, in the order of these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for theirs, ours in _hooks(heading):
        if ours != ("close",):
            found.setdefault(ours, []).append(theirs)
    order = [event.value for event in Event]
    return dict(sorted(found.items(), key=lambda one: order.index(one[0][0]) if one[0] else 99))


def _hooks(heading: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if heading == "Composer":
        not_theirs = ("PREDICT", "LOG", "SAVE", "OPTIMIZER", "ZERO", "SCHEDULER")
        for name, event in Event.__members__.items():
            if not any(part in name for part in not_theirs):
                yield name, (event.value,)
    else:
        yield from HOOKS[LIBRARIES[heading]].items()


def _when(events: tuple[str, ...]) -> str:
    """Return what comes right before or after these events: few things, and rather calls."""
    sides = {"after": _neighbours(events, -1), "before": _neighbours(events, 1)}
    side, seen = min(sides.items(), key=lambda one: (len(one[1]), "(" not in "".join(one[1])))
    return f"right {side} " + " or ".join(f"`{one}`" for one in sorted(seen))


def _neighbours(events: tuple[str, ...], step: int) -> set[str]:
    trace = _trace()
    return {trace[place + step] for place, seen in enumerate(trace) if seen in events}


@cache
def _trace() -> list[str]:
    return traced_run()


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
