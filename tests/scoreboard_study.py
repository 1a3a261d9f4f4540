"""Measure the study that predictions of time are scored with, part by part.

``python -m tests.scoreboard_study [PART...]`` measures the parts that are not there yet, all unless
some are named, into ``--folder``; ``--list`` names them with about how long each takes. What is
finished is kept, and a part that was stopped goes on where it was. It needs root, ip and tc for the
laboratory of emulated hosts, and two cores that do nothing else. ``--publish`` puts what is there
into results/prediction-study, without names of users and hosts.
"""

from __future__ import annotations

import argparse
import gzip
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import BenchError, Interruption
from bench.predict.study import PROFILES, STUDY, Fixed, read_study
from bench.records.collectives import COLLECTIVES
from bench.records.lines import COMPRESSED
from bench.records.store import RECORDS, RUN, read_run, write_atomically
from bench.report.scrub import scrubber
from bench.run.signals import signals_raise
from tests.scoreboard_plan import (
    DTYPES,
    FIT_ON,
    OPERATIONS,
    SIZES,
    Part,
    full_study,
    in_words,
    small_study,
    text_of,
)

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "prediction-study"


def place(part: Part, study: Path) -> Path:
    """Where a part is kept: a file of a profile, else a folder."""
    match part.kind:
        case "profile":
            assert part.model is not None
            name = "-".join(word for word in (part.model.name, part.group) if word)
            return study / PROFILES / f"{name}.json"
        case "link":
            assert part.link is not None
            return study / "links" / part.link
        case "cells":
            return study / "runs" / part.name


def is_finished(part: Part, study: Path) -> bool:
    """Whether nothing of a part is left to measure."""
    path = place(part, study)
    if part.kind == "profile":
        return path.is_file()
    return (path / RUN).is_file() and read_run(path).ended_by == "complete"


def command_of(part: Part, study: Path, suite: Path) -> list[str]:
    """The command line that measures a part, or goes on with it.

    Args:
        part: that is not finished.
        study: folder of all.
        suite: file to write a suite to.
    """
    path = place(part, study)
    bench = [sys.executable, "-m", "bench"]
    if part.kind == "link":
        assert part.link is not None
        asked = {"operations": OPERATIONS, "dtypes": DTYPES, "sizes": SIZES}
        lists = [word for name, words in asked.items() for word in (f"--{name}", ",".join(words))]
        told = ["--link", part.link, "--world-sizes", "2", "--device", "cpu", *lists]
        return [*bench, "lab", "comm", *told, "--out", str(path)]
    assert part.model is not None
    if part.kind == "profile":
        options = ", ".join(f"{name}={value}" for name, value in part.model.options.items())
        told = [f"{part.model.name}({options})", "--together", "2", "--device", "cpu"]
        batch = ["--per-device-batch", str(part.model.per_device_batch)]
        return [*bench, "predict", "profile", *told, *batch, "--out", str(path)]
    suite.write_text(text_of(part), encoding="utf-8")
    resume = ["--resume"] if (path / RUN).is_file() else []
    return [*bench, "lab", "run", str(suite), "--hosts", "2", "--out", str(path), *resume]


def measure(part: Part, study: Path) -> int:
    """Measure a part; returns the exit code of its command.

    Raises:
        Interruption: a signal arrived; what was measured so far is kept.
    """
    path = place(part, study)
    if part.kind == "link" and path.exists():
        shutil.rmtree(path)  # a sweep that was stopped begins again
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-study-") as private:
        return carry_out(command_of(part, study, Path(private) / f"{part.name}.yaml"))


def carry_out(command: Sequence[str]) -> int:
    """Run a command to its end, also when this process is told to stop."""
    say(shlex.join(command[1:]))
    with signals_raise():
        child = subprocess.Popen(command, stdout=sys.stderr)
        try:
            return child.wait()
        except Interruption as stop:
            if stop.signum != signal.SIGINT:  # the terminal has told both of Ctrl-C
                child.send_signal(stop.signum)
            child.wait()
            raise


def fix(study: Path) -> None:
    """Write down what is used for a fit, before anything is measured.

    Raises:
        BenchError: the study was begun with another.
    """
    study.mkdir(parents=True, exist_ok=True)
    wanted, path = Fixed(fit_on=FIT_ON), study / STUDY
    if not path.exists():
        write_atomically(path, msgspec.json.encode(wanted) + b"\n")
    elif msgspec.json.decode(path.read_bytes(), type=Fixed) != wanted:
        raise BenchError(f"{path}: was begun with another link to fit on; take another --folder")


def publish(study: Path, target: Path) -> None:
    """Copy what predictions are scored with, without names of users, hosts and folders.

    Raises:
        BenchError: it is no study.
    """
    read_study(study)
    scrub = scrubber()
    if target.exists():
        shutil.rmtree(target)
    for path in sorted(study.rglob("*")):
        new = target / path.relative_to(study)
        new.parent.mkdir(parents=True, exist_ok=True)
        if path.name in {RUN, STUDY} or path.parent.name == PROFILES:
            new.write_bytes(_indented(scrub(msgspec.json.decode(path.read_bytes()))))
        elif path.name in {RECORDS, COLLECTIVES}:
            lines = path.read_bytes().splitlines()
            kept = b"".join(
                msgspec.json.encode(scrub(msgspec.json.decode(one))) + b"\n" for one in lines
            )
            compressed = new.with_name(f"{path.name}{COMPRESSED}")
            compressed.write_bytes(gzip.compress(kept, mtime=0))
    read_study(target)


def _indented(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def chosen(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts of some names; all where none is named.

    Raises:
        BenchError: there is none of a name.
    """
    known = {part.name: part for part in parts}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchError(f"no part {unknown[0]!r}; --list names them")
    return [known[name] for name in names] if names else list(parts)


def main(arguments: Sequence[str]) -> int:
    """Measure, list or publish; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scoreboard_study", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all by default")
    parser.add_argument(
        "--list", action="store_true", help="name the parts, and how long each takes"
    )
    parser.add_argument("--small", action="store_true", help="the path alone, in minutes")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "prediction-study")
    parser.add_argument("--publish", action="store_true", help="what is there, into results")
    told = parser.parse_args(arguments)
    try:
        return _main(told)
    except Interruption as stop:
        say(f"stopped by {stop}; what is finished is kept")
        return stop.exit_code
    except BenchError as error:
        say(f"scoreboard_study: {error}")
        return error.exit_code


def _main(told: argparse.Namespace) -> int:
    parts = chosen(list(small_study() if told.small else full_study()), told.parts)
    if told.list:
        sys.stdout.write(f"{in_words(parts)}\n")
        return 0
    if told.publish:
        publish(told.folder, PUBLISHED)
        pages = "--write docs/prediction.md --write README.md"
        say(f"bench predict score {PUBLISHED.relative_to(ROOT)} {pages} shows it")
        return 0
    fix(told.folder)
    left = [part for part in parts if not is_finished(part, told.folder)]
    say(f"{len(parts) - len(left)} of {len(parts)} parts are there; left:\n{in_words(left)}")
    failed = [part.name for part in left if measure(part, told.folder)]
    for name in failed:
        say(f"{name}: not all of it was measured; its folder says why")
    say(f"bench predict score {told.folder} shows the scoreboard")
    return 1 if failed else 0


def say(text: str) -> None:
    """To stderr."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
