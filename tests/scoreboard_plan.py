"""What the study of predictions measures: fixed here before anything of it is measured.

Two emulated hosts, one rank on each. A part is what one command measures and keeps: a profile, the
collectives over one link, or the cells of one model over one link, whose launches take turns.

**Which cells are used for a fit.** The scoreboard is made twice. Once nothing is fitted at all:
what overlap costs was measured with each profile. Once two numbers of each model are fitted to the
cells over ``FIT_ON``, which count in neither: no cell over one of ``LINKS`` is used for a fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from bench.plan.suite import Suite, parse_suite
from bench.predict.catalogue import gigabits

LINKS = ("300mbit", "500mbit", "1gbit", "2gbit")
FIT_ON = "700mbit"
SETTLE_STEPS = 2
"""Before the window: DDP rebuilds its buckets after the first."""
PLAIN: Sequence[Mapping[str, Any]] = (
    {},
    {"bucket_cap_mb": 1},
    {"bucket_cap_mb": 5},
    {"bucket_cap_mb": 25},
    {"bucket_cap_mb": 100},
)
"""Caps of buckets, torch's own rule first."""
HALVES: Sequence[Mapping[str, Any]] = ({"comm_hook": "fp16"}, {"comm_hook": "bf16"})
WITH_CAP: Sequence[Mapping[str, Any]] = ({"comm_hook": "fp16", "bucket_cap_mb": 5},)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
DTYPES = ("fp32", "fp16", "bf16")
SIZES = ("1KiB", "16KiB", "256KiB", "1MiB", "2MiB", "8MiB")
"""Beyond the last one, what a byte takes there is what it takes."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with its sizes, and what the estimate of the study's length takes for granted."""

    name: str
    options: dict[str, Any]
    """Its preset among them."""
    per_device_batch: int
    steps: int
    """Of each launch's window."""
    gradient_bytes: float
    computed_s: float
    """Of a step on one core, about: the published runs of this machine's ``network-sweep`` and
    ``quick``, in proportion to parameters and samples. Only the estimate is made from it."""


TRANSFORMER = Model(
    name="transformer",
    options={"preset": "cpu", "layers": 6, "heads": 5, "width": 320},
    per_device_batch=4,
    steps=10,
    gradient_bytes=40.2e6,
    computed_s=0.45,
)
RESNET = Model(
    name="resnet152",
    options={"preset": "cpu"},
    per_device_batch=8,
    steps=6,
    gradient_bytes=240.8e6,
    computed_s=0.85,
)
SMALL = Model(
    name="transformer",
    options={"preset": "tiny"},
    per_device_batch=4,
    steps=10,
    gradient_bytes=0.5e6,
    computed_s=0.01,
)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured and kept as a whole."""

    kind: Literal["profile", "link", "cells"]
    model: Model | None = None
    """None for a link."""
    link: str | None = None
    """None for a profile."""
    group: str = ""
    """Of cells: which of the model's over the link; of a profile, when it is measured."""
    strategies: tuple[Any, ...] = ()
    """As a suite names them."""
    launches: int = 5

    @property
    def name(self) -> str:
        """As it is asked for, and as its folder is called."""
        model = None if self.model is None else self.model.name
        return "-".join(word for word in (self.kind, model, self.link, self.group) if word)


def ddp(*settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """DDP with each of some settings."""
    return tuple({"ddp": dict(one)} if one else "ddp" for one in settings)


def full_study() -> Iterator[Part]:
    """All parts, in the order in which they are measured.

    Each model is profiled before, amid and after its cells: of its profiles that with the median
    step is used, so that neither one odd launch nor a drift of the machine is in all predictions.
    """
    yield from _profiles("before")
    yield from (Part(kind="link", link=link) for link in (*LINKS, FIT_ON))
    caps, halves = ddp(*PLAIN), ddp(*HALVES)
    bf16 = ddp({"comm_hook": "bf16"})  # gradients of ResNet-152 are too large for fp16
    rest = (*halves, *ddp(*WITH_CAP))
    # FSDP over the slowest link, and ResNet-152 over both slow ones, take minutes a cell, and are
    # communication alone.
    yield _cells(TRANSFORMER, "300mbit", "caps", caps)
    yield _cells(TRANSFORMER, "300mbit", "rest", rest)
    for link in LINKS[1:]:
        yield _cells(TRANSFORMER, link, "all", (*caps, *rest, "fsdp"))
    yield from _profiles("amid")
    yield _cells(RESNET, "1gbit", "caps", caps)
    yield _cells(RESNET, "1gbit", "hooks", bf16)
    yield _cells(RESNET, "2gbit", "caps", caps)
    yield _cells(RESNET, "2gbit", "rest", (*bf16, "fsdp"))
    yield _cells(TRANSFORMER, FIT_ON, "fit", ddp(*PLAIN[:3]))
    yield _cells(RESNET, FIT_ON, "fit", ddp(PLAIN[0], PLAIN[3]))
    yield from _profiles("after")


def _profiles(when: str) -> Iterator[Part]:
    yield from (Part(kind="profile", model=model, group=when) for model in (TRANSFORMER, RESNET))


def small_study() -> Iterator[Part]:
    """The whole path in a few minutes: what it measures says nothing, and is not published."""
    yield Part(kind="profile", model=SMALL)
    yield Part(kind="link", link="1gbit")
    yield msgspec.structs.replace(
        _cells(SMALL, "1gbit", "caps", ddp({}, {"bucket_cap_mb": 1})), launches=2
    )


def _cells(model: Model, link: str, group: str, strategies: tuple[Any, ...]) -> Part:
    return Part(kind="cells", model=model, link=link, group=group, strategies=strategies)


def suite_of(part: Part) -> Suite:
    """The suite that measures a part's cells."""
    return parse_suite(text_of(part), source=part.name)


def text_of(part: Part) -> str:
    """That suite's file."""
    assert part.model is not None, "cells are of a model"
    document = {
        "name": f"prediction-study-{part.name}",
        "description": "Steps that predictions are scored with.",
        "defaults": {
            "device": "cpu",
            "launches": part.launches,
            "warmup_steps": SETTLE_STEPS,
            "breakdown": False,
            # Exactly so many: no time is granted beyond them.
            "window": {"min_steps": part.model.steps, "max_s": 0.001, "target_interval": 0.001},
            "per_device_batch": part.model.per_device_batch,
        },
        "matrix": [
            {
                "workloads": [{part.model.name: part.model.options}],
                "strategies": list(part.strategies),
                "world_sizes": [2],
                "nodes": 2,
                "link": part.link,
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


PROFILE_S, PROFILE_STEPS = 30.0, 60
"""Of a profile: its start and windows, and the steps that are fewer than a window has."""
START_S = 15.0
"""Of a laboratory: its links measured, torch imported on each host."""
ROUND_S = 4.0
"""Of the fork server that each round of launches has of its own."""
LAUNCH_S = 1.5
CALLS = 25
"""Of each point, alone and in rows together."""
PROOF_S, PROOF_SENDS, PROOF_STEPS = 2.0, 12, 10
"""Of a proof in fp64 with its reference: fixed, times the gradients, times a step's computation."""
GATHERS = 2.7
"""Times an all-reduce that FSDP's collectives take over gloo."""


def estimate_s(part: Part) -> float:
    """About how long a part takes on two idle cores. No figure of the scoreboard rests on it."""
    if part.kind == "profile":
        assert part.model is not None
        return PROFILE_S + PROFILE_STEPS * part.model.computed_s
    assert part.link is not None
    rate = gigabits(part.link)
    if part.kind == "link":
        sizes = sum(_bytes(size) for size in SIZES)
        return START_S + CALLS * len(DTYPES) * len(OPERATIONS) * sizes / rate
    found = START_S + part.launches * ROUND_S
    for strategy in part.strategies:
        found += _proof_s(part) + part.launches * _launch_s(part, strategy)
    return found


def is_decided(part: Part, strategy: Any) -> bool:
    """Whether a cell's communication takes less than twice its computation, by the estimate."""
    assert part.model is not None
    return _sent_s(part, strategy) < 2 * part.model.computed_s


def _sent_s(part: Part, strategy: Any) -> float:
    """Seconds of a step's all-reduce, or of FSDP's collectives."""
    assert part.model is not None
    assert part.link is not None
    whole_s = part.model.gradient_bytes / gigabits(part.link)
    if strategy == "fsdp":
        return GATHERS * whole_s
    is_half = not isinstance(strategy, str) and "comm_hook" in strategy["ddp"]
    return whole_s / 2 if is_half else whole_s


def _launch_s(part: Part, strategy: Any) -> float:
    assert part.model is not None
    assert part.link is not None
    computed_s, sent_s = part.model.computed_s, _sent_s(part, strategy)
    step_s = computed_s + sent_s
    if strategy != "fsdp":
        step_s = computed_s / 3 + max(2 * computed_s / 3, sent_s)
    set_up_s = part.model.gradient_bytes / gigabits(part.link)  # parameters are sent to all
    return LAUNCH_S + set_up_s + (1 + SETTLE_STEPS + part.model.steps) * step_s


def _proof_s(part: Part) -> float:
    assert part.model is not None
    assert part.link is not None
    sent_s = part.model.gradient_bytes / gigabits(part.link)
    return PROOF_S + PROOF_SENDS * sent_s + PROOF_STEPS * part.model.computed_s


def _bytes(size: str) -> int:
    return int(size[:-3]) * {"KiB": 2**10, "MiB": 2**20}[size[-3:]]


def in_words(parts: Sequence[Part]) -> str:
    """Each part with its estimate, and the whole."""
    lines = [f"{part.name:32} about {estimate_s(part) / 60:4.1f} min" for part in parts]
    whole = sum(map(estimate_s, parts)) / 60
    return "\n".join([*lines, f"{len(parts)} parts, about {whole:.0f} min on two idle cores"])
