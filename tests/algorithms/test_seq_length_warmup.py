"""SeqLengthWarmup in the loop: the batches of the functions."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import SeqLengthWarmup
from composable.functional import set_sequence_length, warmed_up_length
from tests.support.models import seeded
from tests.support.observers import Watch
from tests.support.runs import make_trainer

WORDS = 5


class Tagger(nn.Module):
    """A language model that predicts each word from the previous one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4)
        self.head = nn.Linear(4, WORDS)

    def forward(self, batch):
        return self.head(self.embed(batch["input_ids"])).transpose(1, 2)

    def loss(self, outputs, batch):
        return cross_entropy(outputs[..., :-1], batch["labels"][:, 1:])


def texts(count=6, tokens=16):
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(WORDS, (4, tokens), generator=draw) for _ in range(count)]
    return [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x} for x in ids]


def watched(**options):
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)
    make_trainer(
        seeded(Tagger),
        loss_fn=None,
        train_dataloader=texts(),
        input_key="input_ids",
        target_key="labels",
        algorithms=[SeqLengthWarmup(**options)],
        callbacks=[watch],
    ).fit()
    return watch.values


SCHEDULE = {"duration": 0.5, "min_seq_length": 4, "max_seq_length": 16, "step_size": 2}


@pytest.mark.parametrize("options", [{}, {"truncate": False}, {"preserve_end_of_sequence": True}])
def test_batches_match_those_of_the_functions(options):
    seen = watched(**SCHEDULE, **options)

    lengths = [batch["input_ids"].shape[1] for batch in seen]
    assert lengths == [4, 6, 8, 10, 12, 14, 16, 16, 16, 16, 16, 16]
    for k, (short, whole) in enumerate(zip(seen, 2 * texts(), strict=True)):
        expected = set_sequence_length(whole, warmed_up_length(k / 12, **SCHEDULE), **options)
        assert all(torch.equal(short[name], expected[name]) for name in whole)


def test_pairs_of_tensors_are_shortened():
    data = [(batch["input_ids"], batch["labels"]) for batch in texts()]
    watch = Watch(Event.BATCH_START, read=lambda s: (s.inputs.shape, s.targets.shape))

    make_trainer(
        seeded(lambda: nn.Sequential(nn.Embedding(WORDS, WORDS))),
        loss_fn=lambda out, y: cross_entropy(out.transpose(1, 2), y),
        train_dataloader=data,
        algorithms=[SeqLengthWarmup(**SCHEDULE)],
        callbacks=[watch],
    ).fit()

    assert watch.values[0] == ((4, 4), (4, 4))
    assert watch.values[-1] == ((4, 16), (4, 16))
