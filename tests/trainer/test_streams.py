"""Streams: loaders of iterable datasets without a length train, evaluate, repeat and resume."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from composable.data import ReplayedBatchesWarning
from tests.support.campaign import each_once
from tests.support.models import linear, same, weights
from tests.support.runs import make_trainer


class Stream(IterableDataset):
    """Twelve examples that depend on the epoch and on all global generators."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 12, stride):
            noise = torch.rand(()) + random.random() + float(np.random.rand())  # noqa: NPY002
            yield torch.full((4,), float(i + self.epoch)) + noise, torch.tensor(i % 3)


LOADERS = {
    "no workers": {},
    "2 workers": {"num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True},
}


@pytest.fixture(params=LOADERS.values(), ids=LOADERS)
def build(request):
    """Return a function that builds a Trainer on streams."""

    def build(**changes):
        return make_trainer(
            linear(),
            train_dataloader=DataLoader(Stream(), batch_size=2, **request.param),
            eval_dataloader=DataLoader(Stream(), batch_size=4, **request.param),
            check_effects=False,
            **changes,
        )

    return build


def test_train_evaluate_predict_and_repeat(build):
    first, again = build(), build()
    state = first.fit()
    assert (state.timestamp.epoch, state.timestamp.batch, state.timestamp.sample) == (2, 12, 24)
    assert state.epoch_length is None
    assert same(weights(again.fit().model), weights(state.model))
    assert again.state.metrics == state.metrics
    assert first.eval() == again.eval()
    predictions = [
        trainer.predict(DataLoader(Stream(), batch_size=4)) for trainer in (first, again)
    ]
    assert all(map(torch.equal, *predictions))
    assert len(predictions[0]) == 3


@pytest.mark.parametrize(
    ("build", "batch"), each_once(list(LOADERS.values()), [8, 4]), indirect=["build"]
)
def test_resumed_run_is_exact(build, tmp_path, batch):
    options = {"save_folder": tmp_path, "save_interval": "4ba"}
    expected = weights(build(**options).fit().model)

    resumed = build(load_path=tmp_path / f"ep{batch // 6}-ba{batch}")
    with pytest.warns(ReplayedBatchesWarning) as caught:
        state = resumed.fit()

    assert same(weights(state.model), expected)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("duration", ["7ba", "14sp"])
def test_stops_within_an_epoch(duration):
    loader = DataLoader(Stream(), batch_size=2)
    state = make_trainer(train_dataloader=loader, max_duration=duration).fit()
    assert (state.timestamp.epoch, state.timestamp.batch_in_epoch) == (1, 1)
