"""What tables, charts and the page say of hosts and the links between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analyze.scaling import rows_of
from bench.plan.case import Case, identify
from bench.records.record import CollectiveCost, Communication, Record
from bench.report.charts import write_charts
from bench.report.index import where
from bench.report.links import link_figure
from bench.report.network import network_section
from bench.report.notes import variants
from bench.report.page import markdown
from bench.report.summary import machine_lines
from bench.report.tables import tables_of
from tests.analyze.test_scaling import SINGLE, launches, timing
from tests.fakes import make_case
from tests.report.test_page import make_info


def across(**changes: Any) -> Case:
    case = make_case(strategy="ddp", world_size=2)
    return identify(msgspec.structs.replace(case, id="", **{"nodes": 2} | changes))


WITHIN = across(nodes=1)
LINKS = [across(link=link) for link in ("1gbit", "300mbit", "10gbit")]
ENVIRONMENT = {
    "hosts": [{"name": "h0", "cpu": "a CPU", "cores": [0]}, {"name": "h1", "cores": [1, 2]}],
    "network": {
        "kind": "emulated",
        "links": [
            {
                "link": {"rate": "1gbit", "latency_ms": None},
                "one_way_bytes_per_s": 119e6,
                "both_ways_bytes_per_s": 118e6,
                "round_trip_s": 5e-5,
            }
        ],
    },
}


def records() -> list[Record]:
    found = [*launches(SINGLE, 99, 100, 101), *launches(WITHIN, 179, 180, 181)]
    for case, rate in zip(LINKS, (100, 50, 150), strict=True):
        found += launches(case, rate - 1, rate, rate + 1)
    return found


def test_rows_stand_by_hosts_and_the_speed_of_their_links() -> None:
    (table,) = tables_of(rows_of([], records()))
    assert "links of 300mbit / 1gbit / 10gbit between emulated hosts" in table.rule
    names = variants(table.rows)
    devices, hosts, strategy = table.columns[:3]
    assert [column.heading for column in (devices, hosts, strategy)] == [
        "devices",
        "hosts",
        "strategy",
    ]
    assert [(hosts.cell(row), names(row.case)) for row in table.rows] == [
        ("1", "single"),
        ("1", "ddp, 1 host"),
        ("2", "ddp, 300mbit, 2 hosts"),
        ("2", "ddp, 1gbit, 2 hosts"),
        ("2", "ddp, 10gbit, 2 hosts"),
    ]


def test_a_terminal_has_no_room_for_a_column_of_hosts() -> None:
    (table,) = tables_of(rows_of([], records()), compact=True)
    assert [table.columns[0].cell(row) for row in table.rows] == [
        "1",
        "2",
        *["2 on 2"] * 3,
    ]


def test_a_run_on_one_host_says_nothing_of_hosts() -> None:
    (table,) = tables_of(rows_of([], launches(WITHIN, 99, 100, 101)))
    assert "hosts" not in [column.heading for column in table.columns]
    assert variants(table.rows)(WITHIN) == "ddp"
    assert network_section(make_info().environment) == []


def test_what_goes_over_other_links_is_no_peer() -> None:
    fsdp = identify(
        msgspec.structs.replace(LINKS[0], strategy="fsdp", label="fsdp", options={}, id="")
    )
    rows = rows_of([], [*records(), *launches(fsdp, 199, 200, 201)])
    (row,) = [one for one in rows if one.case.id == fsdp.id]
    assert row.peer.against == LINKS[0].id
    assert row.speedup.against == SINGLE.id, "one device has no link"
    elsewhere = msgspec.structs.replace(fsdp, link="2gbit", id="")
    rows = rows_of([], [*records(), *launches(identify(elsewhere), 199, 200, 201)])
    (row,) = [one for one in rows if one.case.link == "2gbit"]
    assert "with another" in str(row.peer.reason)


def test_bytes_that_outrun_their_link_are_flagged() -> None:
    def found(wire_bytes: int) -> list[str]:
        cost = CollectiveCost(
            op="all_reduce", calls=1, payload_bytes=wire_bytes, wire_bytes_minimum=wire_bytes,
            busy_s=1.0,
        )  # fmt: skip
        communication = Communication(collectives=[cost], busy_s=1.0)
        record = timing(LINKS[0], 100)
        passed = msgspec.structs.replace(
            record, pass_="communication", communication=communication, timing=None,
            throughput=None,
        )  # fmt: skip
        return rows_of([], [record, passed])[0].flags

    assert "over_link_rate" not in found(120_000_000)  # of 125 MB a second
    assert "over_link_rate" in found(140_000_000)


def test_a_line_a_strategy_against_the_speed_of_links(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    unlimited = across()
    rows = rows_of([], [*records(), *launches(unlimited, 160, 161, 162)])
    (charts,) = write_charts(tables_of(rows), tmp_path)
    (chart,) = [one for one in charts if one.svg.stem.endswith("-link")]
    text = chart.svg.read_text()
    for word in ("300 Mbit/s", "1 Gbit/s", "10 Gbit/s", "no limit", "2 devices on 2 hosts"):
        assert f"<!-- {word}" in text or word in text
    (charts,) = write_charts(tables_of(rows_of([], launches(LINKS[0], 1, 2, 3))), tmp_path)
    assert not [one for one in charts if one.svg.stem.endswith("-link")], "one speed is no line"


def test_lines_stand_beside_each_other_where_links_are_alike() -> None:
    others = [msgspec.structs.replace(case, strategy="fsdp", label="fsdp") for case in LINKS]
    further = [one for case in others for one in launches(identify(case), 99, 100, 101)]
    figure = link_figure(rows_of([], [*records(), *further]))
    lines = [box.lines[0] for box in figure.axes[0].containers]
    first, second = ([float(x) for x in line.get_xdata()] for line in lines)
    assert len(first) == len(second) == 3
    for one, other, rate in zip(first, second, (3e8, 1e9, 1e10), strict=True):
        assert one < rate < other < 1.3 * one


@pytest.mark.parametrize(
    ("hosts", "kind", "words"),
    [
        ([[0], [1]], "emulated", "2 cores"),
        ([[0], [0]], "emulated", "1 core"),  # one machine: the same one
        ([[0, 1], [0, 1]], "ethernet", "4 cores"),
        ([], "", "1 core"),
    ],
)
def test_cores_are_those_of_all_hosts(hosts: list[list[int]], kind: str, words: str) -> None:
    info = make_info()
    info.environment |= {
        "cores": [0],
        "cpu": "a CPU",
        "hosts": [{"name": f"h{number}", "cores": cores} for number, cores in enumerate(hosts)],
        "network": {"kind": kind},
    }
    assert where(info).startswith(f"{words} of a CPU, torch")
    assert machine_lines(info)[0].startswith(f"CPU: a CPU, {words} used, ")


def test_the_page_says_what_emulating_distorts() -> None:
    info = make_info()
    info.environment |= ENVIRONMENT
    text = markdown(info, [], tables_of(rows_of([], records())))
    assert "- h0: 1 core of a CPU" in text
    assert "What that distorts: the" in text
    (line,) = [line for line in text.splitlines() if "1gbit" in line and "952" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["1gbit", "952", "944", "0.05"]


@pytest.mark.parametrize(
    "environment",
    [{"hosts": 1, "network": []}, {"hosts": [None], "network": {"links": [{"link": 1}]}}],
)
def test_what_another_version_wrote_breaks_no_report(environment: dict[str, Any]) -> None:
    assert isinstance(network_section(environment), list)
