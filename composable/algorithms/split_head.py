"""Embedding and head that are tied at first and split later, as an algorithm."""

import attrs

from composable.algorithms._validators import name_or_none
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, check_time
from composable.core.window import Window
from composable.functional import split_head, tie_gradients
from composable.functional.split_head import find_split


def _split_at(value: TimeLike) -> Time:
    return check_time("split_at", value)


@attrs.frozen(repr=False)
class SplitHead(Algorithm):
    """Train with tied embedding and head, and split them part of the way.

    The head gets a separate weight at the start, see `composable.functional.split_head`. Until
    `split_at`, both weights get the sum of their gradients, so that they and the states of their
    optimizers stay equal, like one tied weight. From then on each weight gets only its gradient. So
    the state of the optimizer is there at the split, and nothing is added to a running optimizer.

    Gradients are summed before they are clipped; a norm of all gradients has the sum twice. In
    batches in which `LayerFreezing` freezes the embedding, the head trains alone.

    Args:
        split_at: Time of the split.
        target: The name of the token embedding, if it is not found.
        head: The name of the output layer, if it is not found.

    Raises:
        ValueError: At the start of training, embedding and head are in parameter groups of
            different options, so that they would not stay equal.
    """

    split_at: Time = attrs.field(default=Time.parse("0.67dur"), converter=_split_at, eq=str)
    target: str | None = attrs.field(default=None, validator=name_or_none)
    head: str | None = attrs.field(default=None, validator=name_or_none)

    events = frozenset({Event.INIT, Event.FIT_START, Event.BEFORE_OPTIMIZER_STEP})
    stage = Stage.SURGERY
    after = frozenset({"NGramEmbeddings", "Smear"})
    before = frozenset({"Factorize"})
    reads = frozenset({"model", "gradients", "frozen", "optimizers", "timestamp", "max_duration"})
    writes = frozenset({"model", "gradients"})
    replaces = frozenset({"output layer"})

    def window(self) -> Window:
        """Return the window up to `split_at`."""
        return Window(end=self.split_at)

    def apply(self, event: Event, state: State) -> State:
        """Split the weights before training, and tie their gradients until the split."""
        if event is Event.INIT:
            model = split_head(state.model, target=self.target, head=self.head)
            return state if model is state.model else state.evolve(model=model)
        names = find_split(state.model)
        if names is None or state.reached(self.split_at) or not state.frozen.isdisjoint(names):
            return state
        if event is Event.FIT_START:
            _check_groups(state, names)
            return state
        return state.evolve(gradients=tie_gradients(state.current_gradients(), names=names))


def _check_groups(state: State, names: tuple[str, str]) -> None:
    """Raise a ValueError if the optimizers treat the two parameters differently."""
    named = dict(state.named_parameters())
    if not set(names) <= named.keys():
        return
    found = []
    for name in names:
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                if any(parameter is named[name] for parameter in group["params"]):
                    options = {k: v for k, v in group.items() if k not in ("params", "name")}
                    found.append({"optimizer": type(optimizer).__name__, **options})
    if len(found) == 2 and str(found[0]) != str(found[1]):
        differ = [key for key in found[0] if str(found[0][key]) != str(found[1].get(key))]
        raise ValueError(
            f"{' and '.join(names)} must have equal options in the optimizer until they are split, "
            f"but they differ in {', '.join(differ)}: put both into one parameter group."
        )
