"""Law: a run is as long as the last call of `fit` and the Trainer say, after any kills."""

import tempfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Event
from tests.support.observers import Raise
from tests.support.runs import make_trainer
from tests.support.strategies import few

pytestmark = pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")

sessions = st.tuples(
    st.integers(1, 9),  # max_duration
    st.lists(st.sampled_from([None, 1, 2, 4]), min_size=1, max_size=3),  # the calls of fit
    st.sampled_from([1, 2, 3, 4, 6, 99]),  # the batch after which it is killed
)


def expected(scripts):
    """Return the batches after each call: a model of the clock, and of what a checkpoint keeps."""
    clock, kept, found = 0, [], []  # the calls in a checkpoint, with their ends
    for whole, script, kill in scripts:
        calls, repeating, resumed = list(kept), True, clock > 0
        for i, longer in enumerate(script):
            repeating = repeating and i < len(calls) and calls[i][0] == longer
            if not repeating:
                calls[i:] = [(longer, clock + longer if longer else whole)]
            killed = False
            if i + 1 == len(calls):  # otherwise it had ended before
                end = calls[i][1] if longer else whole
                if end <= clock and not resumed:
                    found.append("reached")
                    break
                killed, resumed = clock < kill <= end, False
                if end > clock:
                    clock, kept = kill if killed else end, list(calls)
            found.append(clock)
            if killed:
                break
    return found


@few
@given(st.lists(sessions, min_size=1, max_size=4))
@example([(9, [1], 1), (2, [None], 99)])
@example([(2, [1, None], 99)])
@example([(9, [1, None], 1), (3, [1, None], 99)])
def test_run_is_as_long_as_the_last_call_of_fit_and_the_trainer_say(scripts):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for whole, script, kill in scripts:
            trainer = make_trainer(
                max_duration=f"{whole}ba",
                callbacks=Raise(KeyboardInterrupt(), Event.AFTER_SAVE, kill),
                save_folder=folder,
                save_interval="1ba",
                autoresume=True,
            )
            for longer in script:
                try:
                    end = trainer.fit(duration=longer and f"{longer}ba").timestamp.batch
                except (ValueError, KeyboardInterrupt) as error:
                    reached = "is reached" in str(error)
                    found.append("reached" if reached else trainer.state.timestamp.batch)
                    break
                found.append(end)

    assert found == expected(scripts)
