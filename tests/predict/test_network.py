from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.predict.network import Level, Network, Places, cost
from tests.predict.made import MIB, TWO, flat, network


@pytest.mark.parametrize(
    ("op", "ranks", "seconds"),
    [
        # 8 MiB at 1 MiB/s: 2 (n-1)/n, (n-1)/n, or once; and 0.1 s for each step of the ring.
        ("all_reduce", 2, 8.0 + 0.2),
        ("all_reduce", 4, 12.0 + 0.6),
        ("all_gather", 4, 6.0 + 0.3),
        ("reduce_scatter", 4, 6.0 + 0.3),
        ("broadcast", 4, 8.0 + 0.3),
        ("all_reduce", 1, 0.0),
    ],
)
def test_latency_and_bandwidth_of_a_ring(op: str, ranks: int, seconds: float) -> None:
    found = cost(network(latency_s=0.1), op, 8 * MIB, Places(hosts=1, per_host=ranks))
    assert found.alone_s == pytest.approx(seconds)


def test_another_number_of_ranks_has_the_same_steps_of_the_same_chunks() -> None:
    curves = {("all_reduce", 8): flat(8, 7.0)}
    made = Network(name="made", curves=curves)
    # 512 MiB on 4 ranks: chunks of 128 MiB, as 1 GiB on 8; 3 of 7 pairs of steps.
    found = cost(made, "all_reduce", 512 * MIB, Places(hosts=1, per_host=4))
    assert found.in_row_s == pytest.approx(3.0)


def test_the_nearest_curve_is_taken() -> None:
    curves = {("all_reduce", 2): flat(2, 1.0), ("all_reduce", 8): flat(8, 100.0)}
    made = Network(name="made", curves=curves)
    assert cost(made, "all_reduce", 1024 * MIB, TWO).in_row_s == pytest.approx(1.0)


def test_half_of_an_all_reduce_but_over_gloo() -> None:
    curves = {("all_reduce", 2): flat(2, 1.0)}
    made = Network(name="made", curves=curves)
    assert cost(made, "reduce_scatter", 1024 * MIB, TWO).in_row_s == pytest.approx(0.5)
    with pytest.raises(BenchError, match="no curve of reduce_scatter"):
        cost(
            Network(name="made", curves=curves, half_of_all_reduce=False),
            "reduce_scatter",
            1024 * MIB,
            TWO,
        )


def test_a_type_without_a_curve_is_as_many_bytes_of_fp32() -> None:
    curves = {("all_reduce", 2): flat(2, 1.0)}
    own = curves | {("all_reduce:fp16", 2): flat(2, 3.0)}
    for known, seconds in ((curves, 1.0), (own, 3.0)):
        found = cost(Network(name="made", curves=known), "all_reduce:fp16", 1024 * MIB, TWO)
        assert found.in_row_s == pytest.approx(seconds)


def test_between_hosts_the_slower_level_decides_and_latencies_add_up() -> None:
    made = network(
        bytes_per_s=100 * MIB, between=Level(bus_bytes_per_s=MIB, latency_s=0.5), latency_s=0.0
    )
    # 4 hosts: 1.5 x 8 MiB at the host's 1 MiB/s; there and back through a tree of depth 2.
    found = cost(made, "all_reduce", 8 * MIB, Places(hosts=4, per_host=8))
    assert found.alone_s == pytest.approx(12.0 + 4 * 0.5)
    slow = network(between=Level(bus_bytes_per_s=1000 * MIB, latency_s=0.5))
    # Within a host of 8: 1.75 x 8 MiB at 1 MiB/s.
    found = cost(slow, "all_reduce", 8 * MIB, Places(hosts=4, per_host=8))
    assert found.alone_s == pytest.approx(14.0 + 4 * 0.5)


def test_a_curve_over_hosts_holds_between_them() -> None:
    made = Network(name="link", curves={("all_reduce", 2): flat(2, 5.0)}, over_hosts=True)
    found = cost(made, "all_reduce", 1024 * MIB, Places(hosts=2, per_host=1))
    assert found.alone_s == pytest.approx(5.0)


def test_links_between_hosts_must_be_known() -> None:
    with pytest.raises(BenchError, match="nothing is known of links between hosts"):
        cost(network(), "all_reduce", 1, Places(hosts=2, per_host=2))
