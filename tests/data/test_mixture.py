"""Mixtures of loaders: shares, resuming at every batch, and the loss of each loader."""

from collections import Counter
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composable.callbacks import MixtureMonitor
from composable.data import GlobalBatchSampler, Mixture, seeded_batches
from composable.distributed import DDP
from composable.loggers import InMemoryLogger
from tests.support.processes import run
from tests.support.runs import make_trainer


def collate_in_tens(examples):
    return 10 * torch.tensor(examples)


def mixture(workers=0, **options):
    sampler = GlobalBatchSampler(range(4), batch_size=2, seed=3)
    loaders = {
        "shuffled": DataLoader(range(12), 2, shuffle=True, num_workers=workers),
        "tens": DataLoader(range(100, 103), 1, collate_fn=collate_in_tens),
        "sampled": DataLoader(range(200, 204), batch_sampler=sampler),
    }
    return Mixture(loaders, **options)


def epoch(loader, number=0, **options):
    return [batch.tolist() for batch in seeded_batches(loader, 7, epoch=number, **options)]


def test_an_epoch_has_each_batch_of_each_loader_once():
    found = epoch(mixture())
    examples = sorted(one for batch in found for one in batch)
    assert examples == [*range(12), *range(200, 204), 1000, 1010, 1020]
    assert len(mixture()) == len(found) == 6 + 3 + 2
    assert epoch(mixture(), 1) != found


@pytest.mark.parametrize("mode", ["shortest", "longest"])
def test_shares_are_kept_at_any_time_and_modes_end_as_they_say(mode):
    weights = {"shuffled": 5.0, "tens": 2.0, "sampled": 1.0}
    sources = mixture(weights=weights, mode=mode).sources
    for end in range(1, len(sources) + 1):
        counts = Counter(sources[:end])
        assert all(abs(counts[name] - end * one / 8) < 1 for name, one in weights.items())
    read = Counter(sources)
    lengths = {"shuffled": 6, "tens": 3, "sampled": 2}
    if mode == "shortest":
        assert all(read[name] <= lengths[name] for name in lengths)
    else:
        assert all(read[name] >= lengths[name] for name in lengths)
        again = epoch(mixture(weights=weights, mode=mode))
        shuffled = [batch for batch, name in zip(again, sources, strict=True) if name == "shuffled"]
        assert shuffled[:6] != shuffled[6:12]
        assert sorted(chain.from_iterable(shuffled[:6])) == list(range(12))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_starts_at_every_batch(workers):
    whole = epoch(mixture(), 1)
    for skip in range(0, len(whole) + 1, 1 if not workers else 5):
        assert epoch(mixture(workers), 1, skip=skip) == whole[skip:]


def fit(folder, stop=None, parallel=None):
    torch.manual_seed(0)
    inputs, targets = torch.randn(24, 4), torch.arange(24) % 3
    parts = {"a": slice(0, 16), "b": slice(16, 24)}
    loaders = {
        name: DataLoader(TensorDataset(inputs[part], targets[part]), 4, shuffle=True)
        for name, part in parts.items()
    }
    mixed = Mixture(loaders, weights={"a": 1, "b": 1}, mode="longest")
    memory = InMemoryLogger()
    trainer = make_trainer(
        loader=mixed,
        callbacks=[MixtureMonitor(mixed)],
        loggers=memory,
        save_folder=folder,
        autoresume=folder is not None,
        parallel=parallel,
    )
    trainer.fit(duration=stop)
    series = {name: memory.series(f"loss/train/{name}") for name in parts}
    return trainer.state.model.weight.detach().clone(), series


def test_a_run_resumes_to_the_bit_and_logs_the_loss_of_each_loader(tmp_path):
    weight, series = fit(None)
    assert {name: len(one) for name, one in series.items()} == {"a": 8, "b": 6}
    fit(tmp_path, "5ba")
    resumed, rest = fit(tmp_path)
    assert torch.equal(resumed, weight)
    assert rest["a"] == series["a"][len(series["a"]) - len(rest["a"]) :]


def fit_on_processes():
    return fit(None, parallel=DDP(shards=2, exact=True))


def test_processes_share_each_batch():
    weight = run(fit_on_processes, 2)[0][0]
    assert torch.equal(run(fit_on_processes, 1)[0][0], weight)
