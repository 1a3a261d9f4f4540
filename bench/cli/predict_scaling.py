"""``bench predict profile``, ``scaling`` and ``score``: other numbers of devices, and how wrong."""
# ruff: noqa: PLC0415 - what is heavy is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import bench
from bench.cli.options import JsonOption, numbers
from bench.cli.output import print_json, print_text, say
from bench.errors import BenchError

WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="Such as resnet152:cpu, 'transformer(layers=6)', or one's own."
    ),
]


def profile(
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
    from bench.predict.memory_plan import workload_entry
    from bench.records.store import write_atomically
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    if not out.absolute().parent.is_dir():
        raise BenchError(f"--out {out}: no such folder: {out.absolute().parent}")
    entry = workload_entry(workload) if "(" in workload else workload
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
                case, effort = base_case(entry, machine, settings=settings)
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


def scaling(  # noqa: PLR0913 - options, each known by its name
    *,
    on: Annotated[
        str,
        typer.Option(
            metavar="DEVICES",
            help="Such as '8 x A100 80 GB NVLink', or '4 hosts x 8 x H100 NVLink at 400 Gbit/s'.",
        ),
    ] = "8 x A100 80 GB NVLink",
    profile: Annotated[
        Path | None, typer.Option(help="File of bench predict profile.", show_default="none")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Without a profile: a published model, such as resnet50.")
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(help="Its samples per second on one of the devices.")
    ] = None,
    per_device_batch: Annotated[
        int | None, typer.Option(min=1, help="And their number in a step.")
    ] = None,
    gradient_mib: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e9, help="Of any other model: MiB of its gradients."),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="And its optimizer: sgd, adam, lamb.")] = "sgd",
    curve: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of bench comm: links of a host as measured.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(help="Such as 'ddp,ddp(bucket_cap_mb=100),fsdp'.")
    ] = "ddp,fsdp",
    world_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Of devices; by default powers of two, to 1,024 over hosts."
        ),
    ] = None,
    rule: Annotated[
        Literal["weak", "strong"], typer.Option("--scaling", help="Which batch stays the same.")
    ] = "weak",
    accumulation_steps: Annotated[int, typer.Option(min=1, help="Micro-steps of a step.")] = 1,
    best: Annotated[
        bool, typer.Option("--best", help="Say what is quickest on these devices, and when not.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for rows, report, charts and a trace."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Of bench run --trace: put the predicted step beside its steps."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predict steps on other numbers of devices, from one device's profile or published figure."""
    from bench.predict.question import question_of, sizes_of
    from bench.predict.sweep import choose, sweep, ways_of
    from bench.report.scaling import plain, write_scaling
    from bench.report.scaling_choice import choice_of

    question, site = question_of(
        on,
        profile=profile,
        model=model,
        throughput=throughput,
        per_device_batch=per_device_batch,
        gradient_mib=gradient_mib,
        optimizer=optimizer,
        curve=curve,
        scaling=rule,
        accumulation_steps=accumulation_steps,
    )
    if question.profile.case.device == "cpu" and curve is None:
        say(f"warning: the profile is of a CPU, and the links are {question.network.name}")
    if trace is not None and out is None:
        raise BenchError("--trace puts a step beside others in the --out folder: name one")
    ways = ways_of(strategies)
    if best:
        choice = choose(question, site.places, [way.strategy for way in ways])
        words = choice_of(choice.ranked, choice.tied, choice.flips_at_bytes_per_s, choice.flips_to)
        print_json(choice) if json else print_text(words)
        return
    asked = None if world_sizes is None else numbers("--world-sizes", world_sizes)
    rows = sweep(question, ways, sizes_of(site, asked))
    if not rows:
        raise BenchError("none of the strategies can have any of these numbers of devices")
    if out is not None:
        from bench.predict.write import write_rows

        write_rows(rows, out, question, version=bench.__version__)
        path = write_scaling(
            rows,
            out,
            title=f"{rows[0].case.workload} on {question.network.name}, predicted",
            basis=question.basis,
            measured_trace=trace,
        )
        say(f"report in {path}")
    print_json(rows) if json else print_text(plain(rows))


def score(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Studies measured here: profiles, links, runs."),
    ] = None,
    *,
    fit_on: Annotated[
        str | None,
        typer.Option(
            metavar="LINK", help="Fit two numbers to this link's cells, which are not scored."
        ),
    ] = None,
    write: Annotated[
        list[Path] | None,
        typer.Option(metavar="PAGE", help="Put the tables of published rows into a page, too."),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Put predictions into each run's folder, for its report."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """How wrong predictions are: published tables, and studies that were measured here."""
    from bench.predict.measured import beside as predict_beside
    from bench.predict.measured import boards
    from bench.predict.scoreboard import published_scores
    from bench.predict.study import read_study
    from bench.predict.write import write_beside
    from bench.records.store import write_atomically
    from bench.report.prediction import renewed, scoreboard
    from bench.report.prediction_measured import study_text

    scores = published_scores()
    studies = [(folder, read_study(folder)) for folder in folders or []]
    found = [(folder, boards(study, fit_on)) for folder, study in studies]
    if write and len(found) > 1:
        raise BenchError("--write: a page shows one study; name one")
    for page in write or []:
        try:
            before = page.read_text(encoding="utf-8")
            after = renewed(before, scores, found[0][1] if found else None)
            write_atomically(page, after.encode())
        except OSError as error:
            raise BenchError(f"{page}: cannot be written: {error.strerror}") from error
    for _, study in studies if beside else []:
        for run, predicted in predict_beside(study, fit_on=fit_on):
            write_beside(run, predicted)
            say(f"predictions beside {run}; bench report {run} shows them")
    if json:
        print_json({str(folder): some for folder, some in found} if found else scores)
        return
    if not found:
        print_text(scoreboard(scores))
    for folder, some in found:
        print_text(f"{folder}\n\n{study_text(some)}\n")
