"""What algorithms do is compared with what they declare; what an observer changed is found."""

import copy
from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn

from composable import (
    Algorithm,
    Callback,
    EffectError,
    Event,
    ObserverError,
    Plan,
    State,
    chain,
    during,
)
from composable.core.logger import Logger
from composable.plan.dispatch import Dispatcher
from composable.plan.effects import fingerprint, fingerprint_changes
from tests.support.runs import trained


@attrs.frozen(repr=False)
class Acts(Algorithm):
    """Does something at the start of a batch, and declares that it writes the batch and memory."""

    action: object = attrs.field(kw_only=True)

    events = frozenset({Event.BATCH_START})
    writes = frozenset({"batch", "memory"})

    def apply(self, event, state):
        return self.action(state)


def in_place(state):
    state.inputs.mul_(2)
    return state


def eval_mode(state):
    state.model.eval()
    return state


def rate(state):
    state.optimizers[0].param_groups[0]["lr"] = 0.5
    return state


def loss(state):
    return state.evolve(loss=torch.zeros(()))


def other_memory(state):
    return state.remember("MixUp", 1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (in_place, r"Acts changed state.batch\[0\] in place at BATCH_START: compute a new value"),
        (eval_mode, r"Acts changed state.model.training from True to False at BATCH_START"),
        (rate, r"Acts changed state.optimizers\[0\].param_groups\[0\]\['lr'\] from 0.1 to 0.5"),
        (loss, r"Acts wrote state.loss at BATCH_START.*writes \['batch', 'memory'\]: add 'loss'"),
        (other_memory, r"Acts wrote state.memory\['MixUp'\] at BATCH_START.*under its own name"),
    ],
)
def test_what_is_not_declared_or_done_in_place_is_refused(action, message):
    with pytest.raises(EffectError, match=message):
        trained(algorithms=Acts(action=action), check_effects=True)


def doubles(event, state):
    return in_place(state) if event is Event.BATCH_START else state


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        *(
            (during("0dur", "1dur", chain(Acts(action=a))), r"1dur', chain\(Acts\)\) wrote state")
            for a in (loss, other_memory)
        ),
        (doubles, "doubles changed"),  # a function declares nothing
    ],
)
def test_combinations_and_functions_are_checked_too(algorithm, message):
    with pytest.raises(EffectError, match=message):
        trained(algorithms=algorithm, check_effects=True)


def test_accepts_new_values_of_a_function_and_anything_without_the_check():
    trained(algorithms=lambda event, state: state.evolve(metrics={}), check_effects=True)
    trained(algorithms=Acts(action=in_place), check_effects=False)


# --- what an observer changed ---


@attrs.frozen
class Pair:
    one: torch.Tensor
    rest: list


def example():
    """Build a state with a value in every field."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets)
    loss.backward()
    optimizer.step()
    return State(
        model,
        optimizers=(optimizer,),
        batch={
            "x": inputs,
            "more": Pair(targets, [torch.zeros(2), SimpleNamespace(a=1)]),
            "count": 3,
        },
        outputs=(outputs, float("nan")),
        loss=loss.detach(),
        losses={"upper": loss.detach().clone()},
        gradients={"0.weight": torch.zeros(2, 2)},
        memory={"Mine": {"kept": torch.zeros(3), "batches": 3}},
        averages={"EMA": {"0.weight": torch.zeros(3)}},
        metrics={"eval": {"loss": float("nan")}},
    )


def write(read):
    """Write to a tensor as careless code does."""

    def change(state):
        with torch.no_grad():
            read(state).add_(1)

    return change


def assign(read, name, value):
    return lambda state: setattr(read(state), name, value)


def first(state):
    return state.model[0]


def groups(state):
    return state.optimizers[0].param_groups


CHANGES = {
    "state.model.0.weight in place": write(lambda s: s.model[0].weight),
    "state.model.1.running_mean in place": write(lambda s: s.model[1].running_mean),
    "state.model.0.weight.grad in place": write(lambda s: s.model[0].weight.grad),
    "state.batch['x'] in place": write(lambda s: s.batch["x"]),
    "state.batch['more'].one in place": write(lambda s: s.batch["more"].one),
    "state.batch['more'].rest[0] in place": write(lambda s: s.batch["more"].rest[0]),
    "state.outputs[0] in place": write(lambda s: s.outputs[0]),
    "state.loss in place": write(lambda s: s.loss),
    "state.gradients['0.weight'] in place": write(lambda s: s.gradients["0.weight"]),
    "state.memory['Mine']['kept'] in place": write(lambda s: s.memory["Mine"]["kept"]),
    "state.averages['EMA']['0.weight'] in place": write(lambda s: s.averages["EMA"]["0.weight"]),
    "state.optimizers[0].state[0]['momentum_buffer'] in place": write(
        lambda s: s.optimizers[0].state[s.model[0].weight]["momentum_buffer"]
    ),
    "state.model.0.bias in place": assign(lambda s: s.model[0].bias, "data", torch.zeros(2)),
    "state.model.0.bias.requires_grad": assign(lambda s: s.model[0].bias, "requires_grad", False),
    "state.model.0.weight.grad, which is another object,": assign(
        lambda s: s.model[0].weight, "grad", None
    ),
    "state.model.0.weight, which is another object,": assign(
        first, "weight", nn.Parameter(torch.zeros(2, 2))
    ),
    "state.model.0, which is another object,": lambda s: s.model.__setitem__(0, nn.Linear(2, 2)),
    "state.model.0.new, which is new,": assign(first, "new", nn.Parameter(torch.zeros(1))),
    "state.model.training from True to False": lambda s: s.model.eval(),
    "state.model.2.training from True to False": lambda s: s.model[2].eval(),
    "state.optimizers[0].param_groups[0]['lr'] from 0.1 to 0.5": lambda s: groups(s)[0].update(
        lr=0.5
    ),
    "state.batch['count'] from 3 to 4": lambda s: s.batch.update(count=4),
    "state.batch['y'], which is new,": lambda s: s.batch.update(y=torch.zeros(1)),
    "state.batch['x'], which is gone,": lambda s: s.batch.pop("x"),
}


@pytest.mark.parametrize("words", list(CHANGES))
def test_a_change_is_found_and_named(words):
    state = example()
    before = fingerprint(state)

    CHANGES[words](state)
    found = list(fingerprint_changes(before, fingerprint(state)))

    named = words.removesuffix(".requires_grad") + " in place" * words.endswith("requires_grad")
    assert named in found


def look_at_everything(state):
    for tensor in state.model.state_dict().values():
        tensor.clone().add_(1)
    state.loss.item()
    state.batch["x"].numpy().sum()
    copy.deepcopy(state.model)(state.batch["x"])
    state.outputs[0].sum().backward  # noqa: B018
    str(state.optimizers), state.current_gradients(), dict(state.memory)
    torch.rand(3)


def unusual():
    """Build a state with tensors without a version or a place."""
    with torch.inference_mode():
        inference = torch.zeros(2)
    return State(nn.LazyLinear(3), batch=[inference, torch.eye(2).to_sparse()])


@pytest.mark.parametrize(
    ("make", "look"), [(example, look_at_everything), (unusual, lambda state: None)]
)
def test_reading_is_no_change(make, look):
    state = make()
    before = fingerprint(state)

    look(state)

    assert list(fingerprint_changes(before, fingerprint(state))) == []


def test_every_field_of_the_state_that_can_be_written_to_is_looked_at():
    fields = {field.name for field in attrs.fields(State)}
    frozen = {
        *("timestamp", "previous_timestamp", "max_duration", "epoch_length", "key", "device"),
        *("batch_spec", "model_call", "precision", "frozen", "to_log"),
        *("replaced_modules", "whole_loss", "update"),
    }
    functions = {"loss_fn", "schedulers", "second_pass", "lr_override"}

    looked_at = {path.split(".")[1].split("[")[0] for path in fingerprint(example())}

    assert looked_at == fields - frozen - functions


class Careless(Callback):
    def batch_end(self, state, logger):
        state.loss.mul_(2)


def fire(event, **options):
    dispatcher = Dispatcher(Plan.compile(callbacks=[Careless()]), Logger(), **options)
    return dispatcher.fire(event, example())


def test_a_callback_that_writes_is_refused_by_its_name_the_event_and_the_tensor():
    with pytest.raises(
        ObserverError, match=r"^Careless changed state.loss in place at BATCH_END, but callbacks"
    ) as caught:
        fire(Event.BATCH_END, check_effects=True)

    assert caught.value.__notes__ == ["raised by Careless at BATCH_END"]


def test_without_the_check_a_hook_is_called_as_it_is():
    careless = Careless()
    dispatcher = Dispatcher(Plan.compile(callbacks=[careless]), Logger())

    hooks, _ = dispatcher.firing(Event.BATCH_END).args

    assert hooks == (careless.batch_end,)
    fire(Event.BATCH_START, check_effects=True)  # an event at which it writes nothing
