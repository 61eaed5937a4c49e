import attrs
import pytest

from composable.comparison.trials.groups import Groups, check_seeds_at_once
from tests.support.comparison import request


def of(workers, requests, seeds_at_once="auto"):
    groups = Groups(workers, seeds_at_once)
    for one in requests:
        groups.add(one)
    return groups


def names(group):
    return [(one.trial.arm, one.trial.duration, one.trial.seed) for one in group]


def taken(groups):
    found = []
    while groups:
        found.append(names(groups.take()))
    return found


def seeds(count, arm="plain", duration="2ep"):
    return [request(seed=seed, arm=arm, duration=duration) for seed in range(count)]


def test_a_group_has_the_seeds_of_one_arm_and_one_schedule():
    requests = [*seeds(2), *seeds(2, "other"), *seeds(2, duration="4ep")]
    assert taken(of(1, requests)) == [
        [("plain", "2ep", 0), ("plain", "2ep", 1)],
        [("other", "2ep", 0), ("other", "2ep", 1)],
        [("plain", "4ep", 0), ("plain", "4ep", 1)],
    ]


@pytest.mark.parametrize("change", [{"purpose": "tuning"}, {"settings": {"lr": 1.0}}])
def test_settings_and_purposes_are_not_mixed(change):
    one, other = seeds(2)
    other = attrs.evolve(other, trial=attrs.evolve(other.trial, **change))
    assert [len(group) for group in taken(of(1, [one, other]))] == [1, 1]


def test_every_worker_has_its_share():
    assert [len(group) for group in taken(of(4, seeds(8)))][:4] == [2, 2, 1, 1]
    assert [len(group) for group in taken(of(1, seeds(40)))] == [32, 8]


def test_without_seeds_at_once_trials_keep_their_order():
    requests = [*seeds(2), *seeds(2, "other")]
    assert taken(of(1, requests, seeds_at_once=False)) == [names([one]) for one in requests]


def test_an_arm_that_gains_nothing_is_trained_separately():
    groups = of(1, [*seeds(2), *seeds(2, "other")])
    groups.separate("plain")
    assert [len(group) for group in taken(groups)] == [1, 1, 2]


def test_trials_that_are_put_back_come_first_and_separately():
    groups = of(1, [*seeds(2), *seeds(2, "other")])
    groups.put_back(groups.take())
    assert taken(groups) == [
        [("plain", "2ep", 0)],
        [("plain", "2ep", 1)],
        [("other", "2ep", 0), ("other", "2ep", 1)],
    ]


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_refuses_another_value(value):
    with pytest.raises(ValueError, match=r"seeds_at_once=.* must be True, False or 'auto'"):
        check_seeds_at_once(value)
