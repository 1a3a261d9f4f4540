"""What ``torch.compile`` builds with: a C++ compiler for a CPU, Triton for accelerators."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.errors import one_line

USUAL = ("g++", "clang++")
"""What is looked for where ``CXX`` is not set: torch's inductor calls the first."""
PATIENCE_S = 20.0
TRITON = frozenset({"cuda", "xpu"})
"""Types of devices for which torch writes its kernels in Triton."""
EMPTY_PROGRAM = "int main() { return 0; }\n"


class Compiler(msgspec.Struct, frozen=True, kw_only=True):
    """The one that ``torch.compile`` would call."""

    command: str | None = None
    asked_by: str | None = None
    """Variable that names it."""
    failure: str | None = None
    """What it said of an empty program; None where it compiled it."""
    has_python_headers: bool = True


def try_compiler(variables: Mapping[str, str] = os.environ) -> Compiler:
    """Compile an empty program with the compiler that is there."""
    named = variables.get("CXX")
    words = shlex.split(named) if named else []
    command = [shutil.which(words[0]), *words[1:]] if words else [_usual()]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if command[0] is None:
        return Compiler(command=named, asked_by="CXX", failure="not found") if named else Compiler()
    return Compiler(
        command=named or command[0],
        asked_by="CXX" if named else None,
        failure=_failure([str(word) for word in command]),
        has_python_headers=headers.exists(),
    )


def problem_of(compiler: Compiler) -> tuple[str, str] | None:
    """What keeps torch from building with it, and the remedy; None where nothing does."""
    asked = f"{compiler.asked_by}={compiler.command}" if compiler.asked_by else compiler.command
    if compiler.command is None:
        return "no g++ or clang++", "apt install g++, or name a compiler in CXX"
    if compiler.failure is not None:
        return f"{asked} fails on an empty program: {compiler.failure}", "name another in CXX"
    if compiler.asked_by is None and "clang" in compiler.command:
        return f"{asked}, but torch looks for g++", f"export CXX={compiler.command}"
    if not compiler.has_python_headers:
        return f"{asked}, but no Python.h", "apt install python3-dev"
    return None


def cannot_compile(compiler: Compiler, accelerator: str | None) -> dict[str, str]:
    """Per device type, why ``torch.compile`` cannot work; empty where it can.

    Args:
        compiler: for C++.
        accelerator: device type of this machine's accelerators, whose driver may be initialised.
    """
    found: dict[str, str] = {}
    problem = problem_of(compiler)
    if problem is not None:
        what, remedy = problem
        found["cpu"] = f"torch.compile has no C++ compiler here ({what}); {remedy}"
    if accelerator in TRITON and not _has_triton():
        found[accelerator] = (
            "torch.compile has no Triton here that works with these devices; pip install triton"
        )
    return found


def _has_triton() -> bool:
    try:
        from torch.utils._triton import has_triton  # noqa: PLC0415 - plans come without torch
    except ImportError:  # a torch that asks in another way: the run will show it
        return True
    return bool(has_triton())


def _usual() -> str | None:
    return next(filter(None, map(shutil.which, USUAL)), None)


def _failure(command: list[str]) -> str | None:
    try:
        with tempfile.TemporaryDirectory(prefix="bench-compiler-") as folder:
            target = Path(folder) / "empty"
            done = subprocess.run(  # noqa: S603 - the user's own compiler
                [*command, "-x", "c++", "-", "-o", str(target)],
                input=EMPTY_PROGRAM,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE_S,
                check=False,
            )
            if done.returncode == 0 and target.exists():
                return None
    except (OSError, subprocess.TimeoutExpired) as error:
        return one_line(str(error), limit=200)
    said = done.stderr.strip() or f"exit code {done.returncode}, and no program"
    return one_line(said, limit=200)
