"""The model that a Trainer is given: it stays the trained one, and one Trainer owns it."""

import copy
import gc
import pickle
import weakref

import attrs
import pytest
import torch
from torch import nn

from composable import Algorithm, Event
from composable.algorithms import BlurPool, ChannelsLast, Factorize
from composable.trainer.ownership import GivenModel
from tests.support.data import batches
from tests.support.models import conv_net, linear, same, weights
from tests.support.runs import make_trainer

IMAGES = batches(images=True)


def outputs(model):
    with torch.no_grad():
        return copy.deepcopy(model).eval()(IMAGES[0][0])


@attrs.frozen(repr=False)
class Surgery(Algorithm):
    """Replaces the model by the result of a function, at an event."""

    function: object = None
    at: Event = Event.INIT
    writes = frozenset({"model"})

    @property
    def events(self):
        return frozenset({self.at})

    def match(self, event, state):
        return not getattr(state.model, "changed", False)

    def apply(self, event, state):
        model = self.function(copy.deepcopy(state.model))
        model.changed = True
        return state.evolve(model=model)


def wrapped(model):
    return nn.Sequential(model, nn.Softmax(-1))


def replaced_layer(model):
    model[0] = nn.Sequential(model[0], nn.Tanh())
    return model


@pytest.mark.parametrize("at", [Event.INIT, Event.AFTER_LOAD, Event.FIT_START, Event.EPOCH_START])
@pytest.mark.parametrize("function", [wrapped, replaced_layer], ids=lambda f: f.__name__)
def test_given_model_computes_with_the_trained_layers(function, at):
    given = conv_net()
    layer, last = given[0], given[-1]
    trainer = make_trainer(
        given, IMAGES, algorithms=[Surgery(function=function, at=at)], check_effects=False
    )

    trainer.fit()

    expected = trainer.predict(IMAGES[:1])[0]
    assert torch.equal(outputs(given), expected)
    assert torch.equal(outputs(trainer.state.model), expected)
    assert same(weights(given), weights(trainer.state.model))
    if function is replaced_layer:
        assert isinstance(layer, nn.Sequential)
        assert torch.equal(last.weight, trainer.state.model[-1].weight)


def test_model_around_the_given_one_is_found_too():
    class Around(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.inner, self.call = model, model.forward

        def forward(self, inputs):
            return 2 * self.call(inputs)

    given = conv_net()

    def around(event, state):
        if event is not Event.INIT:
            return state
        return state.evolve(model=Around(state.model))

    trainer = make_trainer(given, IMAGES, algorithms=[around], check_effects=False)
    trainer.fit()

    assert isinstance(given, Around)
    assert torch.equal(given.eval()(IMAGES[0][0]), trainer.predict(IMAGES[:1])[0])
    assert torch.equal(outputs(given), trainer.predict(IMAGES[:1])[0])


@pytest.mark.parametrize(
    "algorithm",
    [BlurPool(min_channels=1), ChannelsLast(), Factorize(min_channels=2, min_features=2)],
)
def test_given_model_has_the_buffers_of_the_trained_one(algorithm):
    given = conv_net()
    trainer = make_trainer(given, IMAGES, algorithms=[algorithm])

    trainer.fit()

    assert same(weights(given), weights(trainer.state.model))
    pickle.loads(pickle.dumps(given.state_dict()))
    given.eval()
    assert not trainer.state.model.training


def test_model_that_cannot_become_the_trained_one_raises_at_each_use():
    class Slots(nn.Module):
        __slots__ = ("extra",)

        def forward(self, inputs):
            return inputs

    given = Slots()
    owner = make_trainer()
    GivenModel(given, weakref.ref(owner)).follow(nn.Linear(2, 2))

    for use in (lambda: given(1), lambda: given.weight, lambda: given.eval()):
        with pytest.raises(RuntimeError, match="cannot become"):
            use()
    with pytest.raises(
        RuntimeError, match=r"replaced this Slots by a Linear.*trainer\.state\.model"
    ):
        given.state_dict()
    with pytest.raises(RuntimeError, match="cannot become"):
        copy.deepcopy(given)
    assert "cannot become" in repr(given)


def test_second_trainer_of_a_model_is_an_error_until_the_first_is_deleted():
    model = linear()
    first = make_trainer(model)
    first.fit()

    for again in (model, first.state.model):
        with pytest.raises(ValueError, match=r"model belongs to <Trainer of Linear.*del trainer"):
            make_trainer(again)
    make_trainer(copy.deepcopy(model)).fit()
    del first, again
    gc.collect()
    make_trainer(model).fit()


def test_a_trainer_that_could_not_be_built_leaves_the_model_as_it_was():
    model = conv_net()
    before = outputs(model)

    with pytest.raises(TypeError, match="optimizers"):
        make_trainer(model, IMAGES, algorithms=[BlurPool(min_channels=1)], optimizers=[lambda p: 3])

    assert torch.equal(outputs(model), before)
    make_trainer(model, IMAGES, algorithms=[BlurPool(min_channels=1)]).fit()
