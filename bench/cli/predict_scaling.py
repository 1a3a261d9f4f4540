"""``bench predict profile``, ``scaling`` and ``score``: other numbers of devices, and how wrong."""
# ruff: noqa: PLC0415 - what is heavy is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli.options import JsonOption, numbers
from bench.cli.output import print_json, print_text, say
from bench.errors import BenchError

WorkloadArgument = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Such as resnet152:cpu, or one's own.")
]


def profile(  # noqa: PLR0913 - options, each known by its name
    workload: WorkloadArgument,
    *,
    out: Annotated[Path, typer.Option(help="File to write the profile to.")] = Path("profile.json"),
    per_device_batch: Annotated[int | None, typer.Option(min=1, help="Samples of a step.")] = None,
    precision: Annotated[str, typer.Option(help="As in suites: fp32, bf16-amp ...")] = "fp32",
    device: Annotated[str, typer.Option(help="Type of the device.")] = "auto",
    together: Annotated[
        int,
        typer.Option(
            min=1, help="Devices that compute at the same time; 2 or more show what overlap costs."
        ),
    ] = 1,
) -> None:
    """Measure what a step of a workload costs on one device, and when each gradient is there."""
    import msgspec

    from bench.cli.machine import warn_of_this_machine
    from bench.records.store import write_atomically
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    if not out.absolute().parent.is_dir():
        raise BenchError(f"--out {out}: no such folder: {out.absolute().parent}")
    settings: dict[str, object] = {"precision": precision, "device": device}
    if per_device_batch is not None:
        settings["per_device_batch"] = per_device_batch
    warn_of_this_machine()
    say("loading PyTorch and looking at this machine ...")
    with scratch() as private:
        start_server()
        from bench.run.launch import probe_in_server
        from bench.run.profiling import base_case, measure_profile
        from bench.run.signals import signals_raise

        try:
            with signals_raise():
                machine = probe_in_server()
                case, effort = base_case(workload, machine, settings=settings)
                found = measure_profile(
                    case, effort, together=together, machine=machine, scratch=private
                )
        finally:
            stop_server()
    try:
        write_atomically(out, msgspec.json.format(msgspec.json.encode(found), indent=1))
    except OSError as error:
        raise BenchError(f"{out}: cannot be written: {error.strerror}") from error
    print_text(str(out))
