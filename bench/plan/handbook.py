"""``docs/strategies.md``: all strategies and settings with their options, from the definitions.

Run as ``python -m bench.plan.handbook``: writes the page in place of the old one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.plan.catalogue import Entry, data, settings, strategies
from bench.plan.options import Option

PAGE = Path("docs") / "strategies.md"
FIRST_WORD = re.compile(r"^(\w+)")
INTRODUCTION = """\
# Strategies and settings

Every way of going parallel with its options, then what a suite can set for all of them, then where
batches can come from: what each one does, when it helps and what it costs. A default is torch's
own, and is not passed to torch at all. A list of values is an axis. Each variant is proved to train
the same model as one device would, or says by how much it does not ([method](method.md)).

`bench list strategies`, `bench list settings` and `bench list data` show the same. This page is
made from the docstrings of the options by `python -m bench.plan.handbook`.
"""


def page() -> str:
    """The whole page, as markdown."""
    parts = [INTRODUCTION.strip()]
    for entry in strategies():
        parts += _section(entry, f"`{entry.name}`", "Nothing to set.")
    for entry in settings():
        parts += _section(entry, "Settings of every strategy", "")
    for entry in data():
        parts += _section(entry, f"Data from `{entry.name}`", "Nothing to set.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(entry: Entry, title: str, without: str) -> Iterator[str]:
    yield f"## {title}"
    yield f"{_sentence(entry.summary)}"
    yield from (_option(option) for option in entry.options)
    if not entry.options:
        yield without


def _option(option: Option) -> str:
    said = [option.what, *(FIRST_WORD.sub(r"*\1*", one) for one in (option.helps, option.costs))]
    return (
        f"### `{option.name}`\n\n"
        f"{option.type}; default `{option.default_text}`\n\n"
        f"{' '.join(filter(None, said)).replace('``', '`')}"
    )


def _sentence(text: str) -> str:
    is_name = "_" in text.split(maxsplit=1)[0]
    return f"{text}." if is_name else f"{text[:1].upper()}{text[1:]}."


def main() -> int:
    """Write the page; returns the exit code."""
    if not PAGE.parent.is_dir():
        sys.stderr.write(f"handbook: no folder {PAGE.parent} here: run it in the project's own\n")
        return 2
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
