"""The network interface by which the machines of a job reach one another."""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
_ELSEWHERE = "192.0.2.1"  # reserved for documentation: the route to it is the default route


def set_interface(address: str) -> str | None:
    """Set the network interface of gloo and NCCL, and return the address of this machine on it.

    Args:
        address: The address or the name of the first machine.
    """
    interface, own = interface_to(address) or (None, None)
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)
    return own


def interface_to(address: str) -> tuple[str, str] | None:
    """Return the network interface by which a machine is reached, and this machine's address on it.

    None if that is unknown.

    gloo takes the address of the host's name, which on Debian and Ubuntu is one of the loopback
    interface. The same is found for the first machine on itself, so the default route counts then,
    and after it the only interface that has an address.

    Args:
        address: The address or the name of the machine, with IPv4.
    """
    if fcntl is None or sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        named = {own: name for name, own in _addresses(probe) if not own.startswith("127.")}
    for target in (address, _ELSEWHERE):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 1))  # sends nothing
            own = probe.getsockname()[0]
            if own in named:
                return named[own], own
    return next((name, own) for own, name in named.items()) if len(named) == 1 else None


def _addresses(probe: socket.socket) -> Iterator[tuple[str, str]]:
    for _, name in socket.if_nameindex():
        with suppress(OSError):  # it has no address
            entry = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            yield name, socket.inet_ntoa(entry[20:24])
