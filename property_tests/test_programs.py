"""All laws at once, of programs that a machine puts together step by step.

A program is a list of algorithms under combinators, observers, requests and options of the
Trainer, on images or on text. Every run of one is held to all laws. What the machine finds
becomes a test with a name; `HYPOTHESIS_PROFILE=thorough` has it look longer.
"""

import random
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from composable import Callback, Control, Evaluator, chain, choose
from composable.core.algorithm import leaves
from composable.loggers import InMemoryLogger
from tests.support.algorithm_cases import (
    can_be_combined,
    combinable,
    combinations,
    on_a_problem,
    works_in_order,
    wrapped,
)
from tests.support.observers import watched, watched_by
from tests.support.outcomes import differences, left_by, resumed
from tests.support.runs import adam, sgd
from tests.support.strategies import seeds
from tests.support.traced import SavesBy
from tests.support.tracing import (
    Present,
    check_brackets,
    check_streams,
    check_what_was_read_and_written,
    check_who_ran,
    traced,
)

LONGEST = 7  # batches of a run, of which an epoch has three


class AsksAfter(Callback):
    """Requests something after the n-th batch."""

    def __init__(self, batch, request):
        self.batch, self.request = batch, request

    def batch_end(self, state, logger):
        return self.request if state.timestamp.batch == self.batch else None


def falling(clock):
    """Return a multiplier that depends on the batch alone."""
    return 1 / (1 + clock.timestamp.batch)


def to_the_end(clock):
    """Return a multiplier that depends on the length of the run."""
    return 1 - clock.elapsed / 2


exponential = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)


OPTIONS = {
    "grad_accum": [None, 2, 3],
    "optimizers": [sgd, adam],
    "schedulers": [None, falling, exponential, to_the_end],
    "step_schedulers_every_batch": [False, True],
    "eval_interval": ["1ep", "2ba", None],
    "log_interval": ["1ba", "2ba"],
    "iteration_length": [None, "1ep"],
    "max_duration": ["7ba", "2ep", "1ep", "9sp"],
}


class Programs(RuleBasedStateMachine):
    """Puts programs together, runs them and holds them to all laws."""

    @initialize(drawn=on_a_problem(combinations), seed=seeds)
    def begin(self, drawn, seed):
        (self.problem, algorithms), self.seed = drawn, seed
        self.rolls = random.Random(seed)
        self.algorithms, self.observers, self.asked = list(algorithms), [], []
        self.options = {}
        self.loader, self.evaluators = "batches", 1

    # --- algorithms ---

    @property
    def left(self):
        """The cases of algorithms that can be added."""
        names = {leaf.name for algorithm in self.algorithms for leaf in leaves(algorithm)}
        return [
            one
            for one in combinable(self.problem)
            if one.name not in names and all(can_be_combined(one.name, n) for n in names)
        ]

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def add(self, data):
        case = data.draw(st.sampled_from(self.left), "case")
        self.algorithms.append(data.draw(case.instances, "algorithm"))

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def add_wrapped(self, data):
        case = data.draw(st.sampled_from(self.left), "case")
        self.algorithms.append(data.draw(case.instances.flatmap(wrapped), "algorithm"))

    @precondition(lambda self: self.algorithms)
    @rule(data=st.data())
    def wrap(self, data):
        self.algorithms.append(data.draw(wrapped(self.take(data)), "algorithm"))

    @precondition(lambda self: len(self.algorithms) > 1)
    @rule(data=st.data(), combinator=st.sampled_from([chain, lambda *both: choose(both)]))
    def join(self, data, combinator):
        one, other = self.take(data), self.take(data)
        if not all(works_in_order(a.name, b.name) for a, b in product(leaves(one), leaves(other))):
            one, other = other, one
        self.algorithms.append(combinator(one, other))

    @precondition(lambda self: len(self.algorithms) > 2)
    @rule(data=st.data())
    def remove(self, data):
        self.take(data)

    def take(self, data):
        """Remove one of the algorithms from the list, and return it."""
        return self.algorithms.pop(data.draw(st.integers(0, len(self.algorithms) - 1), "which"))

    # --- all else ---

    @rule(observers=watched())
    def watch(self, observers):
        self.observers = observers

    @rule(batch=st.integers(1, LONGEST), request=st.sampled_from(Control))
    def ask(self, batch, request):
        self.asked = [*self.asked[-2:], (batch, request)]

    @rule(data=st.data(), name=st.sampled_from(sorted(OPTIONS)))
    def choose_option(self, data, name):
        self.options[name] = data.draw(st.sampled_from(OPTIONS[name]), "value")

    @rule(loader=st.sampled_from(["batches", "shuffled"]), evaluators=st.integers(0, 2))
    def choose_data(self, loader, evaluators):
        self.loader, self.evaluators = loader, evaluators

    # --- runs ---

    def build(self, *, algorithms=None, callbacks=(), loggers=(), **options):
        """Build a Trainer of the program, which records when it would save."""
        saved = []
        training = self.problem.trainer(
            loader=getattr(self.problem, self.loader)(),
            eval_dataloader=[
                Evaluator(f"eval{i}", getattr(self.problem, self.loader)())
                for i in range(self.evaluators)
            ]
            or None,
            algorithms=self.algorithms if algorithms is None else algorithms,
            callbacks=[
                *(AsksAfter(*asked) for asked in self.asked),
                SavesBy(lambda state: saved.append(state.timestamp.batch)),
                *callbacks,
            ],
            loggers=loggers,
            seed=self.seed,
            **{"max_duration": f"{LONGEST}ba", "check_effects": False, **self.options, **options},
        )
        training.saved = saved
        return training

    @invariant()
    def all_laws_hold(self):
        logged = InMemoryLogger()
        with traced() as trace:
            training = self.build(callbacks=[Present(trace)], loggers=[logged])
            left = self.left_by(training, training.fit(), logged)

        self.hold_to_its_plan(training.plan, trace)
        self.hold_to_itself(left)
        if not (trace.asks_how_long() or self.depends_on_its_length()):
            self.hold_to_its_parts(left)

    def left_by(self, training, state, logged):
        """Return the outcome of a run, its logged metrics and its checkpoints."""
        metrics = [metrics for _, metrics in logged.records]
        return {**left_by(state), "logged": metrics, "saved": list(training.saved)}

    def hold_to_its_plan(self, plan, trace):
        """Explain is faithful, brackets nest, effects are declared, streams have names."""
        check_who_ran(plan, trace, quiet={"AsksAfter", "InMemoryLogger"})
        check_brackets(trace)
        check_what_was_read_and_written(plan, trace)
        check_streams(trace, self.seed)

    def hold_to_itself(self, left):
        """Check that a rerun is the same: reordered, observed, with other global generators."""
        reordered = self.rolls.sample(self.algorithms, len(self.algorithms))
        torch.manual_seed(self.rolls.randrange(100))
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
        logged = InMemoryLogger()
        options = {"algorithms": reordered, "loggers": [logged], "check_effects": True}
        with watched_by(self.observers, self.build, **options) as again:
            state = again.fit()

        ours = {**left, "logged": without_observers(left["logged"])}
        theirs = self.left_by(again, state, logged)
        theirs["logged"] = without_observers(theirs["logged"])
        assert differences(ours, theirs) == []
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert before[1] == after[1]
        assert differences(before[2], after[2], lambda a, b: bool(np.all(a == b))) == []

    def depends_on_its_length(self):
        """Return whether fitting in parts changes the run."""
        stops = any(Control.STOP in request for _, request in self.asked)
        return stops or self.options.get("schedulers") is to_the_end

    def hold_to_its_parts(self, left):
        """Fitted in parts it leaves the same behind."""
        batches = left["counts"]["batch"]
        if batches < 2:
            return
        stop = self.rolls.randrange(1, batches)
        trainers = []

        def build():
            trainers.append(self.build(max_duration=None))
            return trainers[-1]

        state = resumed(build, f"{stop}ba", f"{batches - stop}ba")

        of_parts = {**left_by(state), "saved": trainers[-1].saved}
        assert differences({name: left[name] for name in of_parts}, of_parts) == []


def without_observers(logged):
    """Return the metrics that the Trainer logged itself."""
    own = ("loss/", "lr/", "metrics/", "learning_rate")
    return [
        {name: value for name, value in metrics.items() if name.startswith(own)}
        for metrics in logged
        if any(name.startswith(own) for name in metrics)
    ]


@pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning",
    "ignore::composable.IdleAlgorithmWarning",
    "ignore::composable.UnsupportedRequestWarning",
    "ignore:GradientNoise measured nothing",
    "ignore:Profiler skips a recording",
)
def test_every_program_obeys_all_laws():
    profile = settings.default
    thorough = profile.max_examples > 25
    run_state_machine_as_test(
        Programs,
        settings=settings(
            max_examples=profile.max_examples if thorough else 4,
            stateful_step_count=20 if thorough else 5,
        ),
    )
