"""The best way on devices that are not here: quickest by prediction, of those predicted to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from bench.errors import BenchError
from bench.plan.case import Case
from bench.plan.registry import find_strategy
from bench.predict.memory_child import Question as MemoryQuestion
from bench.predict.memory_child import ask as ask_memory
from bench.predict.memory_obstacle import obstacle
from bench.predict.network import Places
from bench.predict.scaling import at_batch
from bench.predict.sweep import CAPS_MB, FACTORS, Question, Way, ask, faster, rate_of, ways_of
from bench.records.advice import Advice, Candidate, best_of
from bench.records.prediction import PredictedMemory
from bench.records.scaling import Predicted

STRATEGIES = "ddp,ddp(gradient_as_bucket_view=true),zero,fsdp,fsdp(reshard_after_forward=false)"
LEAST_GAIN = 0.01
"""A setting that is predicted to bring less is not worth having: predictions err by more."""
ROUND = 8
"""Batches are multiples of it, from there on."""
FULL = 0.99
"""Of what is left of the memory: as far as a line through two batches is trusted."""
FURTHEST = 8
"""Times the profile's batch, as far as a step is trusted to be in proportion to it."""
LEAST_BATCH = 2
"""A batch norm needs two samples."""
GIB = 2**30
ACCELERATOR = "cuda"
"""Whose memory is predicted: links between processors are another matter."""
Told = Callable[[str], None]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a recommendation is asked for."""

    where: str
    places: Places
    strategies: str = STRATEGIES
    memory_bytes: int
    """Of each device."""
    allowance_bytes: int


def recommend(question: Question, wish: Wish, *, told: Told = lambda _: None) -> Advice:
    """The quickest way that fits, over strategies, caps of buckets and batches.

    Two batches are tried of each way: that of the profile, and one that nearly fills the memory, or
    ``FURTHEST`` times the profile's. Which cap is best is decided by time alone: buckets hold all
    gradients at any cap.

    Args:
        question: the profile, the network, and the errors to expect.
        wish: the rest.
        told: is told how far it is.

    Raises:
        BenchError: a strategy that nothing is known of.
    """
    ways = ways_of(wish.strategies)
    limit = wish.memory_bytes - wish.allowance_bytes
    if limit <= 0:
        raise BenchError("nothing is left of the devices' memory after the allowance")
    asked = question.profile.case.per_device_batch
    plain = [ask(question, way, wish.places) for way in ways]
    known = next((n for n, one in enumerate(plain) if _obstacle(one) is None), 0)
    larger = ask(at(question, 2 * asked), ways[known], wish.places)
    *memories, twice = _memories([*plain, larger])
    a_sample = _of_a_sample(memories[known], twice, asked)
    found: list[Candidate] = []
    ruled_out: list[Candidate] = []
    tried: list[tuple[Way, int]] = []
    for way, one, memory in zip(ways, plain, memories, strict=True):
        told(f"memory of {one.case.label}: {_words(memory)}")
        reason = memory.reason or _too_large(memory, limit)
        if reason is not None:
            ruled_out.append(_candidate(one, memory, reason))
        else:
            tried.append((way, asked))
        largest = _largest(memory, asked, a_sample, limit)
        if largest is not None and largest != asked:
            tried.append((way, largest))
    chosen = [_best_cap(question, way, wish.places, batch) for way, batch in tried]
    for one, memory in zip(chosen, _memories(chosen), strict=True):
        reason = memory.reason or _too_large(memory, limit)
        (found if reason is None else ruled_out).append(_candidate(one, memory, reason))
    found.sort(key=lambda one: -one.predicted.samples_per_s)
    flip = _flip(question, wish.places, found)
    return Advice(
        where=wish.where,
        network=question.network.name,
        basis=question.basis,
        memory_bytes=wish.memory_bytes,
        allowance_bytes=wish.allowance_bytes,
        asked_batch=asked,
        least_gain=LEAST_GAIN,
        eligible=found,
        ruled_out=ruled_out,
        flips_at_bytes_per_s=flip and flip[0],
        flips_to=flip and flip[1],
    )


def rounded(batch: int) -> int:
    """A batch that people use.

    >>> rounded(7), rounded(70)
    (7, 64)
    """
    return batch if batch < ROUND else batch // ROUND * ROUND


def _of_a_sample(once: PredictedMemory, twice: PredictedMemory, batch: int) -> float | None:
    """Bytes that a sample more needs, of activations: the same under all strategies, nearly."""
    if once.peak_bytes is None or twice.peak_bytes is None:
        return None
    return (twice.peak_bytes - once.peak_bytes) / batch


def _largest(memory: PredictedMemory, batch: int, a_sample: float | None, limit: int) -> int | None:
    """The batch at which a way is about to be full, or the largest that is trusted.

    Its own prediction will say whether it fits.

    None where nothing is known, or nothing fits.
    """
    if memory.peak_bytes is None or a_sample is None or a_sample <= 0:
        return None
    fits = int(batch + (FULL * limit - memory.peak_bytes) / a_sample)
    found = rounded(min(fits, FURTHEST * batch))
    return found if found >= LEAST_BATCH else None


def _memories(rows: Sequence[Predicted]) -> Iterator[PredictedMemory]:
    """Memory of each, in their order."""
    cases = [_on_accelerators(one.case) for one in rows]
    reasons = [_obstacle(one) for one in rows]
    answers = ask_memory(
        [
            MemoryQuestion(case=case)
            for case, reason in zip(cases, reasons, strict=True)
            if reason is None
        ]
    )
    for case, reason in zip(cases, reasons, strict=True):
        yield next(answers) if reason is None else PredictedMemory(case=case, reason=reason)


def _obstacle(one: Predicted) -> str | None:
    """Why its memory cannot be predicted."""
    return obstacle(_on_accelerators(one.case))


def _on_accelerators(case: Case) -> Case:
    return msgspec.structs.replace(case, device=ACCELERATOR)


def _too_large(memory: PredictedMemory, limit: int) -> str | None:
    if memory.peak_bytes is None or memory.peak_bytes <= limit:
        return None
    return f"does not fit: {memory.peak_bytes / GIB:.3g} GiB of tensors, {limit / GIB:.3g} GiB left"


def _words(memory: PredictedMemory) -> str:
    if memory.peak_bytes is None:
        return str(memory.reason)
    return f"{memory.peak_bytes / GIB:.3g} GiB of tensors"


def _candidate(one: Predicted, memory: PredictedMemory, reason: str | None) -> Candidate:
    return Candidate(
        predicted=one, peak_bytes=memory.peak_bytes, reason=reason, settings=_settings(one.case)
    )


def _settings(case: Case) -> int:
    """That differ from the defaults of the strategy."""
    own = msgspec.to_builtins(find_strategy(case.strategy).options())
    return sum(value != own.get(name) for name, value in case.options.items())


def _best_cap(question: Question, way: Way, places: Places, batch: int) -> Predicted:
    """Of DDP without a cap of its own, the best cap; anything else as it is."""
    other = at(question, batch)
    if way.strategy != "ddp" or way.options["bucket_cap_mb"] or way.options["bucket_cap_mb_list"]:
        return ask(other, way, places)
    found = [ask(other, _capped(way, cap), places) for cap in CAPS_MB]
    ranked = sorted(found, key=lambda one: -one.samples_per_s)
    best = best_of(
        [Candidate(predicted=one, settings=_settings(one.case)) for one in ranked], LEAST_GAIN
    )
    assert best is not None, "something was tried"
    return best.predicted


def _capped(way: Way, cap: int | None) -> Way:
    if cap is None:
        return way
    inside = way.label.partition("(")[2].rstrip(")")
    told = ", ".join(word for word in (inside, f"bucket_cap_mb={cap}") if word)
    return msgspec.structs.replace(
        way, options=way.options | {"bucket_cap_mb": cap}, label=f"ddp({told})"
    )


def at(question: Question, batch: int) -> Question:
    """The same question at another batch of each device."""
    profile = at_batch(question.profile, batch)
    if profile is question.profile:
        return question
    case = msgspec.structs.replace(profile.case, per_device_batch=batch, global_batch=batch)
    return msgspec.structs.replace(question, profile=msgspec.structs.replace(profile, case=case))


def _flip(
    question: Question, places: Places, eligible: Sequence[Candidate]
) -> tuple[float, str] | None:
    """(rate of the links that decide, what is best there), nearest to theirs; None for nowhere.

    Among what fits; each at its own batch.
    """
    rate = rate_of(question.network, places)
    if rate is None or not eligible:
        return None
    best = eligible[0].predicted.case.strategy
    for factor in FACTORS:
        network = faster(question.network, places, factor)
        other = msgspec.structs.replace(question, network=network)
        first = max(
            (_again(other, one.predicted, places) for one in eligible),
            key=lambda one: one.samples_per_s,
        )
        if first.case.strategy != best:
            return factor * rate, first.case.label
    return None


def _again(question: Question, one: Predicted, places: Places) -> Predicted:
    way = Way(strategy=one.case.strategy, options=one.case.options, label=one.case.label)
    return ask(at(question, one.case.per_device_batch), way, places)
