from __future__ import annotations

from typing import Any

import pytest

from bench.analyze.loading import flags_of_loading, loading_share
from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.analyze.settings import plain_of
from bench.plan.case import Case
from bench.records.record import Phases
from tests.analyze.test_scaling import launches
from tests.fakes import make_case

HOST = {"data": "host", "data_options": {"workers": 0}, "data_label": "host"}


def pair(**changes: Any) -> Case:
    return make_case(strategy="ddp", world_size=2, **changes)


def phases(data_s: float) -> Phases:
    return Phases(data_s=data_s, forward_s=0.01, backward_s=0.01, optimizer_s=0.0)


def row(data_s: float, **changes: Any) -> Row:
    """Of 80 samples a second, eight a step: a step of 100 ms."""
    (found,) = rows_of([], launches(pair(**changes), 80, 80, 80, phases=phases(data_s)))
    return found


def test_a_quarter_of_a_step_waits_for_data() -> None:
    assert loading_share(row(0.025, **HOST)) == pytest.approx(0.25)
    assert loading_share(row(0.025)) is None, "made on the device beforehand"


@pytest.mark.parametrize(("data_s", "flags"), [(0.009, []), (0.011, ["loader_binds"])])
def test_a_tenth_of_the_step_binds(data_s: float, flags: list[str]) -> None:
    found = row(data_s, **HOST)
    assert flags_of_loading(found) == flags
    assert ("loader_binds" in found.flags) == bool(flags)


def test_unlike_data_are_compared_as_a_setting_alone() -> None:
    single = make_case()
    records = [
        *launches(single, 99, 100, 101),
        *launches(pair(), 179, 180, 181),
        *launches(pair(**HOST), 139, 140, 141),
    ]
    _, device, host = rows_of([], records)
    assert device.speedup.ratio is not None
    assert host.speedup.reason is not None
    assert "data" in host.speedup.reason
    assert plain_of([device, host]) is device
    assert [(one.name, one.value) for one in host.settings] == [("data_label", "host")]
    assert host.setting.verdict == "slower"


def test_ones_own_data_stand_beside_batches_of_the_device() -> None:
    own = {
        "data": "tokens",
        "data_options": {"path": "text.bin"},
        "data_label": "tokens(path=text.bin)",
        "sources": {"text.bin": "digest", "net.py": "other"},
    }
    _, host = rows_of(
        [],
        [
            *launches(pair(sources={"net.py": "other"}), 180, 180, 180),
            *launches(pair(**own), 90, 90, 90),
        ],
    )
    assert host.setting.ratio is not None
    assert host.setting.ratio.value == pytest.approx(0.5, rel=1e-3)
