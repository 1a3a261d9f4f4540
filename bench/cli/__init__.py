"""The command line: parse, then call the stages in order. A module here is a command or two.

Commands that need torch import what they need themselves, so that ``bench report`` works on a
machine without it and ``bench --help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import bench
from bench.cli.check import check
from bench.cli.comm import comm
from bench.cli.compare import compare
from bench.cli.doctor import doctor
from bench.cli.lab import lab
from bench.cli.new import new
from bench.cli.output import print_text, say, show_warning
from bench.cli.plan import list_, plan
from bench.cli.predict import app as predict
from bench.cli.recommend import recommend
from bench.cli.report import report
from bench.cli.run import run
from bench.errors import BenchError, Interruption

app = typer.Typer(
    name="bench",
    help="Compare ways of training one model in parallel, and say how far to trust each figure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(plan)
app.command("list")(list_)
app.command()(comm)
app.add_typer(predict)
app.command()(report)
app.command()(compare)
app.command()(recommend)
app.command()(doctor)
app.add_typer(lab, name="lab")
app.command()(check)
app.command()(new)


def run_command_line(arguments: list[str]) -> int:
    """Run one command; returns its exit code, as the README lists them."""
    warnings.showwarning = show_warning
    for name in ("stdout", "stderr"):  # None where the caller closed it
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        app(arguments, prog_name="bench")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BenchError as error:
        say(f"bench: {error}")
        return error.exit_code
    except KeyboardInterrupt:  # before or after a run, when nothing is at stake
        return 128 + signal.SIGINT
    except Interruption as interruption:
        say(f"bench: stopped by {interruption}")
        return interruption.exit_code
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing fails again
        return 141
    except OSError as error:  # what could be foreseen is a BenchError by now
        say(f"bench: {error}")
        return 1
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        print_text(f"bench {bench.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compare ways of training one model in parallel, and say how far to trust each figure."""
