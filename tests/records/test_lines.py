from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench.errors import OutputError, RecordsError
from bench.records import lines
from bench.records.collectives import COLLECTIVES, Collective, iterate_collectives
from bench.records.store import RECORDS, RUN, Store, read_records, read_run
from tests.records.test_store import make_record


def compressed(folder: Path, name: str = RECORDS) -> Path:
    path = folder / name
    target = folder / f"{name}.gz"
    target.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return target


def make_folder(folder: Path, count: int = 3) -> Path:
    with Store(folder) as store:
        for launch in range(count):
            store.append(make_record(launch))
    return folder


def test_compressed_records_are_read_as_any_others(tmp_path: Path) -> None:
    plain = read_records(make_folder(tmp_path))
    compressed(tmp_path)
    assert read_records(tmp_path) == plain
    assert lines.place_of(tmp_path, RECORDS) == tmp_path / "records.jsonl.gz"


def test_compressed_rows_of_collectives_are_read(tmp_path: Path) -> None:
    row = Collective(
        run_id="r", op="all_reduce", backend="gloo", device="cpu", dtype="fp32", world_size=2,
        bytes=4, status="skipped", reason="none",
    )  # fmt: skip
    with Store(tmp_path, name=COLLECTIVES) as store:
        store.append(row)
    compressed(tmp_path, COLLECTIVES)
    assert list(iterate_collectives(tmp_path)) == [row]


def test_nothing_is_written_beside_compressed_records(tmp_path: Path) -> None:
    target = compressed(make_folder(tmp_path))
    with pytest.raises(OutputError, match="holds results already"):
        Store(tmp_path)
    with pytest.raises(OutputError, match=f"gunzip {target} to go on"):
        Store(tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl.gz"]


def test_a_compressed_file_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    target = compressed(make_folder(tmp_path, 2000))
    target.write_bytes(target.read_bytes()[:-2000])
    with pytest.warns(UserWarning, match=r"records\.jsonl\.gz: cut short or damaged: \d+ lines"):
        found = read_records(tmp_path)
    assert 0 < len(found) < 2000
    assert found == [make_record(launch) for launch in range(len(found))]


def test_a_compressed_file_that_is_damaged_within(tmp_path: Path) -> None:
    target = compressed(make_folder(tmp_path, 2000))
    content = bytearray(target.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50] = bytes(50)
    target.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged|left out"):
        assert len(read_records(tmp_path)) < 2000


def test_what_is_not_compressed_at_all(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl.gz").write_bytes(b"name,seconds\nddp,1\n")
    with pytest.raises(RecordsError, match="is no gzip file"):
        read_records(tmp_path)


def test_a_file_of_another_program_is_told_once(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text("name,seconds\nddp,1\n")
    with pytest.warns(UserWarning, match="left out|another program's file") as caught:
        assert read_records(tmp_path) == []
    assert "another program's file" in str(caught[-1].message)


def test_a_line_without_end_takes_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path)
    longest = len((tmp_path / RECORDS).read_bytes())
    monkeypatch.setattr(lines, "LONGEST", longest)
    path = tmp_path / RECORDS
    path.write_bytes(b"0" * 5 * longest + b"\n" + path.read_bytes())
    with pytest.warns(UserWarning, match=r"records\.jsonl:1: left out, no record: more than"):
        assert len(read_records(tmp_path)) == 3


def test_a_run_of_a_newer_schema_says_so_whatever_its_shape(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text('{"schema": 7, "machine": {}}')
    with pytest.raises(RecordsError, match="schema 7 is newer than 1"):
        read_run(tmp_path)
