"""Alibi in the loop: the function's model, short sequences in training, whole ones afterwards."""

from fractions import Fraction

import pytest
import torch

from composable import AmbiguousOrderWarning, Event, chain
from composable.algorithms import Alibi, SeqLengthWarmup
from composable.functional import alibi, set_sequence_length
from tests.support.models import WORDS, same, weights
from tests.support.observers import Watch
from tests.support.runs import LANGUAGE


def texts(tokens=16, count=3, size=4):
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, WORDS, (size, tokens), generator=draw) for _ in range(count)]
    return [{"input_ids": x, "labels": x.roll(-1, 1)} for x in ids]


def run(loader, algorithms, **options):
    watch = Watch(Event.BEFORE_FORWARD, read=lambda state: state.batch)
    trainer = LANGUAGE.trainer(
        loader=loader, algorithms=algorithms, callbacks=[watch], max_duration="1ep", **options
    )
    return trainer, trainer.fit().model, watch.values


@pytest.mark.parametrize("scaling", [0.25, 0.3, 1, 0.01])
def test_training_is_that_of_the_functions(scaling):
    loader = texts()
    length = {0.25: 5, 0.3: 5, 1: 16, 0.01: 1}[scaling]
    short = [set_sequence_length(batch, length, truncate=False) for batch in loader]

    _, ours, seen = run(loader, [Alibi(64, scaling)])
    _, theirs, _ = run(short, [], model=alibi(LANGUAGE.model(), max_sequence_length=64))

    assert repr(ours) == repr(theirs)
    assert same(weights(ours), weights(theirs))
    for batch, expected in zip(seen, short, strict=True):
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[name], expected[name]) for name in batch)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 10, 50, 100, 200])
@pytest.mark.parametrize("scaling", [0.1, 0.29, 0.57, 0.7])
def test_length_is_exact_and_has_a_token_that_pieces_share(tokens, scaling):
    algorithm = Alibi(64, scaling)
    state = LANGUAGE.trainer().state.evolve(batch=texts(tokens, count=1)[0])

    new = algorithm(Event.AFTER_DATALOADER, state)

    expected = min(tokens, int(Fraction(str(scaling)) * tokens) + 1)
    assert new.batch["input_ids"].shape[1] == expected
    assert (new is state) == (expected == tokens)


def test_scaling_of_one_has_no_event_of_batches():
    assert Alibi(8, 1).events == {Event.INIT}
    assert Alibi(8).events == {Event.INIT, Event.AFTER_DATALOADER}


def test_warns_of_ambiguous_order_with_a_warm_up():
    warm_up = SeqLengthWarmup(duration=0, max_seq_length=5, min_seq_length=1)

    with pytest.warns(AmbiguousOrderWarning, match="only their names put Alibi first"):
        _, _, unsaid = run(texts(16), [warm_up, Alibi(64, 0.5)])
    _, _, bounded = run(texts(16), chain(Alibi(64, 0.5), warm_up))
    _, _, halved = run(texts(16), chain(warm_up, Alibi(64, 0.5)))

    shapes = [seen[0]["input_ids"].shape for seen in (unsaid, bounded, halved)]
    assert shapes == [(8, 5), (8, 5), (8, 3)]
