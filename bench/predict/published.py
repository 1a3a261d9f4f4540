"""Published tables predicted, each row from its table's own figure of one device.

No throughput of a row is fitted; links of one table are from that table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bench.plan.case import Scaling
from bench.predict.catalogue import Table, catalogue, network_of, published
from bench.predict.network import Places
from bench.predict.published_profile import Single, profile_of
from bench.predict.scaling import Prediction, Wanted, predict


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A published row on several devices, and what is predicted of it."""

    table: str
    row: str
    strategy: str
    scaling: Scaling
    measured: float
    """Efficiency: throughput over that of as many single devices."""
    prediction: Prediction
    bound_by_loader: bool = False
    """The row's own source says so: then this is what communication alone would give."""

    @property
    def predicted(self) -> float:
        """Efficiency."""
        return self.prediction.efficiency

    @property
    def no_overlap(self) -> float:
        """Efficiency by the model that hides nothing."""
        return self.prediction.efficiency_of(self.prediction.no_overlap_s)

    @property
    def full_overlap(self) -> float:
        """Efficiency by the model that hides all that it can."""
        return self.prediction.efficiency_of(self.prediction.full_overlap_s)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a published table, whatever the table looks like."""

    name: str
    single: Single
    link: str
    efficiencies: list[tuple[int, float, dict[str, Any]]]
    """(devices, efficiency, options of its own)."""


def points() -> list[Point]:
    """All published rows that there is a model of, predicted."""
    known = catalogue()
    found: list[Point] = []
    for table in known.tables:
        source = published()[table.id]
        scaling: Scaling = "strong" if source.get("scaling") == "strong" else "weak"
        for row in _rows(table, source):
            profile = profile_of(row.single, known)
            found += [
                Point(
                    table=table.id,
                    row=row.name,
                    strategy=table.strategy,
                    scaling=scaling,
                    measured=efficiency,
                    prediction=predict(
                        profile,
                        network_of(row.link, table.between),
                        Wanted(
                            strategy=table.strategy,
                            options={**table.options, **options},
                            places=_places(table, devices),
                            scaling=scaling,
                        ),
                    ),
                    bound_by_loader=row.name in table.bound_by_loader,
                )
                for devices, efficiency, options in row.efficiencies
            ]
    return found


def _places(table: Table, devices: int) -> Places:
    per_host = min(devices, table.per_host or devices)
    return Places(hosts=devices // per_host, per_host=per_host)


def _rows(table: Table, source: Mapping[str, Any]) -> Iterator[_Row]:
    if "step_ms_by_bucket_cap_mb" in source:
        yield _sweep(table, source)
        return
    for row in source.get("rows", [source]):
        throughput = _throughput(row)
        hardware = table.by_hardware.get(str(row.get("hardware")))
        batch = table.per_device_batch or _batch(source, row)
        if hardware is not None:
            batch = hardware.per_device_batch
            if str(row.get("precision")) == "fp32":
                batch //= 2  # the README's: what fits
        assert batch is not None, f"{table.id} says how large a batch is"
        device = hardware.device if hardware else table.device
        link = hardware.link if hardware else table.link
        assert device is not None, f"{table.id} says where it was measured"
        assert link is not None, f"{table.id} says over which links"
        one = throughput.pop(1)
        precision = row.get("precision", source.get("precision", "fp32"))
        units = table.units_per_sample
        yield _Row(
            name=_name(row, precision),
            single=Single(
                model=str(
                    row["workload"] if "workload" in row and table.model is None else table.model
                ),
                device=device,
                optimizer=table.optimizer,
                step_s=batch * units / one,
                per_device_batch=batch,
                precision=precision,
            ),
            link=link,
            efficiencies=[(n, rate / (n * one), {}) for n, rate in throughput.items()],
        )


def _throughput(row: Mapping[str, Any]) -> dict[int, float]:
    """Of all devices together, by their number; of one, without a wrapper."""
    if "no_ddp" in row:
        return {1: row["no_ddp"]} | {n: n * rate for n, rate in row["ddp"].items() if n > 1}
    return dict(row["throughput"])


def _batch(source: Mapping[str, Any], row: Mapping[str, Any]) -> int | None:
    found = row.get("per_device_batch", source.get("per_device_batch", source.get("global_batch")))
    return None if found is None else int(found)


def _name(row: Mapping[str, Any], precision: str) -> str:
    for key in ("loader", "hardware"):
        if key in row and "rows" not in row:
            words = [str(row[key])]
            return ", ".join([*words, precision]) if key == "hardware" else words[0]
    return str(row.get("workload", precision)) if "ddp" in row else precision


def _sweep(table: Table, source: Mapping[str, Any]) -> _Row:
    """A step's parts on one device, and the step on several by the cap of buckets."""
    parts = source["step_ms_single"]
    assert table.model is not None, table.id
    assert table.device is not None, table.id
    assert table.link is not None, table.id
    assert table.per_device_batch is not None, table.id
    assert table.devices is not None, table.id
    whole = parts["total"]
    return _Row(
        name="bucket cap",
        single=Single(
            model=table.model,
            device=table.device,
            optimizer=table.optimizer,
            step_s=whole / 1e3,
            per_device_batch=table.per_device_batch,
            precision=source["precision"],
            forward_s=parts["forward"] / 1e3,
            backward_s=parts["backward"] / 1e3,
            optimizer_s=parts["optimizer"] / 1e3,
        ),
        link=table.link,
        efficiencies=[
            (table.devices, whole / step, {"bucket_cap_mb": cap})
            for cap, step in source["step_ms_by_bucket_cap_mb"].items()
        ],
    )
