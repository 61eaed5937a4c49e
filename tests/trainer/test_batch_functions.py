"""Functions in the place of a loader: without arguments, of batches, and of a key and a step."""

import re
import warnings
from functools import partial
from itertools import islice

import pytest
import torch

from composable import Event, Key
from composable.data import ReplayedBatchesWarning, seeded_batches
from composable.distributed import DDP, Processes
from tests.support.models import linear, same, weights
from tests.support.observers import Watch
from tests.support.processes import run
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")


def drawn(generator=None):
    """Draw a batch of four, from the global generator unless given one."""
    return torch.randn(4, 4, generator=generator), torch.randint(3, (4,), generator=generator)


def endless():
    offset = 0.0
    while True:  # each batch depends on those before it
        inputs, targets = drawn()
        yield inputs + offset, targets
        offset += 0.1


def two_batches():
    yield from islice(endless(), 2)


def by_step(key, step):
    assert type(key) is Key
    return drawn(key.fold(step).generator())


def by_global_draws(key, step):
    return drawn()


FUNCTIONS = [endless, two_batches, by_step, by_global_draws, partial(by_step)]


@pytest.mark.parametrize("options", [{}, {"grad_accum": 2}, {"accumulate_batches": 3}])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_run_resumes_to_the_bit_at_every_batch(function, options, tmp_path):
    options = {"loader": function, "max_duration": "5ba", **options}
    expected = make_trainer(save_folder=tmp_path, save_interval="1ba", **options).fit()
    for point in tmp_path.glob("*-ba*"):
        state = make_trainer(load_path=point, **options).fit()
        assert same(weights(state.model), weights(expected.model)), point
    again = make_trainer(**{**options, "max_duration": None})
    for duration in ("1ba", "3ba", "1ba"):
        again.fit(duration=duration)
    assert same(weights(again.state.model), weights(expected.model))


def inputs_of(function, seed=17, **options):
    seen = Watch(Event.AFTER_DATALOADER, read=lambda state: state.inputs)
    make_trainer(linear(), function, max_duration="3ba", seed=seed, callbacks=seen, **options).fit()
    return torch.stack(seen.values)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_batches_follow_from_the_seed(function):
    found = inputs_of(function)

    assert torch.equal(found, inputs_of(function))
    assert not torch.equal(found, inputs_of(function, seed=18))
    assert len({one.sum().item() for one in found}) == 3
    if function is not two_batches:  # whose second epoch is another one
        own = islice(seeded_batches(function, 17, epoch=0), 3)
        assert torch.equal(found, torch.stack([inputs for inputs, _ in own]))


def saved_after_two(function, folder):
    make_trainer(
        linear(), function, save_folder=folder, save_interval="2ba", max_duration="4ba"
    ).fit()
    return next(folder.glob("*-ba2"))


@pytest.fixture
def counted():
    """Return a function of batches, and the steps for which it was called."""
    steps = []

    def batch(key, step):
        steps.append(step)
        return by_step(key, step)

    return batch, steps


def test_a_function_of_the_step_skips_nothing(counted, tmp_path):
    function, steps = counted
    path = saved_after_two(by_step, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayedBatchesWarning)
        make_trainer(linear(), function, load_path=path, max_duration="4ba").fit()

    assert steps == [2, 3]


def test_a_function_of_batches_skips_some_and_the_log_says_what_that_cost(tmp_path, capsys):
    path = saved_after_two(endless, tmp_path)
    with pytest.warns(ReplayedBatchesWarning, match=r"function \(key, step\) that returns"):
        make_trainer(linear(), endless, load_path=path, max_duration="4ba").fit()

    assert re.fullmatch(r"skipped 2 batches in \d+\.\d s\n", capsys.readouterr().err)


@pytest.mark.parametrize("function", [endless, by_step])
@pytest.mark.parametrize("time", ["2ep", 2, "1iter"])
def test_a_length_in_epochs_is_refused(function, time):
    message = r"counts epochs, and train_dataloader is a function.* such as '1000ba'"
    with pytest.raises(ValueError, match=f"max_duration='.*' {message}"):
        make_trainer(linear(), function, max_duration=time, iteration_length="2ep")
    with pytest.raises(ValueError, match=f"duration='.*' {message}"):
        make_trainer(linear(), function, max_duration="9sp", iteration_length="1ep").fit(
            duration=time
        )


def test_an_evaluation_takes_a_function_whose_batches_end():
    trainer = make_trainer(linear(), eval_dataloader=two_batches)
    expected = make_trainer(linear(), eval_dataloader=list(seeded_batches(two_batches, 1, epoch=0)))

    assert trainer.eval().keys() == expected.eval().keys()
    assert len(trainer.predict(two_batches)) == 2
    for name in ("eval_dataloader", "dataloader"):
        with pytest.raises(
            TypeError, match=f"{name}=.* without arguments that returns an iterator o"
        ):
            trainer.predict(by_step) if name == "dataloader" else trainer.eval(by_step)


def test_steps_on_trial_read_a_function_of_the_step(counted):
    function, steps = counted
    trainer = make_trainer(linear(), function, max_duration="3ba")
    with trainer.trial() as trial:
        list(islice(trial.batches(), 3))
    assert steps == [0, 1, 2]


# --- several processes ---


def read(function, data):
    options = {} if Processes.current().size == 1 else {"parallel": DDP(data=data, shards=2)}
    return [one.tolist() for one in inputs_of(function, **options)]


@pytest.mark.parametrize("function", [endless, by_step])
def test_processes_share_each_batch_or_have_keys_of_their_own(function):
    (whole,) = run(partial(read, function, "auto"), 1)
    shared = run(partial(read, function, "auto"), 2)
    own = run(partial(read, function, "local"), 2)

    assert [first + second for first, second in zip(*shared, strict=True)] == whole
    assert own[0] != own[1]
    assert [len(batch) for one in own for batch in one] == [4] * 6
