"""``bench recommend``: what to use, why, and the program for it."""
# ruff: noqa: PLC0415 - what needs numbers is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import JsonOption
from bench.cli.output import deliver
from bench.errors import BenchError


def recommend(  # noqa: PLR0913 - options, each known by its name
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="Results folder; with --predict, a profile's file or a workload."
        ),
    ],
    *,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of each device; no limit by default.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Number of them.", show_default="the most that was measured"),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="For devices that are not here; nothing is measured.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Predicted: such as '4 hosts x 8 x H100 NVLink at 400 Gbit/s'.",
            show_default="8 x A100 80 GB NVLink",
        ),
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(help="Predicted: samples per second on one such device.")
    ] = None,
    per_device_batch: Annotated[
        int | None, typer.Option(min=1, help="Predicted: and their number in a step.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Predicted: such as 'ddp,fsdp(shard_size=8)'."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Predicted: as in a suite.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Predicted: as in a suite.")] = None,
    activation_checkpointing: Annotated[
        bool | None, typer.Option("--activation-checkpointing", help="Predicted: as in a suite.")
    ] = None,
    allowance: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Predicted: set aside for what no tensor shows."),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Predicted: of bench comm, links of a host as measured."),
    ] = None,
    json: JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="A file to write to, not stdout.")] = None,
) -> None:
    """Choose among what was measured and proved, with the reason, the runner-up and the code."""
    if memory_gib is not None and not 0 < memory_gib < 2**40:
        raise BenchError(f"--memory-gib: {memory_gib:g} is no size of a memory")
    settings = {
        "precision": precision,
        "optimizer": optimizer,
        "activation_checkpointing": activation_checkpointing,
    }
    if predict:
        from bench.cli.recommend_predicted import Asked, recommend_predicted

        if devices is not None:
            raise BenchError("--devices: with --predict, --on says how many there are")
        asked = Asked(
            on=on or "8 x A100 80 GB NVLink",
            throughput=throughput,
            per_device_batch=per_device_batch,
            strategies=strategies,
            settings=settings,
            memory_gib=memory_gib,
            allowance=allowance,
            curve=curve,
        )
        if not recommend_predicted(folder, asked, json=json, out=out):
            raise typer.Exit(1)
        return
    told = settings | {
        "on": on,
        "throughput": throughput,
        "per_device_batch": per_device_batch,
        "strategies": strategies,
        "allowance": allowance,
        "curve": curve,
    }
    for name, value in told.items():
        if value is not None:
            raise BenchError(f"--{name.replace('_', '-')}: is for --predict alone")
    _recommend_measured(Path(folder), memory_gib, devices, json=json, out=out)


def _recommend_measured(
    folder: Path, memory_gib: float | None, devices: int | None, *, json: bool, out: Path | None
) -> None:
    from bench.analyze.recommend import GIB, no_answer
    from bench.analyze.recommend import recommend as answers_of
    from bench.report.page import load
    from bench.report.recommendation import as_data, markdown

    info, _records, rows = load(folder)
    limit = None if memory_gib is None else memory_gib * GIB
    answers = answers_of(rows, devices=devices, memory_bytes=limit)
    if not answers:
        raise BenchError(f"{folder}: no case was planned or measured in it")
    if not any(answer.best or answer.ruled_out for answer in answers):
        raise BenchError(f"{folder}: {no_answer(answers[0])}: run the suite on so many devices")
    found = as_data if json else markdown
    deliver(found(info, answers, memory_gib), out)
    if not any(answer.best for answer in answers):
        raise typer.Exit(1)
