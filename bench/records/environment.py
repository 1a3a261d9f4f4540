"""What of a recorded environment must be the same for two figures to be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

PLACES = re.compile(r"(_HOME|_PATH|_DIR|_VISIBLE_DEVICES|_ORDER|_PORT|_ADDR)$")
"""Variables that say where something is, not how fast it runs."""

SAME = (
    "cpu",
    "cpu_flags",
    "quota_cores",
    "governors",
    "boost",
    "driver",
    "versions",
)
"""Of an environment: must be the same for two figures to be compared, as it stands."""


def comparable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for two figures to be compared.

    Hardware, versions and settings that change speed; not names of machines and devices, places,
    the kernel's version, or the commit. An environment of an earlier version, or of another system,
    may lack some.
    """
    hosts = environment.get("hosts") or []
    if hosts:
        plain = {name: value for name, value in environment.items() if name != "hosts"}
        return {**comparable(plain), "hosts": [comparable(one) for one in hosts]}
    network = environment.get("network")
    if network:
        plain = {name: value for name, value in environment.items() if name != "network"}
        return {**comparable(plain), "network": network.get("kind")}
    devices = environment.get("devices") or []
    variables = environment.get("variables") or {}
    return {
        **{name: environment.get(name) for name in SAME},
        "cores": len(environment.get("cores") or ()),
        "devices": [[one.get("name"), one.get("link_bytes_per_s")] for one in devices],
        "variables": {name: value for name, value in variables.items() if not PLACES.search(name)},
    }


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that two environments do not share."""

    key: str
    """Such as ``versions.torch``."""
    before: Any
    """None where it was not recorded, or does not exist."""
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What forbids comparing figures of two environments, fact by fact.

    >>> differences({"cpu": "A", "cores": [0]}, {"cpu": "B", "cores": [0]})
    [Difference(key='cpu', before='A', after='B')]
    """
    first, second = _flat(comparable(before)), _flat(comparable(after))
    return [
        Difference(key=key, before=first.get(key), after=second.get(key))
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    ]


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts, each under its whole name."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        found |= {name: value} if inner is None else {f"{name}.{k}": v for k, v in inner.items()}
    return found


def fingerprint(environment: Mapping[str, Any]) -> str:
    """Short hash of what must be equal for two figures to be compared."""
    payload = msgspec.json.encode(comparable(environment), order="deterministic")
    return hashlib.blake2b(payload, digest_size=6).hexdigest()
