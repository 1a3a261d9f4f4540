from __future__ import annotations

from bench.analyze.scaling import rows_of
from bench.report.sweeps import sweeps_of
from bench.report.tradeoff import FRONT, front, shown_rows, tradeoff_figure
from tests.fakes import make_case
from tests.report.made_settings import settings_rows
from tests.report.test_findings import measured


def test_the_front_has_what_nothing_beats_in_both() -> None:
    cases = {
        "fsdp": (100, 0.25),
        "zero": (90, 0.5),  # slower than fsdp, with more memory
        "ddp": (180, 1.0),
        "mine": (170, 1.2),
    }
    records = [
        record
        for name, (rate, gib) in cases.items()
        for record in measured(make_case(strategy=name, world_size=2), rate - 1, rate, gib=gib)
    ]
    rows = rows_of([], records)
    assert [row.case.strategy for row in front(rows, "tensor")] == ["fsdp", "ddp"]
    assert shown_rows(rows, "tensor") == rows
    assert shown_rows(rows[:1], "tensor") == []  # nothing to weigh


def test_what_is_not_ranked_is_hollow() -> None:
    cases = {"dp": (200, 0.25), "fsdp": (100, 0.5), "ddp": (180, 1.0)}
    flags = {"dp": ["reference_implementation"]}
    records = [
        record
        for name, (rate, gib) in cases.items()
        for record in measured(
            make_case(strategy=name, world_size=2),
            rate - 1,
            rate,
            gib=gib,
            flags=flags.get(name, []),
        )
    ]
    figure = tradeoff_figure(rows_of([], records), "tensor")
    points = {line.get_label(): line for line in figure.axes[0].lines}
    assert points["dp (reference)"].get_markerfacecolor() == "none"
    assert points["ddp"].get_markerfacecolor() != "none"
    assert {"nothing ranked is better in both", "hollow: not ranked"} <= points.keys()


def test_each_speed_of_the_links_has_its_own_front() -> None:
    records = [
        record
        for link, factor in (("1gbit", 1), ("10gbit", 3))
        for name, rate, gib in (("fsdp", 50, 0.25), ("ddp", 90, 1.0))
        for record in measured(
            make_case(strategy=name, world_size=2, nodes=2, link=link), factor * rate, gib=gib
        )
    ]
    figure = tradeoff_figure(rows_of([], records), "tensor")
    fronts = [line for line in figure.axes[0].lines if line.get_label() == FRONT]
    assert [list(map(round, line.get_ydata())) for line in fronts] == [[50, 90], [150, 270]]


def test_a_sweep_has_at_least_three_sizes_in_order_and_nothing_else_differs() -> None:
    rows = settings_rows()
    (sweep,) = sweeps_of(rows, {row.case.id: row.case.label for row in rows})
    caps = [row.case.options["bucket_cap_mb"] for row in sweep.rows]
    assert caps == [1, None, 100]  # torch's own is 25
    assert sweep.name == "ddp x2"


def test_each_way_to_train_has_its_own_front() -> None:
    """As rankings, which set no number of micro-steps against another."""
    records = [
        record
        for steps, factor in ((1, 1), (4, 2))
        for name, rate, gib in (("fsdp", 50, 0.25), ("ddp", 90, 1.0))
        for record in measured(
            make_case(strategy=name, world_size=2, accumulation_steps=steps), factor * rate, gib=gib
        )
    ]
    figure = tradeoff_figure(rows_of([], records), "tensor")
    fronts = [line for line in figure.axes[0].lines if line.get_label() == FRONT]
    assert [len(line.get_xdata()) for line in fronts] == [2, 2]
