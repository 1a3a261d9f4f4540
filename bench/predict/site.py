"""Devices that somebody may rent, from the words that they are described with."""

from __future__ import annotations

import re

import msgspec

from bench.errors import BenchError, did_you_mean
from bench.predict.catalogue import Device, catalogue
from bench.predict.network import Places


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that somebody may rent."""

    device: Device
    link: str
    between: str | None
    places: Places


SITE = re.compile(
    r"(?:(?P<hosts>\d+)\s*hosts?\s*x\s*)?(?P<count>\d+)(?:\s*x\s*(?P<name>[^,@]*?))?"
    r"(?:\s+at\s+(?P<between>[\d.x \t]+[GM]bit(?:/s)?))?\s*",
    re.IGNORECASE,
)
MEMORY = re.compile(r"\b\d+ GB\b|\bSXM\d?\b", re.IGNORECASE)
"""What a device's name may have beside its family: links do not depend on it."""
DEFAULT_SITE = "A100 80 GB NVLink"
"""Of a description that names no device."""


def site_of(text: str) -> Site:
    """Read ``8 x A100 80 GB NVLink`` or ``4 hosts x 8 at 100 Gbit/s``.

    Raises:
        BenchError: it cannot be read, or names what is not known.
    """
    match = SITE.fullmatch(text.strip())
    if match is None:
        raise BenchError(
            f"{text!r} describes no devices; write '8 x A100 80 GB NVLink' or "
            "'4 hosts x 8 x A100 80 GB NVLink at 100 Gbit/s'"
        )
    hosts, per_host = int(match["hosts"] or 1), int(match["count"])
    if not hosts or not per_host:
        raise BenchError(f"{text!r} describes no devices: there must be at least one")
    name = _spelled(match["name"] or DEFAULT_SITE)
    known = catalogue()
    device = _longest(name, [(one.name, one) for one in known.devices])
    if device is None:  # without its memory: the first of its family
        family = name.split()[0].casefold() if name else ""
        device = next((d for d in known.devices if d.name.split()[0].casefold() == family), None)
    if device is None:
        names = [one.name for one in known.devices]
        raise BenchError(f"{text!r}: no device {name!r}{did_you_mean(name, names)}")
    family = device.name.split()[0]
    rest = MEMORY.sub("", name[len(family) :]).strip() or "NVLink"
    link = known.link(rest if rest.casefold().startswith("pcie") else f"{family} {rest}")
    between = match["between"]
    if hosts > 1 and between is None:
        raise BenchError(f"{text!r}: say how fast hosts are linked, as in 'at 100 Gbit/s'")
    return Site(
        device=device,
        link=link.name,
        between=between.strip() if between else None,
        places=Places(hosts=hosts, per_host=per_host),
    )


def _spelled(text: str) -> str:
    """A name with one blank between its words, and before its unit.

    >>> _spelled(" A100  80GB NVLink")
    'A100 80 GB NVLink'
    """
    return " ".join(re.sub(r"(\d)\s*GB\b", r"\1 GB", text, flags=re.IGNORECASE).split())


def _longest(name: str, known: list[tuple[str, Device]]) -> Device | None:
    """The device whose whole name, or first word of it, the text begins with."""
    folded = name.casefold()
    whole = [one for own, one in known if folded.startswith(own.casefold())]
    return max(whole, key=lambda one: len(one.name), default=None)
