"""``bench lab``: hosts emulated on this machine."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.machine import warn_of_this_machine
from bench.cli.options import FilterOption, SuiteArgument, WorkloadOption, suite_of
from bench.cli.output import print_text, say
from bench.errors import BenchError

lab = typer.Typer(
    help="Emulate several hosts on this Linux machine, with links of a chosen speed. Needs root.",
    no_args_is_help=True,
    add_completion=False,
)

HostsOption = Annotated[int, typer.Option("--hosts", min=2, help="How many.")]
RanksOption = Annotated[
    int, typer.Option("--ranks-per-host", min=1, help="Sets of cores that each of them has.")
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        metavar="RATES",
        help="Of each host's link, such as 300mbit,1gbit,10gbit.",
        show_default="the suite's own, or as fast as it is",
    ),
]
LatencyOption = Annotated[
    str | None,
    typer.Option("--latency-ms", metavar="TIMES", help="One way, such as 0.5,5; needs netem."),
]


@lab.command("run")
def run(  # noqa: PLR0913 - options, each known by its name
    suite: SuiteArgument = None,
    *,
    workload: WorkloadOption = None,
    hosts: HostsOption = 2,
    ranks_per_host: RanksOption = 1,
    link: LinkOption = None,
    latency_ms: LatencyOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results.", show_default="a new one, runs/SUITE-TIME"),
    ] = None,
    only: FilterOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    launches: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Exactly so many launches of each case.")
    ] = None,
) -> None:
    """Measure a suite on emulated hosts, as ``bench run`` does on real ones."""
    described = suite_of(suite, workload)
    given = {"--out": out, "--filter": only, "--launches": launches}
    arguments = ["run", *([suite] if suite is not None else [])]
    arguments += [word for one in workload or () for word in ("--workload", one)]
    for name, value in given.items():
        arguments += [name, str(value)] if value is not None else []
    arguments += ["--resume"] if resume else []
    from bench.lab.guest import links_of, with_links
    from bench.lab.session import Wish, check, run_lab
    from bench.run.progress import Lines
    from bench.run.scratch import scratch

    wish = Wish(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        rates=rates(link),
        latencies_ms=latencies(latency_ms),
    )
    check(wish)
    warn_of_this_machine()
    with scratch() as private:
        code = run_lab(
            wish,
            links_of(with_links(described, wish.rates, wish.latencies_ms)),
            arguments,
            scratch=private,
            progress=Lines(sys.stderr),
            cores_per_device=described.cores_per_device,
        )
    if code:
        raise typer.Exit(code)


@lab.command("comm", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def comm(
    context: typer.Context,
    *,
    hosts: HostsOption = 2,
    ranks_per_host: RanksOption = 1,
    link: LinkOption = None,
) -> None:
    """Measure collectives within and between emulated hosts; other options are ``bench comm``'s."""
    from bench.lab.network import Link
    from bench.lab.session import Wish, check, run_lab
    from bench.run.progress import Lines
    from bench.run.scratch import scratch

    wish = Wish(hosts=hosts, ranks_per_host=ranks_per_host, rates=rates(link))
    check(wish)
    warn_of_this_machine()
    links = [Link(rate=rate) for rate in wish.rates] or [Link()]
    with scratch() as private:
        code = run_lab(
            wish, links, ["comm", *context.args], scratch=private, progress=Lines(sys.stderr)
        )
    if code:
        raise typer.Exit(code)


@lab.command("clean")
def clean() -> None:
    """Remove what laboratories that were killed have left: namespaces, and all within them."""
    from bench.lab.session import clean as remove_abandoned

    names = remove_abandoned()
    for name in names:
        print_text(name)
    say(f"removed {len(names)} network namespaces" if names else "nothing was left behind")


def rates(text: str | None) -> tuple[str, ...]:
    """Rates of a list, as a suite's ``link`` has them."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if not re.fullmatch(r"[1-9]\d{0,5}(kbit|mbit|gbit)", word):
            raise BenchError(f"--link: {word!r} is no rate; write 300mbit or 10gbit")
    return tuple(dict.fromkeys(words))


def latencies(text: str | None) -> tuple[float, ...]:
    """Milliseconds of a list."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if not re.fullmatch(r"\d{1,4}(\.\d{1,4})?", word):
            raise BenchError(f"--latency-ms: {word!r} is no number of milliseconds")
    return tuple(dict.fromkeys(map(float, words)))
