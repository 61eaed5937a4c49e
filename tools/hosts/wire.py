"""A slow wire between two tap interfaces, for kernels without netem: wire.py A B DELAY_MS LOSS."""

import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x1002


def opened(name: str) -> int:
    """Return the descriptor of a tap interface."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return tap


def relay(first: int, second: int, delay: float, loss: float) -> None:
    """Send the frames of each interface to the other one, later, or never."""
    drawn, ready = random.Random(0), selectors.DefaultSelector()
    other = {first: second, second: first}
    waiting: deque[tuple[float, int, bytes]] = deque()
    for tap in other:
        ready.register(tap, selectors.EVENT_READ)
    while True:
        rest = waiting[0][0] - time.monotonic() if waiting else None
        for key, _ in ready.select(rest if rest is None else max(0.0, rest)):
            frame = os.read(key.fd, 65536)
            if drawn.random() >= loss:
                waiting.append((time.monotonic() + delay, other[key.fd], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, frame = waiting.popleft()
            os.write(tap, frame)


if __name__ == "__main__":
    one, another, delay, loss = sys.argv[1:]
    relay(opened(one), opened(another), float(delay) / 1e3, float(loss) / 100)
