"""The signals of processes that tests start, and of the tests themselves."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_DEFAULTS = {
    "SIGHUP": signal.SIG_DFL,
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
}


def set_signals() -> None:
    """Handle the signals as in a terminal: `nohup` and `&` make processes ignore some.

    As the `preexec_fn` of a process, or in the process of the tests.
    """
    for name, handler in _DEFAULTS.items():
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), handler)


@contextmanager
def signals_set() -> Iterator[None]:
    """Handle the signals as in a terminal within a block."""
    known = [getattr(signal, name) for name in _DEFAULTS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in known}
    set_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
