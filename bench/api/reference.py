"""How other processes find a function that this one was given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.api.notebook import module_text
from bench.errors import BenchError
from bench.plan import own


def reference_to(make: Callable[..., Any], scratch: Path) -> tuple[str, Path]:
    """The reference of a function, and the folder that it counts from.

    A script is imported once more by each process, up to the line that compares; a notebook has no
    file, so that the function goes into one, with what it needs of other cells.

    Args:
        make: defined at the top level of a module, script or notebook.
        scratch: where a file may be written.

    Raises:
        BenchError: no other process could find it.
    """
    name = getattr(make, "__qualname__", "")
    if not name.isidentifier():
        what = "a lambda" if "<lambda>" in name else f"'{name or type(make).__name__}'"
        raise BenchError(
            f"{what} is not at the top level of its file, so that other processes cannot find it; "
            "define it there, outside of functions and classes"
        )
    module = sys.modules.get(make.__module__)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        path = scratch / "notebook.py"
        path.write_text(module_text(make), encoding="utf-8")
        return f"{path.name}:{name}", scratch
    path = Path(file).resolve()
    if path.suffix != ".py":
        raise BenchError(f"{path.name} is no .py file, which other processes could import")
    here = Path.cwd().resolve()
    shown = path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name
    folder = here if path.is_relative_to(here) else path.parent
    reference = f"{shown}:{name}"
    code = own.locate(reference, [folder])
    assert module is not None, "it has a file"
    # It runs here already: no second time, just to plan.
    sys.modules.setdefault(code.module, module)
    return reference, folder
