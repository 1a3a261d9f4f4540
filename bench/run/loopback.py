"""The interface that leads back to this host, which one host's processes talk over."""

from __future__ import annotations

import os
import sys

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
