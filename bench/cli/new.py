"""``bench new``: a small file to begin one's own workload or strategy with, and its test."""

from __future__ import annotations

import keyword
import string
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli.output import print_text
from bench.errors import BenchError, OutputError

TEMPLATES = resources.files("bench") / "templates"


def new(
    kind: Annotated[Literal["workload", "strategy"], typer.Argument(help="What to begin.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of it, and of its file.")],
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to write the two files.")
    ] = Path(),
) -> None:
    """Write a small workload or strategy of your own, NAME.py, and its test, test_NAME.py."""
    for path in write(kind, name, folder):
        print_text(str(path))
    run = "bench run --workload" if kind == "workload" else "bench check"
    print_text(f"next: {run} {folder / f'{name}.py'}")


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the two files; returns them.

    Raises:
        BenchError: the name cannot be a module's.
        OutputError: one of the files is there already, or cannot be written.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise BenchError(f"'{name}' cannot be the name of a module: use letters, digits and _")
    words = {"name": name, "title": name.replace("_", " ").capitalize()}
    texts = {
        folder / f"{name}.py": _filled(kind, words),
        folder / f"test_{name}.py": _filled(f"{kind}_test", words),
    }
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if there:
        raise OutputError(f"{there[0]}: is there already; nothing was written")
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    return list(texts)


def _filled(template: str, words: dict[str, str]) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return string.Template(text).substitute(words)
