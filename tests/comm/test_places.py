from __future__ import annotations

import msgspec

from bench.comm.sweep import Sweep, plan
from bench.records.collectives import Collective, Pair, Pairs
from bench.report.bandwidth import line_of
from bench.report.document import Grid, Heading, Items
from bench.report.pairs import pairs_section, words_of
from tests.comm.test_sweep import ROOMY

SMALL = Sweep(operations=["all_reduce"], dtypes=["fp32"], sizes=[1024], backends=["gloo"])


def places(sweep: Sweep, **machine: object) -> list[tuple[int, int, str | None]]:
    planned = plan(sweep, msgspec.structs.replace(ROOMY, **machine))
    assert all(one.skip_reason is None for one in planned)
    return [(one.group.world_size, one.group.nodes, one.group.link) for one in planned]


def test_within_a_host_and_over_all_of_them() -> None:
    assert places(SMALL) == [(1, 1, None), (2, 1, None)]
    assert places(SMALL, hosts=3) == [(1, 1, None), (2, 1, None), (6, 3, None)]
    assert places(SMALL, hosts=2) == [(1, 1, None), (2, 1, None), (2, 2, None), (4, 2, None)]


def test_links_are_an_axis_of_what_goes_over_them() -> None:
    sweep = msgspec.structs.replace(SMALL, links=["300mbit", "1gbit"], world_sizes=[2])
    found = places(sweep, hosts=2, emulated=True)
    assert found == [(2, 1, None), (2, 2, "300mbit"), (2, 2, "1gbit")]


def pairs(**rates: float) -> Pairs:
    return Pairs(
        backend="gloo",
        hosts=["a", "a", "b", "b"],
        pairs=[
            Pair(
                source=source,
                target=target,
                bytes_per_s=1e9 if source // 2 == target // 2 else rates.get("between", 1e8),
                round_trip_s=1e-5 if source // 2 == target // 2 else 2e-4,
            )
            for source in range(4)
            for target in range(4)
            if source != target
        ],
    )


def test_the_matrix_is_said_in_words() -> None:
    assert list(words_of(pairs())) == [
        "Within a host 1,000 MB/s, from one to another 100 MB/s: 10 times as much.",
        "A small message there and back takes 0.2 ms.",
        "No host and no link is slow next to the others.",
    ]
    title, _, table, words = pairs_section(msgspec.to_builtins([pairs()]))
    assert title == Heading(2, "Within and between hosts: gloo")
    assert isinstance(table, Grid)
    assert [row[0].text for row in table.body] == ["a", "b"]
    assert isinstance(words, Items)
    assert len(words.texts) == 3
    assert pairs_section([{"backend": 1}]) == []


def test_rows_of_several_hosts_stand_in_lines_of_their_own() -> None:
    row = Collective(
        run_id="r", op="all_reduce", backend="gloo", device="cpu", dtype="fp32", world_size=2,
        bytes=1024, status="ok",
    )  # fmt: skip
    over = msgspec.structs.replace(row, nodes=2, link="1gbit")
    assert [str(line_of(one)) for one in (row, over)] == ["gloo x2", "gloo x2 on 2 hosts, 1gbit"]
    assert row.key != over.key
