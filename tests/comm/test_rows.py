from __future__ import annotations

import msgspec
import pytest

from bench.analyze.checks import FLAGS
from bench.comm.rows import failed, row_of, skipped
from bench.comm.sweep import Group, Planned, Point
from bench.run.handover import Failure, RankOutcome, Times

GIB = 2**30


def planned(op: str = "all_reduce", ranks: int = 4, reason: str | None = None) -> Planned:
    group = Group(device="cpu", backend="gloo", world_size=ranks, cores_per_device=1)
    point = msgspec.convert({"op": op, "dtype": "fp32", "bytes": GIB}, Point)
    return Planned(group=group, point=point, skip_reason=reason)


def outcomes(*seconds: float, **changes: object) -> list[RankOutcome]:
    """Of ranks that took so long for each call."""
    return [
        RankOutcome(
            rank=rank,
            times=[
                msgspec.structs.replace(
                    Times(
                        number=0,
                        carried_by="gloo",
                        isolated_s=[each] * 5,
                        row_s=[10 * each] * 3,
                        row_calls=10,
                    ),
                    **changes,
                )
            ],
        )
        for rank, each in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_one_gibibyte_in_a_second(op: str, ranks: int, factor: float) -> None:
    row = row_of(planned(op, ranks), 0, outcomes(*[1.0] * ranks), run_id="r")
    assert row.status == "ok"
    assert row.median_s == 1.0
    assert row.algbw_bytes_per_s == GIB
    assert row.busbw_bytes_per_s == factor * GIB
    assert row.back_to_back_s == 1.0
    assert row.back_to_back_busbw_bytes_per_s == factor * GIB


def test_one_rank_has_no_bus() -> None:
    row = row_of(planned(ranks=1), 0, outcomes(1.0), run_id="r")
    assert row.algbw_bytes_per_s == GIB
    assert row.busbw_bytes_per_s is None
    assert row.back_to_back_busbw_bytes_per_s is None


def test_a_call_lasts_as_long_as_on_the_slowest_rank() -> None:
    row = row_of(planned(ranks=2), 0, outcomes(1.0, 2.0), run_id="r")
    assert row.median_s == 2.0
    assert row.isolated_s == [[1.0] * 5, [2.0] * 5]


def test_an_outlier_moves_the_spread_and_not_the_median() -> None:
    ranks = outcomes(1.0, 1.0)
    slow = msgspec.structs.replace(ranks[0].times[0], isolated_s=[1.0, 1.0, 1.0, 1.0, 50.0])
    ranks[0] = msgspec.structs.replace(ranks[0], times=[slow])
    row = row_of(planned(ranks=2), 0, ranks, run_id="r")
    assert row.median_s == 1.0
    assert row.high_s is not None
    assert row.high_s > 10
    assert row.flags == ["calls_stalled"]
    assert set(row.flags) <= FLAGS.keys()


def test_calls_of_one_length_have_not_stalled() -> None:
    ranks = outcomes(1.0, 1.0)
    uneven = msgspec.structs.replace(ranks[0].times[0], isolated_s=[1.0, 1.0, 1.0, 2.0, 2.9])
    ranks[0] = msgspec.structs.replace(ranks[0], times=[uneven])
    assert row_of(planned(ranks=2), 0, ranks, run_id="r").flags == []


def test_a_wrong_result_has_no_figure_on_any_rank() -> None:
    ranks = outcomes(1.0, 1.0)
    wrong = msgspec.structs.replace(ranks[1].times[0], reason="the result is wrong")
    ranks[1] = msgspec.structs.replace(ranks[1], times=[wrong])
    row = row_of(planned(ranks=2), 0, ranks, run_id="r")
    assert (row.status, row.reason, row.median_s) == ("failed", "the result is wrong", None)


def test_what_another_backend_carried_is_no_figure_of_this_one() -> None:
    row = row_of(planned(ranks=2), 0, outcomes(1.0, 1.0, carried_by="nccl"), run_id="r")
    assert (row.status, row.reason) == ("failed", "was carried by nccl, not by gloo")


def test_memory_that_does_not_suffice_is_a_row() -> None:
    ranks = outcomes(1.0, 1.0, out_of_memory=True, reason="no memory")
    row = row_of(planned(ranks=2), 0, ranks, run_id="r")
    assert (row.status, row.reason) == ("out_of_memory", "no memory")


def test_a_launch_that_ended_early_names_its_culprit_in_what_is_left() -> None:
    ranks = outcomes(1.0, 1.0)
    failure = Failure(status="failed", reason="killed by SIGKILL", signal="SIGKILL", at_s=1.0)
    ranks[1] = msgspec.structs.replace(ranks[1], failure=failure, phase="all_reduce of 4 bytes")
    assert row_of(planned(ranks=2), 0, ranks, run_id="r").status == "ok"
    row = row_of(planned(ranks=2), 1, ranks, run_id="r")
    assert row.status == "failed"
    assert row.reason == "rank 1 of 2, in all_reduce of 4 bytes: killed by SIGKILL"


def test_rows_without_a_launch() -> None:
    assert skipped(planned(reason="no"), run_id="r").status == "skipped"
    assert failed(planned(), "no ports", run_id="r").reason == "no ports"
