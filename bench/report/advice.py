"""A recommendation that rests on predictions: in words, as a table, with its program; and as data.

Whatever is said of a figure here says that it was predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tabulate import tabulate

from bench.errors import plural
from bench.plan.case import Case
from bench.records.advice import Advice, Candidate
from bench.records.scaling import Predicted
from bench.report.cells import DASH
from bench.report.markup import escape
from bench.report.snippet.pieces import NoProgramError
from bench.report.snippet.program import FILE, program

GIB = 2**30
GIGABIT = 1e9 / 8
STAND_IN = (
    "Model, loss, batches and learning rate stand in for yours; all else is what was predicted to"
    " be the best, and was not measured."
)
TO_READ = """\
Eligible is what is predicted to fit: the peak of tensors, from the strategy's own code on tensors
without data, and an allowance for what no tensor shows. Time is from a step of one device, counts
or marks of its gradients, and links as published or measured. Of each way two batches are tried:
the one asked for, and one that nearly fills the memory, but no more than eight times as large; of
DDP several caps of buckets. A setting that is predicted to bring less than {gain} is not taken.
Intervals are those in which eight in ten published figures lay: of the whole level. Errors that two
ways share cancel between them; how large the rest is, is not known. A larger batch trains another
way, and steps are taken to be in proportion to it. Measure before you believe it: `bench run` with
these cases, on such devices."""


def as_data(advice: Advice) -> dict[str, Any]:
    """For programs; steps without their pieces of work."""
    best = advice.best
    code, reason = (None, "nothing fits") if best is None else _program(best.predicted.case)
    return {
        **msgspec.to_builtins(advice),
        "eligible": [_plain(one) for one in advice.eligible],
        "ruled_out": [_plain(one) for one in advice.ruled_out],
        "choice": None if best is None else _plain(best),
        "runner_up": None if advice.runner_up is None else _plain(advice.runner_up),
        "code": code,
        "no_code": reason,
    }


def _plain(one: Candidate) -> Any:
    bare = msgspec.structs.replace(one.predicted, moments=[])
    return msgspec.to_builtins(msgspec.structs.replace(one, predicted=bare))


def markdown(advice: Advice) -> str:
    """The page."""
    memory = f"{advice.memory_bytes / GIB:.4g} GiB each"
    parts = [
        f"# What to use on {escape(advice.where)}, {memory}: predicted",
        f"**Nothing here was measured on such devices.** {escape(advice.basis)}",
        *_choice(advice),
        "## How it was chosen",
        TO_READ.format(gain=f"{advice.least_gain:.0%}"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _choice(advice: Advice) -> Iterator[str]:
    best = advice.best
    rows = [*advice.eligible, *advice.ruled_out]
    yield f"## {escape(rows[0].predicted.case.workload)}"
    if best is None:
        yield "**No recommendation**: nothing is predicted to fit."
        yield _table(rows)
        yield _ruled_out(advice)
        return
    case = best.predicted.case
    yield (
        f"**{escape(case.label)}** at a batch of {case.per_device_batch} per device on "
        f"{plural(case.world_size, 'device')}, predicted."
    )
    yield "\n".join(f"- {escape(one)}" for one in _reasons(advice, best))
    yield _table(rows)
    yield _ruled_out(advice)
    text, reason = _program(case)
    if text is None:
        yield f"No program: {escape(str(reason))}."
    else:
        yield f"As a program, `{FILE}`:"
        yield f"```python\n{text}```"


def _reasons(advice: Advice, best: Candidate) -> Iterator[str]:
    one = best.predicted
    quickest = advice.eligible[0]
    why = f"the quickest of {plural(len(advice.eligible), 'way')} predicted to fit"
    if best is not quickest:
        label = quickest.predicted.case.label
        why = f"within {advice.least_gain:.0%} of the quickest, {label}, with fewer settings"
    yield f"Why: {why}: {_rate(one)}, predicted"
    yield (
        f"Predicted speedup over one device at the same batch: {_span(one.speedup, one)}, "
        f"efficiency {one.efficiency:.1%}; {1e3 * one.exposed_s:.3g} ms of a step of "
        f"{1e3 * one.step_s:.4g} ms are communication that nothing hides"
    )
    yield _memory(advice, best)
    yield from _runner_up(advice, best)
    other = advice.at_asked_batch
    if other is not None:
        yield (
            f"At the batch asked for, {advice.asked_batch}, it would be "
            f"{other.predicted.case.label}: {_rate(other.predicted)}, predicted"
        )
    elif one.case.per_device_batch != advice.asked_batch:
        yield f"At the batch asked for, {advice.asked_batch}, nothing is predicted to fit"
    yield _flip(advice)


def _memory(advice: Advice, best: Candidate) -> str:
    assert best.peak_bytes is not None, "what is eligible has a peak"
    tensors, aside = best.peak_bytes / GIB, advice.allowance_bytes / GIB
    return (
        f"Predicted memory: {tensors:.3g} GiB of tensors and {aside:.3g} GiB set aside for what no "
        f"tensor shows, of {advice.memory_bytes / GIB:.4g} GiB"
    )


def _runner_up(advice: Advice, best: Candidate) -> Iterator[str]:
    second = advice.runner_up
    if second is None:
        yield "Runner-up: none, since nothing else is predicted to fit"
        return
    one, first = second.predicted, best.predicted
    lead = first.samples_per_s / one.samples_per_s - 1
    errors = [abs(error) for error in (first.error_low, one.error_high) if error is not None]
    reach = one.samples_per_s * (1 + (one.error_high or 0.0))
    doubt = (
        "; within the error of predictions, so measure both"
        if errors and reach >= first.samples_per_s * (1 - (first.error_low or 0.0))
        else ""
    )
    yield (
        f"Runner-up: {one.case.label} at a batch of {one.case.per_device_batch}, {_rate(one)}, "
        f"predicted; the choice is ahead by {lead:.1%}{doubt}"
    )


def _flip(advice: Advice) -> str:
    if advice.flips_at_bytes_per_s is None or advice.flips_to is None:
        return (
            "No other strategy is predicted to be quicker at a thousandth to a thousand times the "
            "links' rate"
        )
    rate = advice.flips_at_bytes_per_s / GIGABIT
    return f"Over links of about {rate:,.3g} Gbit/s it would be {advice.flips_to}, predicted"


def _table(rows: Sequence[Candidate]) -> str:
    heads = [
        "strategy", "batch per device", "samples/s, predicted", "speedup", "exposed, ms",
        "tensors, GiB", "fits",
    ]  # fmt: skip
    body = [
        [
            escape(one.predicted.case.label),
            str(one.predicted.case.per_device_batch),
            _interval(one.predicted),
            f"{one.predicted.speedup:.3g}",
            f"{1e3 * one.predicted.exposed_s:.3g}",
            DASH if one.peak_bytes is None else f"{one.peak_bytes / GIB:.3g}",
            "yes" if one.reason is None else "not known" if one.peak_bytes is None else "no",
        ]
        for one in rows
    ]
    align = ["left", *["right"] * 5, "left"]
    return tabulate(body, heads, tablefmt="github", disable_numparse=True, colalign=align)


def _ruled_out(advice: Advice) -> str:
    lines = [
        f"- {escape(one.predicted.case.label)} at a batch of "
        f"{one.predicted.case.per_device_batch}: {escape(str(one.reason))}"
        for one in advice.ruled_out
    ]
    return "\n".join(["Ruled out:", "", *lines]) if lines else ""


def _rate(one: Predicted) -> str:
    return f"{_interval(one)} samples/s"


def _interval(one: Predicted) -> str:
    return _span(one.samples_per_s, one)


def _span(value: float, one: Predicted) -> str:
    if one.error_low is None or one.error_high is None:
        return f"{value:,.4g}"
    low, high = value * (1 - one.error_low), value * (1 + one.error_high)
    return f"{value:,.4g} ({low:,.4g} to {high:,.4g})"


def _program(case: Case) -> tuple[str | None, str | None]:
    """The program's text, or why there is none."""
    try:
        return program(case, about=STAND_IN), None
    except NoProgramError as error:
        return None, str(error)
