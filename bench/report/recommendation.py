"""A recommendation in words, with the program that carries it out; and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.analyze.recommend import GIB, SAVES, Answer, need_of, no_answer, usual_need_of
from bench.analyze.rows import Comparison, Row
from bench.errors import plural
from bench.plan.case import Case
from bench.records.record import RunInfo
from bench.report import cells
from bench.report.export import flat
from bench.report.markup import escape
from bench.report.notes import SHORT_NAMES, notes_of, parity_of, variants
from bench.report.snippet.pieces import NoProgramError
from bench.report.snippet.program import FILE, program
from bench.report.summary import machine_lines

TIGHT = 0.95
"""Share of the limit beyond which a word of warning is due."""
MOST_NAMED = 6
SAID = ("no speedup:", "no clear gain", "no clear difference", "slower than one device")
"""Beginnings of notes that say what stands under the speedup already."""
Name = Callable[[Case], str]

TO_READ = """\
Eligible are rows of this run alone that were measured on exactly so many devices, whose proof found
that they train as one device does, and that fit into the memory. A difference is clear if it is so
among all comparisons of the run's report and all pairs of eligible rows, and larger than what equal
cases, measured twice, differed by. Of the row with the highest figure and all that noise does not
tell from it, the one with fewest settings is chosen.
Memory is that of the steps measured; other batches and sequence lengths need other amounts."""


def as_data(info: RunInfo, answers: Sequence[Answer], memory_gib: float | None) -> dict[str, Any]:
    """The answers for programs."""
    return {
        "run_id": info.run_id,
        "memory_gib": memory_gib,
        "answers": [_answer_data(answer, info.run_id) for answer in answers],
    }


def _answer_data(answer: Answer, run: str) -> dict[str, Any]:
    case, best = _case(answer), answer.best
    need = None if best is None else need_of(best)
    code, reason = (None, no_answer(answer)) if best is None else _program(best.case)
    return {
        "workload": case.workload,
        "preset": case.preset,
        "scaling": case.scaling,
        "optimizer": case.optimizer,
        "devices": answer.devices,
        "nodes": case.nodes,
        "link": case.link,
        "latency_ms": case.latency_ms,
        "choice": None if best is None else flat(run, best),
        "needs_bytes": None if need is None else need.bytes,
        "needs_kind": None if need is None else need.kind,
        "fastest": None if answer.fastest is None else answer.fastest.case.id,
        "runner_up": None if answer.runner_up is None else answer.runner_up.case.id,
        "eligible_beside_the_fastest": [
            {"row": flat(run, row), "fastest_over_it": lead.ratio, "verdict": lead.verdict}
            for row, lead in zip(answer.eligible[1:], answer.leads, strict=True)
        ],
        "ruled_out": [{"id": one.row.case.id, "reason": one.reason} for one in answer.ruled_out],
        "measured_on": answer.measured_on,
        "reason": reason,
        "code": code,
    }


def _program(case: Case) -> tuple[str | None, str | None]:
    """The program's text, or why there is none."""
    try:
        return program(case), None
    except NoProgramError as error:
        return None, str(error)


def markdown(info: RunInfo, answers: Sequence[Answer], memory_gib: float | None) -> str:
    """The answers as a page."""
    limit = "" if memory_gib is None else f", {memory_gib:g} GiB each"
    sizes = {answer.devices for answer in answers if answer.is_asked}
    where = f" on {plural(sizes.pop(), 'device')}" if sizes else ""
    parts = [f"# What to use{where}{limit}"]
    titles = [_title(answer, answers) for answer in answers]
    for title, answer in zip(titles, answers, strict=True):
        parts += [f"## {escape(title)}", *_section(answer, memory_gib)]
    parts += ["## How it was chosen", TO_READ, "## Where it was measured"]
    parts.append("\n".join(f"- {escape(one)}" for one in machine_lines(info)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(answer: Answer, answers: Sequence[Answer]) -> str:
    """The model, with what tells it from the others on the page."""
    case = _case(answer)
    alike = [_case(one) for one in answers]
    alike = [one for one in alike if (one.workload, one.preset) == (case.workload, case.preset)]
    options = [
        f"{name} {value}"
        for name, value in case.workload_options.items()
        if any(other.workload_options.get(name) != value for other in alike)
    ]
    fields = ["scaling", "device", "optimizer", "seed", "cores_per_device", "data_label"]
    fields += ["nodes", "link", "latency_ms"]
    others = [
        f"{SHORT_NAMES.get(name, name)} {getattr(case, name) or case.data}"
        for name in fields
        if any(getattr(other, name) != getattr(case, name) for other in alike)
    ]
    if case.scaling == "strong" and len({other.global_batch for other in alike}) > 1:
        others.append(f"global batch {case.global_batch}")
    return ", ".join([case.workload, f"preset {case.preset}", *options, *others])


def _case(answer: Answer) -> Case:
    """One of those that the answer is about: of so many devices, where they are."""
    there = (row.case for row in answer.rows if row.case.world_size == answer.devices)
    return next(there, answer.rows[0].case)


def _section(answer: Answer, memory_gib: float | None) -> Iterator[str]:
    name = variants(answer.rows)
    best = answer.best
    if best is None:
        yield f"**No recommendation**: {escape(no_answer(answer))}."
        yield _ruled_out(answer, name)
        return
    yield f"**{escape(name(best.case))}** on {plural(answer.devices, 'device')}."
    words = [*_why(answer, name, memory_gib), *_runner_up(answer, name), *_caveats(answer, name)]
    yield "\n".join(f"- {escape(one)}" for one in words)
    yield _ruled_out(answer, name)
    text, reason = _program(best.case)
    if text is None:
        yield f"No program: {escape(str(reason))}."
    else:
        yield f"As a program, `{FILE}`:"
        yield f"```python\n{text}```"


def _figure(row: Row) -> str:
    return f"{cells.throughput(row)} {row.unit}s/s"


def _why(answer: Answer, name: Name, memory_gib: float | None) -> Iterator[str]:
    best = answer.best
    assert best is not None, "there is an answer"
    size = "" if answer.is_asked else f", on the most devices measured, {answer.devices}"
    count = plural(len(answer.eligible), "eligible row")
    if len(answer.eligible) == 1:
        why = "the one eligible row"
    elif best is answer.fastest:
        why = f"the {'highest figure' if answer.tied else 'fastest'} of {count}"
    else:
        assert answer.fastest is not None, "there is an answer"
        highest = f"the one with the highest figure, {name(answer.fastest.case)}"
        fewer = f"noise does not tell it from {highest}"
        why = f"of {count}, {fewer}, and it has fewer settings"
    yield f"Why: {why}{size}: {_figure(best)}"
    if best.speedup.ratio is not None and not best.speedup.is_baseline:
        gain = {
            "faster": "",
            "slower": ": slower than one device without a wrapper, so use that",
            "no clear difference": ": no clear gain over one device without a wrapper",
        }.get(best.speedup.verdict or "", "")
        yield f"Speedup over one device: {cells.span(best.speedup.ratio)}{gain}"
    elif best.speedup.reason is not None:
        yield f"No speedup is known: {best.speedup.reason}"
    yield _memory(best, memory_gib)
    yield f"Proof: {parity_of(best)}"


def _memory(best: Row, memory_gib: float | None) -> str:
    need = need_of(best)
    if need is None:
        return "Memory: not known"
    used = need.bytes / GIB
    text = f"Memory: {cells.significant(used)} GiB on the device that needs most ({need.kind})"
    if memory_gib is None:
        return f"{text}; no limit was given"
    tight = "; that is tight: fragmentation or a longer batch may not fit"
    return f"{text}, of {memory_gib:g} GiB" + (tight if used > TIGHT * memory_gib else "")


def _runner_up(answer: Answer, name: Name) -> Iterator[str]:
    second = answer.runner_up
    if second is None:
        yield "Runner-up: none, since no other row is eligible"
        return
    lead = answer.leads[0] if answer.best is answer.fastest else _over(answer, answer.best)
    yield f"Runner-up: {name(second.case)}, {_figure(second)}; {_lead(lead)}"
    equals = [row for row in answer.tied if row is not answer.best and row is not second]
    if equals:
        names = "; ".join(name(row.case) for row in equals[:MOST_NAMED])
        more = len(equals) - MOST_NAMED
        yield f"Nor does noise tell the highest figure from that of: {names}" + (
            f"; and {more} more" if more > 0 else ""
        )
    alike = [*answer.eligible[:1], *answer.tied]
    small = [(need.bytes, row) for row in alike if (need := usual_need_of(row))]
    own = next((size for size, row in small if row is answer.best), 0)
    size, row = min(small, key=lambda one: one[0], default=(own, answer.best))
    if row is not None and size < (1 - SAVES) * own:
        yield (
            f"Of all these, {name(row.case)} needs the least memory: "
            f"{cells.significant(size / GIB)} GiB in the median launch, where the choice needs "
            f"{cells.significant(own / GIB)}"
        )


def _over(answer: Answer, row: Row | None) -> Comparison:
    """The fastest over another row."""
    pairs = zip(answer.eligible[1:], answer.leads, strict=True)
    return next(lead for other, lead in pairs if other is row)


def _lead(lead: Comparison) -> str:
    """How far the fastest is ahead of the next."""
    ratio = lead.ratio
    assert ratio is not None, "both have figures"
    if ratio.low is None or ratio.high is None:
        return f"the faster one is ahead by {ratio.value - 1:.1%}, with one launch: nothing is sure"
    ends = f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
    if lead.verdict == "faster":
        return f"the choice is clearly faster, by {ends}"
    return f"no clear difference, {ends} for the faster one: noise may explain it"


def _caveats(answer: Answer, name: Name) -> Iterator[str]:
    """What the choice changes in training, and what must be known of its figure."""
    best, plain, less = answer.best, answer.unchanged, answer.with_less
    assert best is not None, "there is an answer"
    if plain is not None:
        yield (
            f"It trains in {best.case.precision} with a global batch of {best.case.global_batch:,}."
            f" Where that must stay fp32 and {plain.case.global_batch:,}: {name(plain.case)}, "
            f"{_figure(plain)}"
        )
    if less is not None:
        yield (
            f"Fewer devices did as much: {name(less.case)} on "
            f"{plural(less.case.world_size, 'device')}, {_figure(less)}"
        )
    yield from (note for note in notes_of(best, "scaling") if not note.startswith(SAID))


def _ruled_out(answer: Answer, name: Name) -> str:
    if not answer.ruled_out:
        return ""
    lines = [
        f"- {escape(name(one.row.case))}"
        + (f" ({escape(_figure(one.row))})" if one.row.samples_per_s else "")
        + f": {escape(one.reason)}"
        for one in answer.ruled_out
    ]
    return "\n".join([f"Ruled out on {plural(answer.devices, 'device')}:", "", *lines])
