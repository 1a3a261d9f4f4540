"""Takes what names people and their machines out of records before they are published.

User and host names of this machine and of the run become ``user`` and ``host``, absolute paths keep
their last part alone, and private network addresses go. Folders of the system, which are the same
everywhere, stay.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATHS = re.compile(r"(?<![\w~.:/>-])(?:~|/[\w.@+-]+)(?:/[\w.@+-]+)*/([\w.@+-]+)")
KEPT = re.compile(r"/(?:dev|proc|sys)(?:/|$)")
"""Folders of the system, which say nothing of people."""
HOMES = re.compile(r"/(?:home|Users)/[\w.@+-]+")
ADDRESSES = re.compile(
    r"(?<![\d.])(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\d.])"
)
DOMAIN = r"(?:\.[A-Za-z][\w-]*)*"
COMMON = frozenset(
    {"root", "user", "users", "host", "admin", "ubuntu", "debian", "runner", "localhost", "bench"}
)
"""Names that name nobody."""
SHORTEST = 3
"""Characters of a name that is looked for: shorter ones are parts of other words."""


Scrub = Callable[[Any], Any]


def scrubber(users: set[str] | None = None, hosts: set[str] | None = None) -> Scrub:
    """A function that gives a value of JSON back without names, paths and addresses.

    Args:
        users: names of users; that of this process by default.
        hosts: names of hosts; that of this machine by default.
    """
    replaced = [
        *((name, r"", "user") for name in (this_user() if users is None else users)),
        *((name, DOMAIN, "host") for name in (this_host() if hosts is None else hosts)),
    ]
    names = [
        (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-]){rest}"), word)
        for name, rest, word in sorted(replaced, key=lambda one: -len(one[0]))
        if len(name) >= SHORTEST and name.lower() not in COMMON
    ]

    def text(value: str) -> str:
        value = HOMES.sub(lambda found: found[0] if KEPT.match(found[0]) else "~", value)
        value = PATHS.sub(_last_part, value)
        for pattern, word in names:
            value = pattern.sub(word, value)
        return ADDRESSES.sub("address", value)

    def scrubbed(value: Any) -> Any:
        match value:
            case str():
                return text(value)
            case list():
                return [scrubbed(one) for one in value]
            case dict():
                return {text(key): scrubbed(one) for key, one in value.items()}
        return value

    return scrubbed


def _last_part(found: re.Match[str]) -> str:
    return found[0] if KEPT.match(found[0]) else f".../{found[1]}"


def this_user() -> set[str]:
    """Names under which this process's user may stand in a text."""
    found = {Path.home().name}
    with contextlib.suppress(KeyError, OSError):  # a container may have no name for its user
        found.add(getpass.getuser())
    return found - {""}


def this_host() -> set[str]:
    """Names of this machine, with and without its domain."""
    name = socket.gethostname()
    return {name, name.partition(".")[0]} - {""}
