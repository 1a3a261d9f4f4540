"""Try the C++ compiler that ``torch.compile`` would call on a CPU."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.doctor.facts import Compiler
from bench.errors import one_line

USUAL = ("g++", "clang++")
"""What is looked for where ``CXX`` is not set: torch's inductor calls the first."""
PATIENCE_S = 20.0
EMPTY_PROGRAM = "int main() { return 0; }\n"


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
