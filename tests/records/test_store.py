from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest

from bench.errors import OutputError, RecordsError
from bench.records.record import Parity, Record, RunInfo
from bench.records.store import RECORDS, Store, read_records, read_run, recorded
from tests.fakes import make_case


def make_record(launch: int = 0, **changes: object) -> Record:
    record = Record(
        run_id="r",
        launch=launch,
        pass_="timing",
        case=make_case(),
        status="failed",
        reason="out of luck",
        environment="e",
    )
    return msgspec.structs.replace(record, **changes)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b") as store:
        for launch in range(3):
            store.append(make_record(launch))
    assert read_records(tmp_path / "a" / "b") == [make_record(launch) for launch in range(3)]


def test_a_record_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record())
        assert len(read_records(tmp_path)) == 1


def test_the_key_is_called_pass_in_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record())
    (line,) = (tmp_path / RECORDS).read_text().splitlines()
    fields = json.loads(line)
    assert fields["pass"] == "timing"
    assert fields["schema"] == 1
    assert fields["timing"] is None


def test_no_line_holds_a_number_that_json_lacks(tmp_path: Path) -> None:
    parity = Parity(verdict="failed", error=math.nan, tolerance=math.inf)
    with Store(tmp_path) as store:
        store.append(make_record(parity=parity))
    (line,) = (tmp_path / RECORDS).read_text().splitlines()

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse)["parity"]["error"] is None


def test_a_cut_line_is_ignored_and_replaced(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record(0))
        store.append(make_record(1))
    path = tmp_path / RECORDS
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match=r"records\.jsonl:2: left out, cut short"):
        assert read_records(tmp_path) == [make_record(0)]
    with Store(tmp_path, resume=True) as store:
        store.append(make_record(2))
    assert read_records(tmp_path) == [make_record(0), make_record(2)]


def test_a_record_that_only_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record(0))
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with Store(tmp_path, resume=True) as store:
        store.append(make_record(1))
    assert read_records(tmp_path) == [make_record(0), make_record(1)]


def test_a_folder_that_is_removed_is_noticed(tmp_path: Path) -> None:
    with Store(tmp_path / "out") as store:
        store.append(make_record(0))
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(OutputError, match="was removed while the run went on"):
            store.append(make_record(1))


def test_a_foreign_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record(0))
    path = tmp_path / RECORDS
    good = path.read_bytes()
    path.write_bytes(b'{"foreign": 1}\n' + b"\xff\xfe\n" + good)
    with pytest.warns(UserWarning, match=r"records\.jsonl:[12]: left out") as caught:
        assert read_records(tmp_path) == [make_record(0)]
    assert len(caught) == 2
    path.write_bytes(b'{"foreign": 1}\n')
    with pytest.warns(UserWarning, match="left out|is it another program's file"):
        assert read_records(tmp_path) == []


def test_a_newer_schema_is_left_out(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record(0, schema=99))
        store.append(make_record(1))
    path = tmp_path / RECORDS
    path.write_bytes(b'{"schema": 2, "shape": "another"}\n' + path.read_bytes())
    with pytest.warns(UserWarning, match="schema (2|99) is newer than 1") as caught:
        assert read_records(tmp_path) == [make_record(1)]
    assert len(caught) == 2


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(make_record())
    path = tmp_path / RECORDS
    fields = json.loads(path.read_text()) | {"later": {"a": 1}}
    path.write_text(json.dumps(fields) + "\n")
    assert read_records(tmp_path) == [make_record()]


def test_only_one_writer_and_never_over_other_results(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        with pytest.raises(OutputError, match="another run is writing here"):
            Store(tmp_path, resume=True)
        store.append(make_record())
    with pytest.raises(OutputError, match="holds results already"):
        Store(tmp_path)
    with Store(tmp_path, resume=True):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        Store(tmp_path / "file" / "folder")


def test_a_folder_that_holds_no_results(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="no such folder"):
        read_records(tmp_path / "none")
    with pytest.raises(RecordsError, match=r"holds no records\.jsonl"):
        read_records(tmp_path)
    with pytest.raises(RecordsError, match=r"holds no run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RecordsError, match="is no run description"):
        read_run(tmp_path)


def test_the_run_description_comes_back(tmp_path: Path) -> None:
    info = RunInfo(
        run_id="r",
        suite={"name": "s"},
        environment={},
        environment_fingerprint="e",
        seed=1,
        versions={},
        started_at="now",
    )
    with Store(tmp_path) as store:
        store.write_run(info)
        info.ended_by = "complete"
        store.write_run(info)
    assert read_run(tmp_path).ended_by == "complete"
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECORDS, "run.json"]


def test_only_interrupted_launches_run_again() -> None:
    records = [
        make_record(0),
        make_record(1, status="failed"),
        make_record(2, status="interrupted"),
    ]
    assert recorded(records) == {records[0].key, records[1].key}
