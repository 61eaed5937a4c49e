"""What a run logs: the loss, the learning rates, and what it was started with."""

import re
from collections import Counter

import attrs
import pytest
import torch

from composable import Algorithm, Event, always, chain, every, identity, when
from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from composable.plan.effects import EffectError
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.campaign import drawn
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import PROBLEMS, make_trainer


def test_learning_rates_of_all_optimizers_and_groups_are_logged():
    memory, model = InMemoryLogger(), linear()
    optimizers = [
        torch.optim.SGD([{"params": [model.weight], "lr": 0.1}], lr=0.5),
        torch.optim.SGD([model.bias], lr=0.2),
    ]
    optimizers[0].add_param_group({"params": [], "lr": 0.3})

    make_trainer(model, optimizers=optimizers, loggers=[memory], max_duration="1ba").fit()

    _, metrics = memory.records[0]
    del metrics["loss/train"]
    assert metrics == {"lr": 0.1, "lr/group1": 0.3, "lr/optimizer1": 0.2}


def test_every_fit_logs_its_hyperparameters():
    memory = InMemoryLogger()
    trainer = make_trainer(loggers=[memory], algorithms=[EMA("1ba")], schedulers=lambda c: 1.0)
    trainer.fit()

    given = memory.hyperparameters
    assert given["seed"] == 17
    assert given["max_duration"] == "2ep"
    assert given["optimizers"] == ["SGD"]
    assert given["algorithms"]["EMA"].startswith("EMA(half_life=Time('1ba')")
    assert given["torch"] == torch.__version__

    trainer.fit(duration="1ep")
    assert memory.hyperparameters["max_duration"] == "3ep"


def test_seed_is_drawn_and_logged_if_none_is_given():
    memory = InMemoryLogger()
    trainer = make_trainer(seed=None, loggers=[memory])
    trainer.fit()

    assert memory.hyperparameters["seed"] == trainer.state.key.seed
    assert trainer.state.key != make_trainer(seed=None).state.key
    assert [make_trainer(seed=n).state.key.seed for n in (0, 2**64 - 1)] == [0, 2**64 - 1]


@attrs.frozen(repr=False)
class LogsSize(Algorithm):
    """Logs the size of the batch, and whether the state still has earlier logs."""

    when: Event = Event.BATCH_START

    events = property(lambda self: {self.when})

    def apply(self, event, state):
        size = torch.tensor(len(state.targets))
        return state.log({f"{self.name}/size": size}).log({f"{self.name}/kept": len(state.to_log)})


@pytest.mark.parametrize("check_effects", [True, False])
@pytest.mark.parametrize("when", [Event.BATCH_START, Event.AFTER_FORWARD, Event.EVAL_BATCH_START])
def test_algorithms_log_at_the_time_of_their_event(when, check_effects):
    memory = InMemoryLogger()
    first, second = LogsSize(when), every("2ba", LogsSize(when, name="Second"))
    trainer = make_trainer(
        algorithms=[first, second],
        eval_dataloader=batches([4]),
        loggers=[memory],
        check_effects=check_effects,
    )

    state = trainer.fit()

    sizes = [(now.batch, m) for now, m in memory.records if "LogsSize/size" in m]
    in_training = when is not Event.EVAL_BATCH_START
    assert [now for now, _ in sizes] == (list(range(6)) if in_training else [3, 6])
    assert {m["LogsSize/size"] for _, m in sizes} == {4}
    assert set(memory.series("LogsSize/kept")) == {0}
    assert len(memory.series("Second/size")) == (3 if in_training else 1)
    assert dict(state.to_log) == {}


def test_logging_of_an_algorithm_changes_nothing_and_needs_no_logger():
    plain, logs = make_trainer().fit(), make_trainer(algorithms=LogsSize()).fit()

    assert torch.equal(plain.model.weight, logs.model.weight)
    assert dict(logs.to_log) == {}


def test_error_of_a_metric_names_the_algorithm():
    def logs_a_batch(event, state):
        return state if state.batch is None else state.log({"inputs": state.inputs})

    with pytest.raises(ValueError, match="metric 'inputs' has") as caught:
        make_trainer(algorithms=logs_a_batch, loggers=[InMemoryLogger()]).fit()
    assert "logs_a_batch" in "".join(getattr(caught.value, "__notes__", [str(caught.value)]))
    with pytest.raises(TypeError, match="metrics=3 must be a mapping"):
        make_trainer().state.log(3)


def test_undeclared_fields_are_still_found_beside_logs():
    @attrs.frozen(repr=False)
    class Undeclared(Algorithm):
        events = frozenset({Event.BATCH_START})

        def apply(self, event, state):
            return state.log({"a": 1}).evolve(loss=None, outputs=3)

    with pytest.raises(EffectError, match=r"wrote state\.outputs"):
        make_trainer(algorithms=Undeclared(), check_effects=True).fit()


@pytest.mark.filterwarnings("ignore:.*(differs from|this run of 1ba)")
@pytest.mark.parametrize("case", drawn(ALGORITHMS, 16), ids=lambda case: case.name)
def test_hyperparameters_count_the_modules_that_each_algorithm_replaced(case, logged, tmp_path):
    problem = next(one for one in PROBLEMS if case.acts_on(one))

    def counted(algorithm, length="1ba", **options):
        memory = InMemoryLogger()
        options |= {"algorithms": [algorithm], "loggers": memory, "max_duration": length}
        problem.trainer(**options).fit()
        return memory.hyperparameters["replaced_modules"]

    found = counted(case.example, save_folder=tmp_path)

    surgeries = [one for one in logged if one.startswith("replaced ")]
    said = Counter()
    for count, kind in re.findall(r"(\d+) (\w+) by ", "\n".join(surgeries)):
        said[kind] += int(count)
    assert found == ({case.example.name: said} if said else {})
    assert counted(when(always, chain(identity, case.example))) == found
    assert counted(case.example, "2ba", save_folder=tmp_path, autoresume=True) == found
