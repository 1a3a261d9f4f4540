"""Sessions for people and for CI. All share one environment, since torch is large."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.needs_version = ">=2024.10.9"

HERE = Path(__file__).parent
STAMP = "installed-from"
IN_TURNS = ("-n", "2", "--dist", "worksteal")
"""Two tests at a time: many wait for processes more than they compute. More would compete for the
cores that their ranks are bound to."""


@nox.session(reuse_venv=True)
def env(session: nox.Session) -> None:
    """Install the project with its development tools, once for all sessions."""
    stamp = Path(session.virtualenv.location) / STAMP
    content = (HERE / "pyproject.toml").read_bytes() + str(HERE).encode()
    wanted = hashlib.sha256(content).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        session.log("the environment is up to date")
        return
    session.install("-e", ".[dev]")
    stamp.write_text(wanted)


def run_python(session: nox.Session, *arguments: str) -> None:
    """Run the shared environment's interpreter."""
    python = HERE / ".nox" / "env" / "bin" / "python"
    # nox would kill it half a second after Ctrl-C; a run writes its report first.
    session.run(str(python), *arguments, external=True, interrupt_timeout=60, terminate_timeout=60)


def suite_and_options(session: nox.Session, default: str) -> list[str]:
    """Arguments of ``bench run``: the suite first, ours unless the first argument is one."""
    names_suite = session.posargs and not session.posargs[0].startswith("-")
    return [*session.posargs] if names_suite else [default, *session.posargs]


@nox.session(venv_backend="none", requires=["env"])
def tests(session: nox.Session) -> None:
    """The tests, on a CPU over gloo. Arguments go to pytest, in place of two tests at a time."""
    run_python(session, "-m", "pytest", *(session.posargs or IN_TURNS))


def see_shared_packages(session: nox.Session) -> None:
    """Let an environment of its own see what the shared one has: torch is not installed again."""
    shared = next((HERE / ".nox" / "env" / "lib").glob("python*/site-packages"))
    (own,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"{shared}\n")


@nox.session(reuse_venv=True, requires=["env"])
def deepspeed(session: nox.Session) -> None:
    """The tests of DeepSpeed, which is in an environment of its own. Arguments go to pytest."""
    see_shared_packages(session)
    session.install("-e", ".[deepspeed]")
    session.run("python", "-m", "pytest", "-m", "deepspeed", *session.posargs)


@nox.session(reuse_venv=True, requires=["env"])
def traces(session: nox.Session) -> None:
    """Whether Holistic Trace Analysis, in an environment of its own, reads what --trace leaves."""
    see_shared_packages(session)
    session.install("HolisticTraceAnalysis")
    session.run("python", "-m", "pytest", "-m", "hta", "tests/measure", *session.posargs)


@nox.session(reuse_venv=True)
def oldest(session: nox.Session) -> None:
    """The tests on the oldest torch that is supported, which is a download of some GB."""
    session.install("torch==2.9.*", "torchvision==0.24.*", "-e", ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or IN_TURNS))


@nox.session(venv_backend="none", requires=["env"])
def lint(session: nox.Session) -> None:
    """Formatting and lint."""
    run_python(session, "-m", "ruff", "format", "--check", ".")
    run_python(session, "-m", "ruff", "check", ".")


@nox.session(venv_backend="none", requires=["env"])
def types(session: nox.Session) -> None:
    """mypy, strict, over the package and its tests."""
    run_python(session, "-m", "mypy")


@nox.session(venv_backend="none", requires=["env"])
def bench(session: nox.Session) -> None:
    """Measure the suite ``quick``, unless another is named. Arguments go to ``bench run``."""
    run_python(session, "-m", "bench", "run", *suite_and_options(session, "quick"))


@nox.session(name="bench-gpu", venv_backend="none", requires=["env"])
def bench_gpu(session: nox.Session) -> None:
    """Measure the suite ``gpu``, unless another is named, on the machine's accelerators."""
    python = str(HERE / ".nox" / "env" / "bin" / "python")
    found = session.run(python, "-m", "bench.measure.machine", external=True, silent=True)
    if not json.loads(str(found).splitlines()[-1])["accelerator"]:
        session.error(
            "PyTorch finds no accelerator on this machine; nox -s bench measures on its CPU"
        )
    run_python(session, "-m", "bench", "run", *suite_and_options(session, "gpu"))


@nox.session(name="bench-backends", venv_backend="none", requires=["env"])
def bench_backends(session: nox.Session) -> None:
    """NCCL against gloo: collectives alone, then whole steps. Arguments go to ``bench comm``.

    On a CPU collectives are few; ``--full`` has all.
    """
    run_python(session, "-m", "bench", "comm", "--backends", "all", *session.posargs)
    run_python(session, "-m", "bench", "run", "backends")


@nox.session(venv_backend="none", requires=["env"])
def publish(session: nox.Session) -> None:
    """Copy the results folders named into results/, and make its index and the README's tables.

    Names of users and hosts, and paths, are taken out unless ``--keep-names`` is given.
    """
    run_python(session, "-m", "bench.report.publish", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def limits(session: nox.Session) -> None:
    """Measure what the project promises of itself, in seconds and ratios. Takes a while."""
    run_python(session, "-m", "tests.limits", *session.posargs)


@nox.session(name="predict-memory", venv_backend="none", requires=["env"])
def predict_memory(session: nox.Session) -> None:
    """Score predictions of memory against measured peaks; with ``predict``, stored ones."""
    run_python(session, "-m", "tests.memory_prediction", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def scoreboard(session: nox.Session) -> None:
    """Measure the study that predictions of time are scored with: two hours in parts, as root.

    ``--list`` names the parts; some may be named. What is finished is kept.
    """
    run_python(session, "-m", "tests.scoreboard_study", *session.posargs)


@nox.session(name="compile", venv_backend="none", requires=["env"])
def compile_(session: nox.Session) -> None:
    """Prove compiled models of all kinds, with torch's own compiler. Takes long."""
    run_python(session, "-m", "pytest", "tests/strategies/compiled.py", *session.posargs)


@nox.session(name="round-trips", venv_backend="none", requires=["env"])
def round_trips(session: nox.Session) -> None:
    """Save and restore under every strategy on every workload. Takes long."""
    run_python(session, "-m", "pytest", "tests/round_trips.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def lab(session: nox.Session) -> None:
    """Whole runs on emulated hosts, and on hosts that break. Root, ip and tc; takes minutes."""
    run_python(session, "-m", "pytest", "tests/lab_faults.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def statistics(session: nox.Session) -> None:
    """Simulate reports: how often intervals hold the truth and verdicts are right. Minutes."""
    run_python(session, "-m", "tests.statistics", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def fuzz(session: nox.Session) -> None:
    """Try suites and results of odd shape, 100,000 unless another number is given. An hour."""
    run_python(session, "-m", "tests.fuzz", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def soak(session: nox.Session) -> None:
    """Run 300 cases, or as many as given, with random faults: nothing lost, nothing left."""
    run_python(session, "-m", "tests.soak", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def contract(session: nox.Session) -> None:
    """Prove each setting under every strategy, and each strategy's options, on every workload.

    Takes long; strategies and workloads may be named. ``--kept FILE`` goes on where a run ended.
    """
    run_python(session, "-m", "tests.every_setting", *session.posargs)
