"""The module `os`, in which a call goes wrong."""

import os

CALLS = {
    "close",
    "fsync",
    "listdir",
    "mkdir",
    "open",
    "readv",
    "rename",
    "rmdir",
    "stat",
    "unlink",
    "write",
}


class Killed(BaseException):
    """The process is gone: whatever it calls after that does nothing."""


class FaultyOS:
    """Stands for `os`, and raises an error at one call, at all calls from there on, or never.

    Args:
        at: The number of the call at which it raises.
        error: What it raises.
        lasting: Raise it at each later call too.
        calls: The calls that count.
    """

    def __init__(self, at, error, *, lasting=False, calls=CALLS):
        self.at, self.error, self.calls = at, error, calls
        self.lasting = lasting or error is Killed
        self.made = []
        """The calls so far, with their arguments."""
        self.descriptors = set()
        """What is open."""

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*arguments, **options):
            if name in self.calls:
                number = len(self.made)
                self.made.append((name, *arguments))
                if number == self.at or (self.lasting and number > self.at):
                    if name == "write":  # half of it was done
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    if name == "close":  # closed it is, whatever close() says
                        real(*arguments)
                        self.descriptors.discard(arguments[0])
                    raise self.error
            result = real(*arguments, **options)
            if name == "open":
                self.descriptors.add(result)
            if name == "close":
                self.descriptors.discard(arguments[0])
            return result

        return call

    def bury(self):
        """Do what the system does for a process that was killed: close its files."""
        for descriptor in self.descriptors:
            os.close(descriptor)
