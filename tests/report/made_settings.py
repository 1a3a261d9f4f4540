"""Made-up records of settings: variants of several strategies, and a ladder."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.plan.case import Case, identify
from bench.records.record import CollectiveCost, Communication, Memory, Parity, Record
from tests.analyze.test_scaling import launches, parity
from tests.fakes import make_case

DDP: dict[str, Any] = {
    "bucket_cap_mb": None,
    "static_graph": False,
    "comm_hook": None,
    "broadcast_buffers": True,
}
FSDP: dict[str, Any] = {"reshard_after_forward": True}
LOSSY = Parity(
    verdict="lossy_by_design",
    error=0.0,
    gradient_deviation=0.0017,
    loss_deviation=4.1e-5,
    parameter_deviation=0.25,
)
MODEL_BYTES = 12_000_000


def variant(strategy: str = "ddp", world_size: int = 2, **changes: Any) -> Case:
    """A case; what is an option of the strategy becomes one."""
    defaults: dict[str, Any] = {"ddp": DDP, "fsdp": FSDP}.get(strategy, {})
    own = {name: value for name, value in changes.items() if name in defaults}
    fields = {name: value for name, value in changes.items() if name not in defaults}
    label = ", ".join(f"{name}={value}".lower() for name, value in own.items())
    return make_case(
        **{"strategy": strategy, "world_size": world_size, "options": defaults | own}
        | {"label": f"{strategy}({label})" if label else strategy}
        | {"global_batch": 4 * world_size * fields.get("accumulation_steps", 1)}
        | fields
    )


def measured(case: Case, rate: float, *, buckets: list[int] | None = None) -> list[Record]:
    """Five launches a percent apart, its communication, and its proof."""
    noise = random.Random(case.id)
    sizes = [MODEL_BYTES // 3] * 3 if buckets is None else buckets
    size = sum(sizes)
    figures = [rate * (1 + noise.gauss(0, 0.01)) for _ in range(5)]
    peak = int(2**28 * (0.9 if case.options.get("static_graph") else 1.0))
    lossy = case.options.get("comm_hook") is not None
    return [
        *launches(
            case,
            *figures,
            memory=Memory(
                peak_allocated_bytes=[peak] * case.world_size,
                peak_reserved_bytes=[None] * case.world_size,
                peak_driver_bytes=[None] * case.world_size,
                peak_process_bytes=[None] * case.world_size,
            ),
            communication=Communication(
                bucket_bytes=sizes,
                collectives=[
                    CollectiveCost(
                        op="all_reduce",
                        calls=len(sizes),
                        payload_bytes=size,
                        wire_bytes_minimum=size,
                        busy_s=0.01,
                    )
                ],
                busy_s=0.01,
                exposed_s=0.004,
                sync_pairs_s=[(0.05 + 0.001 * n, 0.04) for n in range(8)],
            )
            if case.world_size > 1
            else None,
        ),
        parity(case, LOSSY if lossy else Parity(verdict="exact", error=0.0)),
    ]


SINGLE = variant("single", 1)
PLAIN_DDP = variant()
SETTINGS = [
    (PLAIN_DDP, 180.0),
    (variant(bucket_cap_mb=1), 170.0),
    (variant(bucket_cap_mb=100), 181.0),
    (variant(static_graph=True), 179.0),
    (variant(broadcast_buffers=False), 186.0),
    (variant(comm_hook="bf16"), 240.0),
    (variant(comm_hook="powersgd", bucket_cap_mb=25.5, static_graph=True), 150.0),
    (variant(precision="bf16-amp"), 90.0),
    (variant(accumulation_steps=4), 260.0),
    (variant(env={"GLOO_SOCKET_IFNAME": "lo"}), 181.0),
    (variant("fsdp"), 60.0),
    (variant("fsdp", reshard_after_forward=False), 75.0),
]
LADDER = (
    PLAIN_DDP,
    variant(precision="bf16-amp"),
    variant(precision="bf16-amp", compile="default"),
    variant(precision="bf16-amp", compile="default", accumulation_steps=4),
    variant(precision="bf16-amp", compile="default", accumulation_steps=4, bucket_cap_mb=100),
)
LADDER_RATES = (180.0, 90.0, 130.0, 210.0, 211.0)


def settings_rows() -> list[Row]:
    """Twelve settings of two strategies on two devices, and the baseline."""
    twin = identify(msgspec.structs.replace(PLAIN_DDP, twin=True, id=""))
    records = [*measured(SINGLE, 100.0), *measured(twin, 181.0)]
    records += [one for case, rate in SETTINGS for one in measured(case, rate)]
    return rows_of([], records)


def ladder_rows() -> list[Row]:
    """The published ladder's rungs, but for data loading."""
    records = [*measured(SINGLE, 100.0)]
    for case, rate in zip(LADDER, LADDER_RATES, strict=True):
        records += measured(case, rate)
    below = {upper.id: lower.id for lower, upper in itertools.pairwise(LADDER)}
    return rows_of([], records, rungs=below)
