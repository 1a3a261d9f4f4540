from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analyze.scaling import rows_of as rows_of_records
from bench.errors import BenchError, RecordsError
from bench.predict.curve import of_rows
from bench.predict.measured import beside, boards, score
from bench.predict.network import Network, Places
from bench.predict.scaling import Wanted
from bench.predict.study import Cell, Study, cells_of, read_study, typical
from bench.predict.write import write_beside
from bench.records.collectives import COLLECTIVES, Collective
from bench.records.profile import Contention, Profile
from bench.records.record import Parity, Record
from bench.records.store import RECORDS, iterate_records
from bench.report.beside import beside as table_beside
from bench.report.beside import predictions_of
from bench.report.markdown import parts_of
from bench.report.prediction_measured import in_short, measured_board, promises, study_text
from tests.predict.made import MIB, launches_of, profile, record, row, single, slowed

CAPS = (1, 2, 4, 100)
HOSTS = Places(hosts=2, per_host=1)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
WITH = {"broadcast_buffers": True, "comm_hook": "none"}


def over(rate: float) -> Network:
    """Two hosts over a link of so many bytes a second."""
    return Network(name="link", curves=of_rows(rows_of(rate)), over_hosts=True)


def rows_of(rate: float) -> list[Collective]:
    sizes = [2**power for power in range(10, 31)]
    return [row(size, size / rate, op=op) for op in OPS for size in sizes]


def study(
    truth: Profile, told: Profile, *, noise: float = 0.005, launches: int = 5, rate: float = MIB
) -> Study:
    """Cells as one profile has them, to be predicted by another."""
    records: list[Record] = []
    for seed, cap in enumerate(CAPS):
        asked = Wanted(
            strategy="ddp", options={**WITH, "bucket_cap_mb": cap}, places=HOSTS, backend="gloo"
        )
        asked = msgspec.structs.replace(asked, label=f"ddp(bucket_cap_mb={cap})")
        records += launches_of(truth, over(rate), asked, count=launches, noise=noise, seed=seed)
    return Study(profiles=[told], networks={"none": over(rate)}, cells=cells_of(records))


def test_a_truth_that_is_known_is_found_within_its_noise() -> None:
    truth = slowed(profile(), stolen_s_per_byte=0.2 / MIB)
    found = score(study(truth, truth))
    assert len(found.scores) == len(CAPS)
    for one in found.scores:
        assert one.left_out is None
        assert one.predicted == pytest.approx(one.measured, rel=0.015)
    assert found.under_twice == len(CAPS)
    (regret,) = found.regrets
    assert regret.cost < 0.015


def test_a_wrong_profile_is_seen_in_every_cell() -> None:
    slow = profile(forward_s=2.0)
    found = score(study(slow, profile()))
    assert all(one.predicted < 0.9 * one.measured for one in found.scores)


def test_noisy_cells_and_cells_of_few_launches_are_counted_and_left_out() -> None:
    noisy = score(study(profile(), profile(), noise=0.2))
    assert {one.left_out for one in noisy.scores} == {"noisier than 2%"}
    few = score(study(profile(), profile(), launches=4))
    assert {one.left_out for one in few.scores} == {"4 launches, fewer than 5"}
    assert few.regrets == []
    assert few.under_twice == 0
    text = measured_board(few.scores, few.regrets, under_twice=few.under_twice)
    assert "4 cells, of which 0 count" in text
    assert "Left out: 4, 4 launches, fewer than 5." in text


def test_noise_is_of_launches_and_the_figure_their_median() -> None:
    cell = Cell(case=single(), link="none", step_s=[1.0, 1.0, 1.0, 1.0, 2.0])
    assert cell.measured_s == 1.0
    assert cell.noise == pytest.approx(0.447 / 1.2, rel=0.01)


def test_the_wrong_choice_of_a_cap_costs_what_was_measured_of_it() -> None:
    # By prediction, small buckets; as measured, one large one.
    made = study(profile(), profile(), noise=0.0)
    turned = [
        msgspec.structs.replace(cell, step_s=[seconds] * 5)
        for cell, seconds in zip(made.cells, (8.0, 7.0, 6.0, 5.0), strict=True)
    ]
    (regret,) = score(msgspec.structs.replace(made, cells=turned)).regrets
    assert regret.measured_best == "ddp(bucket_cap_mb=100)"
    assert regret.predicted_best == "ddp(bucket_cap_mb=1)"
    assert regret.cost == pytest.approx(0.6)


def test_two_numbers_are_fitted_to_cells_that_are_then_not_scored() -> None:
    rate = 16.0 * MIB
    truth = slowed(profile(), stolen_s_per_byte=2e-8, collectives=0.9)
    told = msgspec.structs.replace(truth, contention=Contention(source="measured"))
    made = study(truth, told, noise=0.0, rate=rate)
    other = [msgspec.structs.replace(cell, link="other") for cell in made.cells]
    both = msgspec.structs.replace(
        made, cells=[*made.cells, *other], networks={"none": over(rate), "other": over(rate)}
    )
    found = score(both, fit_on="none")
    fitted = [one for one in found.scores if one.left_out is not None]
    held = [one for one in found.scores if one.left_out is None]
    assert (len(fitted), len(held)) == (4, 4)
    assert {one.left_out for one in fitted} == {"kept for a fit"}
    assert all(one.predicted == pytest.approx(one.measured, rel=1e-3) for one in held)
    worse = score(both)
    assert any(one.predicted < 0.99 * one.measured for one in worse.scores)
    with pytest.raises(BenchError, match="no cell over 'nowhere'"):
        score(both, fit_on="nowhere")


def test_what_is_wrong_or_alone_is_no_cell() -> None:
    two = msgspec.structs.replace(single(), world_size=2, id="two")
    failed = msgspec.structs.replace(
        record(two, 0, 1.0), pass_="parity", parity=Parity(verdict="failed")
    )
    assert cells_of([record(two, 0, 1.0), failed]) == []
    assert cells_of([record(single(), 0, 1.0)]) == []


def test_cells_that_nothing_is_known_of_are_named() -> None:
    made = study(profile(), profile(), noise=0.0)
    for lacking, what in (
        (msgspec.structs.replace(made, profiles=[]), "no profile"),
        (msgspec.structs.replace(made, networks={}), "no link"),
    ):
        with pytest.warns(UserWarning, match=what):
            assert score(lacking).scores == []


def test_a_study_is_read_from_its_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="0 and 0 are there"):
        read_study(tmp_path)
    truth = profile()
    write(tmp_path / "profiles" / "made.json", truth)
    lines(tmp_path / "links" / "none" / COLLECTIVES, rows_of(MIB))
    asked = Wanted(strategy="fsdp", places=HOSTS, backend="gloo")
    made = launches_of(truth, over(MIB), asked, count=5, noise=0.0, seed=0)
    lines(tmp_path / "runs" / "first" / RECORDS, made)
    found = score(read_study(tmp_path))
    (one,) = found.scores
    assert one.strategy == "fsdp"
    assert one.predicted == pytest.approx(one.measured)


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(value))


def lines(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))


def test_predictions_stand_beside_what_was_measured_and_not_among_it(tmp_path: Path) -> None:
    truth = profile()
    write(tmp_path / "profiles" / "made.json", truth)
    lines(tmp_path / "links" / "none" / COLLECTIVES, rows_of(MIB))
    run = tmp_path / "run"
    asked = Wanted(strategy="ddp", options=WITH, places=HOSTS, backend="gloo")
    made = launches_of(truth, over(MIB), asked, count=5, noise=0.0, seed=0)
    slower = [record(one.case, one.launch, 1.25 * step_of(one)) for one in made]
    lines(run / RECORDS, slower)
    ((folder, found),) = beside(read_study(tmp_path))
    assert folder == run
    write_beside(folder, found)
    predicted = predictions_of(run)
    assert list(predicted) == [slower[0].case.id]
    rows = rows_of_records([], slower)
    text = parts_of(table_beside(rows, predicted), "charts")
    assert "median error 20.0 %" in text
    assert f"{1e3 * step_of(made[0]):.4g} | " in text
    assert table_beside(rows, {}) == []
    assert predictions_of(tmp_path) == {}
    assert len(list(iterate_records(run))) == 5


def step_of(one: Record) -> float:
    assert one.timing is not None
    return one.timing.step_s[0][0]


def test_cells_kept_for_a_fit_count_in_neither_board() -> None:
    rate = 16.0 * MIB
    truth = slowed(profile(), stolen_s_per_byte=2e-8, collectives=0.9)
    told = msgspec.structs.replace(truth, contention=Contention(source="measured"))
    made = study(truth, told, noise=0.0, rate=rate)
    other = [msgspec.structs.replace(cell, link="other") for cell in made.cells]
    both = msgspec.structs.replace(
        made,
        cells=[*made.cells, *other],
        networks={"none": over(rate), "other": over(rate)},
        fit_on="other",
    )
    plain, fitted = boards(both)
    assert (plain.fitted_on, fitted.fitted_on) == (None, "other")
    for board in (plain, fitted):
        left_out = [one.left_out for one in board.scores if "other" in one.table]
        assert left_out == ["kept for a fit"] * len(CAPS)
        assert board.under_twice <= len(CAPS)
    text = study_text([plain, fitted])
    assert "**Nothing is fitted**" in text
    assert "cells over other, which count in neither table" in text
    assert "- ddp, at most median 3%, nine in ten 6%, worst 10%: " in text
    assert study_text([fitted]).count("ddp, at most") == 1
    with pytest.warns(UserWarning, match="nothing is fitted"):
        alone = boards(msgspec.structs.replace(both, fit_on="nowhere"))
    assert len(alone) == 1


def test_what_is_missed_is_said() -> None:
    slow = profile(forward_s=2.0)
    found = score(study(slow, profile()))
    text = promises(found.scores, found.regrets)
    assert "missed: median is" in text
    assert "The predicted best cap costs at most 3% more than the measured best: kept" in text
    assert promises([], []) == ""
    few = in_short(found.scores, 15)
    assert "Too few: at least 40 and 15 are striven for." in few
    assert "Over all" not in few, "none is left out"
    noisy = msgspec.structs.replace(found.scores[0], left_out="noisier than 2%", predicted=1e9)
    assert "at worst" in in_short([*found.scores, noisy], 15)
    assert "Too few" not in in_short(found.scores * 40, 15)


def test_of_several_profiles_of_a_case_the_typical_one_is_taken() -> None:
    made = [profile(forward_s=seconds) for seconds in (9.0, 1.0, 2.0)]
    other = profile(case=single(workload="another", id="another"))
    assert [one.forward_s for one in typical([*made, other])] == [2.0, 1.0]
    assert [one.forward_s for one in typical(made[:2])] == [1.0]
