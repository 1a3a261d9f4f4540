"""The measurements behind ``nox -s limits``."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from bench.analyze.stats import figure_of
from bench.measure.clock import HostClock
from bench.plan.case import Case, Effort, Window
from bench.plan.matrix import expand
from bench.plan.registry import all_strategies, all_workloads
from bench.plan.suite import parse_suite
from bench.records.store import RECORDS, Store
from bench.run.launch import Launcher, probe_in_server
from bench.run.loop import Engine, Length, run_block, run_window
from bench.run.outcome_timing import samples_per_s
from tests.analyze.test_scaling import timing
from tests.fakes import SHORT, FakeSession, FakeTime, make_case
from tests.limits import bare
from tests.limits.limit import Limit
from tests.report.test_page import make_info
from tests.strategies.test_contract import planned_case
from workloads.base import Batch

PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone"]
LAUNCH_PAIRS = 10
FIDELITY_PAIRS = 40
"""Fixed beforehand: looking in between and stopping when it fits would flatter us."""
WARMUP_STEPS, TIMED_STEPS = 6, 8


def _python(command: Sequence[str]) -> str:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        command, capture_output=True, check=True, text=True, env=environment
    ).stdout.split()[-1]


def launch() -> list[Limit]:
    """Start to joined group: ours against an empty script under torchrun, in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    case = planned_case("transformer:tiny", "ddp", 2)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), probe_in_server())
        script = Path(folder) / "empty.py"
        script.write_text(bare.EMPTY)
        for _ in range(LAUNCH_PAIRS):
            assignment, outcomes = launcher.launch_case(
                case, SHORT, "timing", launch=0, processes=2
            )
            joined = [outcome.joined_s for outcome in outcomes if outcome.joined_s is not None]
            ours.append(max(joined) - assignment.started_s)
            begin = time.monotonic()
            theirs.append(float(_python([*TORCHRUN, "--nproc-per-node=2", str(script)])) - begin)
    own, other = statistics.median(ours), statistics.median(theirs)
    return [
        Limit(
            "launch_s of 2 ranks, median, against an empty torchrun script",
            f"{own:.2f} s against {other:.2f} s: {own / other:.2f}",
            "at most 0.33",
            own / other <= 1 / 3,
        )
    ]


def _our_rate(launcher: Launcher, case: Case) -> float:
    window = Window(min_steps=TIMED_STEPS, max_s=60, target_interval=1.0)
    effort = Effort(launches=1, warmup_steps=WARMUP_STEPS, window=window)
    _, (outcome,) = launcher.launch_case(case, effort, "timing", launch=0, processes=1)
    assert outcome.measured is not None, outcome.failure
    steps = len(outcome.measured.step_s)
    return samples_per_s(case.global_batch * steps, [outcome.measured.window_s])


def _ratio_limit(what: str, ratios: Sequence[float]) -> Limit:
    """Mean ratio (of logarithms) with its interval, against 3 % either way."""
    estimate = figure_of(ratios)
    assert estimate.low is not None
    assert estimate.high is not None
    return Limit(
        f"{what}, {len(ratios)} pairs",
        f"{estimate.value:.3f}, 95 % from {estimate.low:.3f} to {estimate.high:.3f}",
        "0.97 to 1.03",
        estimate.low >= 0.97 and estimate.high <= 1.03,
    )


def fidelity_single() -> list[Limit]:
    """Our timing pass against a hand-written script of the same model, launched in turns."""
    case = planned_case("resnet152:tiny", "single", 1)
    order = random.Random(0)
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), probe_in_server())
        script = Path(folder) / "bare.py"
        script.write_text(bare.SINGLE)
        words = [PYTHON, script, WARMUP_STEPS, TIMED_STEPS, launcher.machine.cores[0]]
        command = [str(word) for word in words]
        while len(ratios) < FIDELITY_PAIRS:
            launcher.renew()  # each of theirs has a layout of memory of its own, too
            turn: list[tuple[str, Callable[[], float]]] = [
                ("ours", lambda: _our_rate(launcher, case)),
                ("theirs", lambda: float(_python(command))),
            ]
            order.shuffle(turn)
            rates = {who: measure() for who, measure in turn}
            ratios.append(rates["ours"] / rates["theirs"])
            sys.stderr.write(f"  pair {len(ratios)}: {ratios[-1]:.3f}\n")
    return [_ratio_limit("fidelity: launches against a bare script", ratios)]


def fidelity_ddp() -> list[Limit]:
    """Our loop over DDP on two ranks against one written by hand, in turns within a launch."""
    cores = probe_in_server().cores[:2]
    command = [*TORCHRUN, "--nproc-per-node=2", "-m", "tests.limits.turns", *map(str, cores)]
    ratios = msgspec.json.decode(_python(command), type=list[float])
    return [_ratio_limit("fidelity: blocks of DDP on two ranks", ratios)]


def comm() -> list[Limit]:
    """Our all-reduces against a loop written by hand, in turns within a launch."""
    cores = probe_in_server().cores[:2]
    command = [*TORCHRUN, "--nproc-per-node=2", "-m", "tests.limits.comm_turns", *map(str, cores)]
    ratios = msgspec.json.decode(_python(command), type=list[float])
    middle = statistics.median(ratios)
    return [
        Limit(
            "all-reduces of 1 MiB and more against a bare loop, median over the sizes",
            f"{middle:.3f} (sizes: {', '.join(f'{one:.2f}' for one in ratios)})",
            "0.9 to 1.1",
            0.9 <= middle <= 1.1,
        )
    ]


def _engine(session: FakeSession, clock: HostClock) -> Engine:
    return Engine(
        session=session,
        batches=itertools.repeat(Batch((), torch.zeros(1))),
        clock=clock,
        slowest=lambda value: value,
        accumulation_steps=1,
    )


def truth() -> list[Limit]:
    """A step that sleeps: its rate by a fake clock, and by real clocks on two ranks."""
    fake = FakeTime()
    session = FakeSession(fake.sleep, forward_s=0.0625, optimizer_s=0.0625)
    length = Length(blocks=10, block_steps=1, set_by="min_steps")
    timed = run_window(_engine(session, HostClock(fake)), Window(), length)
    exact = samples_per_s(32 * len(timed.step_s), [timed.window_s])
    case = make_case(strategy="tests.fakes:SLEEPING", world_size=2)
    effort = msgspec.structs.replace(SHORT, window=Window(min_steps=50, max_s=3))
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), probe_in_server())
        _, outcomes = launcher.launch_case(case, effort, "timing", launch=0, processes=2)
    measured = [outcome.measured for outcome in outcomes if outcome.measured is not None]
    rate = samples_per_s(8 * len(measured[0].step_s), [one.window_s for one in measured])
    return [
        Limit("truth: 32 samples in a fake 0.125 s", f"{exact} samples/s", "256", exact == 256.0),
        Limit(
            "truth: ranks that sleep 20 and 40 ms, 8 samples a step",
            f"{rate:.2f} samples/s, {rate / 200 - 1:+.2%}",
            "200 within 2 %",
            abs(rate / 200 - 1) <= 0.02,
        ),
    ]


def instrumentation() -> list[Limit]:
    """What our own calls inside a block cost, against the shortest step there is."""
    steps = 20_000
    session = FakeSession(lambda _: None)
    engine = _engine(session, HostClock())
    run_block(engine, 1000)
    own_s = min(run_block(engine, steps).elapsed_s for _ in range(5)) / steps
    case = planned_case("transformer:tiny", "single", 1)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), probe_in_server())
        _, (outcome,) = launcher.launch_case(case, SHORT, "timing", launch=0, processes=1)
    assert outcome.measured is not None
    shortest_s = min(outcome.measured.step_s)
    share = own_s / shortest_s
    return [
        Limit(
            "instrumentation: our calls in a step, fake session included",
            f"{own_s * 1e6:.2f} us of {shortest_s * 1e3:.2f} ms: {share:.2%}",
            "at most 1 %",
            share <= 0.01,
        )
    ]


def planning() -> list[Limit]:
    """A hundred thousand cases, after imports."""
    caps = list(range(1, 5001))
    text = (
        f"matrix: [{{workloads: [transformer:tiny], strategies: [ddp: {{bucket_cap_mb: {caps}}}],"
        " world_sizes: [1, 2, 4, 8], seed: [0, 1, 2, 3, 4]}]"
    )
    machine = probe_in_server()
    all_workloads(), all_strategies()
    begin = time.perf_counter()
    count = len(expand(parse_suite(text, source="big.yaml"), machine))
    seconds = time.perf_counter() - begin
    kept = seconds < 2 and count == 100_000
    return [Limit(f"planning {count} cases", f"{seconds:.2f} s", "2 s", kept)]


class _Sweep(NamedTuple):
    """Records as a large sweep leaves them, and what a page of them may take."""

    cases: Sequence[int]
    """Of each workload, a baseline and its variants."""
    launches: int
    sizes: Sequence[int]
    """Numbers of devices that each variant has a case on."""
    steps: int
    seconds: float
    gigabytes: float


# Tables of the first are of the size of our suite gpu's, which has all charts drawn.
SWEEPS = (
    _Sweep([45, 45, 45, 45, 20], launches=3, sizes=[1, 2, 4, 8], steps=50, seconds=3, gigabytes=1),
    _Sweep([48, 48, *[60] * 7], launches=20, sizes=[8], steps=200, seconds=10, gigabytes=1),
    _Sweep([48, 48, *[60] * 7], launches=194, sizes=[8], steps=30, seconds=60, gigabytes=2),
)


def page() -> list[Limit]:
    """Reports of sweeps, each made by a process of its own."""
    return [_page(sweep) for sweep in SWEEPS]


def _page(sweep: _Sweep) -> Limit:
    count = sum(sweep.cases)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_many(folder, sweep)
        # A process in between, since the system counts the memory of whoever starts one as its own.
        script = (
            "import resource, subprocess, sys, time; begin = time.monotonic();"
            "subprocess.run([sys.executable, '-m', 'bench', 'report', sys.argv[1]], check=True,"
            " stdout=subprocess.DEVNULL); usage = resource.getrusage(resource.RUSAGE_CHILDREN);"
            "print(f'{time.monotonic() - begin}/{usage.ru_maxrss * 1024 / 1e9}')"
        )
        found = _python([PYTHON, "-c", script, str(folder)])
        report = (folder / "report.md").read_text(encoding="utf-8")
        assert f"{count} cases: {count} measured" in report, "or nothing was read"
        seconds, gigabytes = map(float, found.split("/"))
    return Limit(
        f"page of {count * sweep.launches:,} records of up to {max(sweep.sizes)} ranks x "
        f"{sweep.steps} steps, {count:,} cases",
        f"{seconds:.1f} s, {gigabytes:.2f} GB",
        f"{sweep.seconds:g} s, {sweep.gigabytes:g} GB",
        seconds <= sweep.seconds and gigabytes <= sweep.gigabytes,
    )


def _write_many(folder: Path, sweep: _Sweep) -> None:
    """One baseline among the variants of each workload."""
    chance = random.Random(0)
    with Store(folder) as store:
        store.write_run(make_info())
    with (folder / RECORDS).open("wb") as file:
        cases = [(number, way) for number, count in enumerate(sweep.cases) for way in range(count)]
        for workload, number in cases:
            variant, size = divmod(number - 1, len(sweep.sizes))
            ranks = sweep.sizes[size] if number else 1
            case = make_case(
                strategy="ddp" if number else "single",
                workload=f"workload{workload}",
                world_size=ranks,
                options={"bucket_cap_mb": variant + 1},
                label=f"ddp(bucket_cap_mb={variant + 1})" if number else "single",
            )
            for launch in range(sweep.launches):
                steps = [
                    [chance.uniform(0.1, 0.12) for _ in range(sweep.steps)] for _ in range(ranks)
                ]
                record = timing(case, 100.0, launch)
                assert record.timing is not None
                raw = msgspec.structs.replace(
                    record.timing,
                    setup_s=record.timing.setup_s * ranks,
                    first_step_s=record.timing.first_step_s * ranks,
                    warmup_step_s=record.timing.warmup_step_s * ranks,
                    step_s=steps,
                    window_s=[sum(rank) for rank in steps],
                )
                record = msgspec.structs.replace(record, timing=raw)
                file.write(msgspec.json.encode(record) + b"\n")


def suites() -> list[Limit]:
    """Whole runs, as a user starts them."""
    limits = []
    for name, bar_s in (("smoke", 60), ("quick", 480)):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", "bench", "run", name, "--out", f"{folder}/out"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            seconds = time.monotonic() - begin
        limits.append(Limit(f"suite {name}", f"{seconds:.0f} s", f"{bar_s} s", seconds < bar_s))
    return limits


def memory_prediction() -> list[Limit]:
    """Memory of a large model on 64 devices, as a process of its own."""
    model = "transformer(preset=xl, layers=24, heads=16, width=2048)"
    # A process in between, since the system counts the memory of whoever starts one as its own.
    script = (
        "import resource, subprocess, sys, time; begin = time.monotonic();"
        "subprocess.run([sys.executable, '-m', 'bench', 'predict', 'memory', sys.argv[1],"
        " '--strategies', sys.argv[2], '--world-sizes', '64'], check=True,"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        " usage = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(f'{time.monotonic() - begin}/{usage.ru_maxrss * 1024 / 1e9}')"
    )
    limits = []
    for strategy in ("ddp", "fsdp"):
        found = _python([PYTHON, "-c", script, model, strategy])
        seconds, gigabytes = map(float, found.split("/"))
        limits.append(
            Limit(
                f"memory of 1.3 billion parameters under {strategy} on 64 devices, predicted",
                f"{seconds:.1f} s, {gigabytes:.2f} GB",
                "60 s, 4 GB",
                seconds <= 60 and gigabytes <= 4,
            )
        )
    return limits


CHECKS: Sequence[tuple[str, Callable[[], list[Limit]]]] = [
    (check.__name__, check)
    for check in (
        launch,
        truth,
        instrumentation,
        planning,
        page,
        fidelity_single,
        fidelity_ddp,
        comm,
        memory_prediction,
        suites,
    )
]
