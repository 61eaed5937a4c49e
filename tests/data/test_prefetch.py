"""Batches are fetched ahead of their steps: tests/gpu/test_prefetch.py has what is copied."""

import pytest
import torch

from composable.data.prefetch import Copies, Prefetcher, on_device
from tests.support.runs import make_trainer


def test_an_error_is_raised_where_its_batch_would_be():
    def failing():
        yield 1
        raise LookupError("example 7 is missing")

    fetched = Prefetcher(failing(), Copies())
    assert next(fetched) == 1
    fetched.fetch()
    with pytest.raises(LookupError, match="example 7"):
        next(fetched)
    assert list(fetched) == []


def test_an_interrupt_is_raised_at_once():
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        Prefetcher(interrupted(), Copies()).fetch()


def test_other_devices_get_each_batch_when_it_is_due():
    batch = {"x": torch.ones(2), "name": "a"}

    (moved,) = on_device(iter([batch]), torch.device("meta"))
    assert (moved["x"].device.type, moved["name"]) == ("meta", "a")
    (same,) = on_device(iter([batch]), torch.device("cpu"))
    assert same is batch


def test_nothing_is_read_ahead_on_the_cpu():
    data = make_trainer()._run.data

    assert data.copies is None
    assert not isinstance(data.batches(make_trainer().state), Prefetcher)
