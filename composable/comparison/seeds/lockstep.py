"""Run functions in turns, and let them meet at points that all of them reach."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Lockstep"]


class Lockstep:
    """Threads of which one runs at a time, until it waits in `meet`.

    When all wait, `meeting` gets what each has brought and returns what each receives. So the
    order of everything that happens is the same in every run, and the functions may share the
    global random generators as long as they seed them between two meetings.

    Args:
        count: The number of functions.
        meeting: A function of what was brought, by the number of the function. An exception of it
            is raised in all functions.
        clock: Returns seconds.
    """

    def __init__(
        self,
        count: int,
        meeting: Callable[[Mapping[int, Any]], Mapping[int, Any]],
        clock: Callable[[], float],
    ) -> None:
        self._meeting, self._clock = meeting, clock
        self._live = set(range(count))
        self._waiting: dict[int, Any] = {}
        self._ready: dict[int, Any] = dict.fromkeys(range(count))
        self._error: BaseException | None = None
        self._turns = [threading.Lock() for _ in range(count)]
        for turn in self._turns:
            turn.acquire()
        self._spent = [0.0] * count
        self._since = 0.0

    def run(self, functions: Iterable[Callable[[], None]]) -> None:
        """Run the functions to their ends; each handles its own exceptions.

        An exception in this thread, such as a KeyboardInterrupt, is raised in them as well.
        """
        threads = [
            threading.Thread(target=self._run, args=pair, daemon=True)
            for pair in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:
            self._error = error
            for thread in threads:
                thread.join()
            raise

    def meet(self, number: int, brought: Any) -> Any:
        """Wait for the others, and return what the meeting gives to this function."""
        self._check()
        self._waiting[number] = brought
        self._end_turn(number)
        return self._begin_turn(number)

    def seconds(self, number: int) -> float:
        """Return the seconds of a running function: its turns, and its share of meetings."""
        return self._spent[number] + self._clock() - self._since

    def _run(self, number: int, function: Callable[[], None]) -> None:
        try:
            self._begin_turn(number)
            function()
        except BaseException as error:  # otherwise the others would wait forever
            self._error = self._error or error
        finally:
            self._live.discard(number)
            self._end_turn(number)

    def _begin_turn(self, number: int) -> Any:
        self._turns[number].acquire()
        self._since = self._clock()
        received = self._ready.pop(number)
        self._check()
        return received

    def _end_turn(self, number: int) -> None:
        self._spent[number] += self._clock() - self._since
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._live:
            return
        if not self._ready:
            self._hold_meeting()
        self._turns[min(self._ready)].release()

    def _hold_meeting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        started = self._clock()
        self._ready = dict.fromkeys(self._live)
        if self._error is None:
            try:
                self._ready = dict(self._meeting(waiting))
            except BaseException as error:  # raised in all of them
                self._error = error
        share = (self._clock() - started) / len(self._live)
        for number in self._live:
            self._spent[number] += share

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
