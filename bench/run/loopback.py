"""The interface that processes talk over: back to this host, or to the others of a run."""

from __future__ import annotations

import os
import sys

import psutil

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""By the system's name."""


def loopback_variables() -> dict[str, str]:
    """What keeps gloo on this host: so it needs no name to resolve, and no other interface.

    Nothing where the user has chosen an interface.
    """
    loopback = LOOPBACK.get(sys.platform)
    if loopback is None or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    return {"GLOO_SOCKET_IFNAME": loopback}


def outward_variables(interface: str | None) -> dict[str, str]:
    """What keeps gloo on the interface that leads to the other hosts, whatever the own name is.

    Nothing where the user has chosen one, or it is not known.

    Args:
        interface: see ``interface_of``.
    """
    if interface is None or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface}


def interface_of(address: str) -> str | None:
    """The interface that has an address of this host; None where none has it."""
    plain = address.removeprefix("::ffff:")  # an IPv4 address as a socket for both kinds says it
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == plain for one in addresses):
            return name
    return None
