"""Global callbacks: who is one, where, and until when."""

import contextvars
import threading

import pytest

from composable import Callback, register_global_callback
from composable.algorithms import MixUp
from composable.loggers import InMemoryLogger
from composable.plan.global_callbacks import global_callbacks


class One(Callback):
    pass


class Equal(Callback):
    def __eq__(self, other):
        return isinstance(other, Equal)

    __hash__ = None


def test_callbacks_of_blocks_are_ordered_from_outside_in_and_once_each():
    outer, inner = One(), One()

    with outer as entered:
        assert entered is outer
        assert global_callbacks() == (outer,)
        with inner, outer:
            assert global_callbacks() == (outer, inner)
        assert global_callbacks() == (outer,)
    assert global_callbacks() == ()


def test_blocks_may_end_in_another_order_and_end_after_an_error():
    first, second = One(), One()
    with pytest.raises(RuntimeError, match="no disk"), One(), One():
        raise RuntimeError("no disk")
    first.__enter__()
    second.__enter__()

    first.__exit__(None, None, None)
    assert global_callbacks() == (second,)

    second.__exit__(None, None, None)
    assert global_callbacks() == ()


def test_callbacks_that_are_equal_are_two():
    first, second = Equal(), Equal()

    with first, second:
        assert [one is two for one, two in zip(global_callbacks(), (first, second), strict=True)]
        second.__exit__(None, None, None)
        assert [one is first for one in global_callbacks()] == [True]
        second.__enter__()
    assert global_callbacks() == ()


def test_a_block_is_of_its_thread_and_a_registered_one_of_the_process():
    registered, entered, seen = One(), One(), []
    handle = register_global_callback(registered)

    with entered:
        thread = threading.Thread(
            target=contextvars.Context().run, args=(lambda: seen.append(global_callbacks()),)
        )
        thread.start()
        thread.join()
        assert global_callbacks() == (registered, entered)
    handle.remove()

    assert seen == [(registered,)]


def test_many_threads_can_register_and_remove_at_once():
    begin = threading.Barrier(8)

    def work():
        begin.wait()
        for _ in range(200):
            handle = register_global_callback(One())
            assert handle.callback in global_callbacks()
            handle.remove()
            assert handle.callback not in global_callbacks()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert global_callbacks() == ()


def look(event, state, logger):
    pass


def test_each_handle_removes_its_own_registration_once():
    one, other = One(), InMemoryLogger()
    handles = [register_global_callback(each) for each in (one, one, other, look, look)]

    handles[0].remove()
    handles[0].remove()
    assert global_callbacks()[:2] == (one, other)
    assert [callback.name for callback in global_callbacks()[2:]] == ["look"]

    for handle in handles[1:]:
        handle.remove()
    assert global_callbacks() == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MixUp, r"callback is the class MixUp; pass an instance, MixUp\(\)"),
        (MixUp(), r"callback is MixUp.*algorithm; pass it in algorithms=\[...\]"),
        (3, "callback is 3; pass a Callback, or a function"),
    ],
)
def test_anything_else_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        register_global_callback(given)

    assert global_callbacks() == ()
