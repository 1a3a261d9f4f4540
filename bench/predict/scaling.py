"""One case predicted: a profile of one device, a network, and the strategy's schedule."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from scipy.stats import norm

from bench.errors import BenchError
from bench.plan.case import AccumulationSync, Case, Scaling, identify
from bench.predict.network import Network, Places, cost
from bench.predict.schedules import tasks_of
from bench.predict.timeline import Span, busy_s, exposed_s, length_s, simulate
from bench.records.profile import Gradient, Profile, Unit

MOST_RANKS = 2**20


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be predicted."""

    strategy: str
    options: dict[str, Any] = {}
    label: str | None = None
    """For people; None for the strategy's name."""
    places: Places
    scaling: Scaling = "weak"
    accumulation_steps: int = 1
    accumulation_sync: AccumulationSync = "last"
    backend: str = "nccl"


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of a case would be. Nothing of it was measured."""

    case: Case
    places: Places
    step_s: float
    single_step_s: float
    """Of one device without a wrapper, at its own batch."""
    samples_per_s: float
    speedup: float
    """Of throughput, over one device without a wrapper."""
    computation_s: float
    """Of the step, while something is computed."""
    communication_s: float
    """While something is communicated."""
    exposed_s: float
    """While nothing else is done."""
    no_overlap_s: float
    """What the simplest model says: computation, then all gradients at once."""
    full_overlap_s: float
    """What the next one says: forward + max(backward, communication) + optimizer."""
    spans: list[Span]

    @property
    def efficiency(self) -> float:
        """Speedup over devices."""
        return self.speedup / self.places.ranks

    def efficiency_of(self, step_s: float) -> float:
        """What another length of the step would make of it."""
        return self.efficiency * self.step_s / step_s


def predict(profile: Profile, network: Network, wanted: Wanted) -> Prediction:
    """A step of one rank.

    Args:
        profile: of one device.
        network: that carries the collectives.
        wanted: the case.

    Raises:
        BenchError: it has no model, or the batch cannot be shared out.
    """
    case = case_of(profile, wanted)
    ranks = wanted.places.ranks
    own = at_batch(profile, case.per_device_batch)
    slowed = stretched(own, 1 + own.step_variation * largest_of(ranks))
    spans = simulate(tasks_of(slowed, case, network, wanted.places), profile.contention)
    step_s = length_s(spans)
    samples_per_s = case.global_batch / step_s
    alone = profile.case.per_device_batch / profile.step_s
    naive = _naive(own, case, network, wanted.places)
    return Prediction(
        case=case,
        places=wanted.places,
        step_s=step_s,
        single_step_s=profile.step_s,
        samples_per_s=samples_per_s,
        speedup=samples_per_s / alone,
        computation_s=busy_s(spans, "computation"),
        communication_s=busy_s(spans, "communication"),
        exposed_s=exposed_s(spans),
        no_overlap_s=naive[0],
        full_overlap_s=naive[1],
        spans=spans,
    )


def _naive(profile: Profile, case: Case, network: Network, places: Places) -> tuple[float, float]:
    """The two models of one line, for whatever strategy: all gradients in one all-reduce."""
    steps = case.accumulation_steps
    communicated = cost(network, "all_reduce", profile.gradient_bytes, places).alone_s
    before = steps * (profile.data_s + profile.forward_s + profile.backward_s)
    whole = before + profile.optimizer_s
    hidden = max(profile.backward_s, communicated) - profile.backward_s
    return whole + communicated, whole + hidden


def case_of(profile: Profile, wanted: Wanted) -> Case:
    """The case that is predicted, with an identity of its own.

    Raises:
        BenchError: the global batch cannot be shared out among so many devices.
    """
    base, ranks = profile.case, wanted.places.ranks
    if not 1 <= ranks <= MOST_RANKS:
        raise BenchError(f"predictions go up to {MOST_RANKS:,} ranks, not {ranks:,}")
    per_device = base.per_device_batch
    if wanted.scaling == "strong":
        shares = ranks * wanted.accumulation_steps
        if per_device % shares:
            raise BenchError(
                f"strong scaling: a batch of {per_device} cannot be shared out among {ranks} ranks"
                f" in {wanted.accumulation_steps} micro-steps"
            )
        per_device //= shares
    return identify(
        msgspec.structs.replace(
            base,
            strategy=wanted.strategy,
            options=wanted.options,
            label=wanted.label or wanted.strategy,
            backend=None if wanted.strategy == "single" else wanted.backend,
            world_size=ranks,
            nodes=wanted.places.hosts,
            per_device_batch=per_device,
            global_batch=per_device * ranks * wanted.accumulation_steps,
            scaling=wanted.scaling,
            accumulation_steps=wanted.accumulation_steps,
            accumulation_sync=wanted.accumulation_sync,
            id="",
        )
    )


def at_batch(profile: Profile, per_device_batch: int) -> Profile:
    """The profile at another batch: what is computed grows with it, and the rest stays.

    Straight through the one batch that was measured, so that it errs where kernels are small.
    """
    ratio = per_device_batch / profile.case.per_device_batch
    if ratio == 1:
        return profile
    backward_s = profile.fixed_backward_s + ratio * (profile.backward_s - profile.fixed_backward_s)
    share = backward_s / profile.backward_s if profile.backward_s > 0 else 1.0
    return msgspec.structs.replace(
        _scaled(profile, ratio, share),
        data_s=ratio * profile.data_s,
        input_bytes=round(ratio * profile.input_bytes),
        output_bytes=round(ratio * profile.output_bytes),
    )


def stretched(profile: Profile, factor: float) -> Profile:
    """The profile of a device that computes so much slower."""
    if factor == 1:
        return profile
    slower = _scaled(profile, factor, factor)
    return msgspec.structs.replace(
        slower, data_s=factor * slower.data_s, optimizer_s=factor * slower.optimizer_s
    )


def _scaled(profile: Profile, forward: float, backward: float) -> Profile:
    return msgspec.structs.replace(
        profile,
        forward_s=forward * profile.forward_s,
        backward_s=backward * profile.backward_s,
        gradients=[
            Gradient(name=one.name, bytes=one.bytes, ready_s=backward * one.ready_s)
            for one in profile.gradients
        ],
        units=[
            Unit(
                bytes=one.bytes,
                forward_s=forward * one.forward_s,
                backward_s=backward * one.backward_s,
            )
            for one in profile.units
        ],
    )


def largest_of(ranks: int) -> float:
    """By how many standard deviations the slowest of some ranks is expected to be off.

    Blom's approximation for normal values: "Statistical Estimates and Transformed Beta-Variables",
    1958. All ranks wait for the slowest of them in every step.

    >>> round(largest_of(1), 2), round(largest_of(2), 2), round(largest_of(8), 2)
    (0.0, 0.59, 1.43)
    """
    return float(norm.ppf((ranks - 0.375) / (ranks + 0.25))) if ranks > 1 else 0.0


def time_split(prediction: Prediction) -> dict[Literal["computed", "both", "exposed"], float]:
    """Seconds of the step in which only computation, both, or only communication goes on."""
    both = prediction.communication_s - prediction.exposed_s
    return {
        "computed": prediction.computation_s - both,
        "both": both,
        "exposed": prediction.exposed_s,
    }
