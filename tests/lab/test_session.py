from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bench.cli import run_command_line
from bench.cli.lab import latencies, rates
from bench.errors import BenchError
from bench.lab.guest import VARIABLE, Guest, Told, lab_of, links_of, with_links
from bench.lab.network import Layout, Link
from bench.lab.rate import Measured
from bench.lab.session import Wish, check, cores_of, words_of
from bench.plan.suite import parse_suite

SUITE = """
matrix:
  - workloads: [transformer:tiny]
    strategies: [ddp]
    link: [300mbit, 1gbit]
  - workloads: [transformer:tiny]
    strategies: [ddp]
"""
MEASURED = Measured(
    link=Link(rate="1gbit"),
    one_way_bytes_per_s=119e6,
    both_ways_bytes_per_s=118e6,
    round_trip_s=0.00005,
)


def test_links_of_the_command_line_take_the_place_of_the_suites() -> None:
    suite = parse_suite(SUITE, source="x.yaml")
    assert links_of(suite) == [Link(rate="300mbit"), Link(rate="1gbit"), Link()]
    given = with_links(suite, ["10gbit"], [1.0])
    assert links_of(given) == [Link(rate="10gbit", latency_ms=1.0)]
    assert with_links(suite, [], []) == suite


@pytest.mark.parametrize(
    ("hosts", "ranks", "cores", "expected"),
    [
        (2, 1, [0, 1], [(0,), (1,)]),
        (2, 2, [0, 1, 2, 3], [(0, 1), (2, 3)]),
        (3, 2, [0, 1, 2, 3, 4], [(0, 1), (2, 3), (0, 1)]),
    ],
)
def test_hosts_have_cores_of_their_own_while_they_last(
    hosts: int, ranks: int, cores: Sequence[int], expected: list[tuple[int, ...]]
) -> None:
    assert cores_of(Wish(hosts=hosts, ranks_per_host=ranks), 1, cores) == expected


def test_a_host_that_needs_more_cores_than_there_are() -> None:
    with pytest.raises(BenchError, match="2 ranks a host, of 2 cores each, need 4 cores"):
        cores_of(Wish(hosts=2, ranks_per_host=2), 2, [0, 1, 2])


def test_without_what_it_needs_there_is_no_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.lab.session.missing", lambda: "it needs root")
    with pytest.raises(BenchError, match="no laboratory here: it needs root"):
        check(Wish(hosts=2, ranks_per_host=1))


def test_a_host_is_told_what_it_is_in() -> None:
    told = Told(
        layout=Layout(maker=1, hosts=2),
        ranks_per_host=1,
        cores=8,
        rates=("1gbit",),
        measured=(MEASURED,),
    )
    guest = lab_of({VARIABLE: msgspec.json.encode(told).decode()})
    assert guest is not None
    assert guest.rates() == ("1gbit",)
    description = guest.description()
    assert (description["kind"], description["cores"]) == ("emulated", 8)
    assert description["links"][0]["one_way_bytes_per_s"] == 119e6
    assert lab_of({}) is None
    with pytest.raises(BenchError, match="set by bench lab run, and by nothing else"):
        lab_of({VARIABLE: "yes"})


def test_links_are_set_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    set_: list[Link] = []
    monkeypatch.setattr("bench.lab.guest.shape", lambda _, link: set_.append(link))
    guest = Guest(Told(layout=Layout(maker=1, hosts=2), ranks_per_host=1, cores=8))
    for rate in ("1gbit", "1gbit", None):
        guest.shape(rate, None)
    assert set_ == [Link(rate="1gbit"), Link()]


def test_what_a_link_carries_in_words() -> None:
    assert words_of(MEASURED) == (
        "link 1gbit: 952 Mbit/s one way, 944 Mbit/s each when both are used, a round trip 0.05 ms"
    )


def test_lists_of_the_command_line() -> None:
    assert rates("300mbit, 1gbit,1gbit") == ("300mbit", "1gbit")
    assert rates(None) == ()
    assert latencies("0.5,5") == (0.5, 5.0)
    for text in ("1", "1 gbit", "0mbit", "1GBit"):
        with pytest.raises(BenchError, match="is no rate"):
            rates(text)
    with pytest.raises(BenchError, match="no number of milliseconds"):
        latencies("-1")


def test_a_suite_that_cannot_be_read_builds_nothing(tmp_path: Path) -> None:
    assert run_command_line(["lab", "run", str(tmp_path / "none.yaml")]) == 2
