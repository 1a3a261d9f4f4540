"""A look at this machine before something is measured on it."""
# ruff: noqa: PLC0415 - what looks at the machine is imported once it is needed

from __future__ import annotations

from bench.cli.output import say


def warn_of_this_machine() -> None:
    """What speaks against figures measured here and now, a line each. It stops nothing."""
    from bench.doctor import warnings_of_timing

    for line in warnings_of_timing():
        say(line)
