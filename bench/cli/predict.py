"""``bench predict``: what devices would do that are not here; ``memory`` stands below."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from bench.cli.options import JsonOption, numbers, size_in_bytes
from bench.cli.output import print_json, print_text, say
from bench.cli.predict_scaling import profile, scaling, score
from bench.errors import BenchError
from bench.plan.case import PlannedCase


class _Scoring(TyperGroup):
    """``bench predict --score STUDY`` is ``bench predict score STUDY``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See ``click.Group``."""
        return super().parse_args(ctx, ["score", *args[1:]] if args[:1] == ["--score"] else args)


app = typer.Typer(name="predict", no_args_is_help=True, cls=_Scoring)
app.command()(profile)
app.command()(scaling)
app.command()(score)
STRATEGIES = "single, ddp, zero, fsdp"


@app.callback()
def predict() -> None:
    """Predict what devices would do that are not here: nothing of it is measured.

    --score is the command score.
    """


@app.command()
def memory(  # noqa: PLR0913 - options, each known by its name
    workload: Annotated[
        str | None,
        typer.Argument(help="Such as transformer:xl or 'transformer(preset=xl, layers=24)'."),
    ] = None,
    *,
    suite: Annotated[
        str | None, typer.Option(help="A suite whose cases to predict, in place of a workload.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(metavar="NAMES", help="Such as 'ddp, fsdp(reshard_after_forward=false)'.")
    ] = STRATEGIES,
    world_sizes: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of devices; none need be here.")
    ] = "1,2,4,8,64",
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of each device, such as 24GiB: does it fit?"),
    ] = None,
    allowance: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Set aside for what no tensor shows.",
            show_default="1.5GiB, on a CPU 0",
        ),
    ] = None,
    device: Annotated[
        Literal["cuda", "xpu", "cpu"], typer.Option(help="Type of the devices.")
    ] = "cuda",
    precision: Annotated[str | None, typer.Option(help="As in a suite.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="As in a suite.")] = None,
    optimizer_kernels: Annotated[str | None, typer.Option(help="As in a suite.")] = None,
    per_device_batch: Annotated[int | None, typer.Option(help="As in a suite.")] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="Micro-steps of an optimizer step.")
    ] = None,
    activation_checkpointing: Annotated[
        bool | None, typer.Option("--activation-checkpointing", help="As in a suite.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for page, charts and data.")] = None,
    json: JsonOption = False,
) -> None:
    """Predict memory by category, whether it fits, and the largest batch: without devices."""
    settings = {
        "precision": precision,
        "optimizer": optimizer,
        "optimizer_kernels": optimizer_kernels,
        "per_device_batch": per_device_batch,
        "accumulation_steps": accumulation,
        "activation_checkpointing": activation_checkpointing,
    }
    limit = None if device_memory is None else size_in_bytes("--device-memory", device_memory)
    aside = None if allowance is None else size_in_bytes("--allowance", allowance)
    planned = _planned(
        workload,
        suite,
        device,
        strategies=strategies,
        world_sizes=numbers("--world-sizes", world_sizes),
        **settings,
    )
    from bench.predict.memory import allowance_for, forecast_of, predict_memory

    aside = allowance_for(device) if aside is None else aside
    if limit is not None and limit <= aside:
        raise BenchError(f"--device-memory: nothing is left of {device_memory} after the allowance")
    rows = []
    for row in predict_memory(planned, device_memory_bytes=limit, allowance_bytes=aside):
        rows.append(row)
        say(f"{len(rows)} of {len(planned)}: {row.case.id}")
    forecast = forecast_of(rows, device_memory_bytes=limit, allowance_bytes=aside)
    from bench.report.memory_prediction import page, write_forecast

    if out is not None:
        say(f"page in {write_forecast(forecast, out)}")
    if json:
        print_json(forecast)
    else:
        print_text(page(forecast).rstrip())
    if all(row.peak_bytes is None for row in rows):
        raise typer.Exit(1)


def _planned(
    workload: str | None,
    suite: str | None,
    device: str,
    *,
    strategies: str,
    world_sizes: tuple[int, ...],
    **settings: Any,
) -> tuple[PlannedCase, ...]:
    from bench.predict.memory_plan import planned_cases, suite_of

    if (workload is None) == (suite is None):
        raise BenchError("bench predict memory: name a workload, or give a --suite, not both")
    if suite is not None:
        return planned_cases(suite, device)
    assert workload is not None
    return planned_cases(
        suite_of(workload, strategies, world_sizes, device=device, **settings), device
    )
