"""Files as every version has written them, oldest first, are still read for what they say.

Each folder of ``recorded`` is cut from a run of the version that first wrote files of its shape; a
new shape of the record gets another. A schema that is not read as it stands would get its reader.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.records.lines import place_of
from bench.records.record import SCHEMA, Record
from bench.records.store import RECORDS, read_records
from bench.report.page import load, plain

RECORDED = Path(__file__).parent / "recorded"
FOLDERS = sorted(
    (path.name for path in RECORDED.iterdir()), key=lambda name: int(name.partition("-")[0])
)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    path = place_of(folder, RECORDS)
    assert path is not None
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


def fields_of(value: Any, path: str = "") -> Iterator[str]:
    """Paths of all fields that hold something, those of mappings by people's names included."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if inner is not None:
                yield f"{path}{name}"
                yield from fields_of(inner, f"{path}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from fields_of(inner, path)


def test_every_schema_has_a_file() -> None:
    schemas = {line["schema"] for name in FOLDERS for line in lines_of(RECORDED / name)}
    assert schemas == set(range(1, SCHEMA + 1))


def test_the_newest_file_has_every_field_of_a_record() -> None:
    known = {one.encode_name for one in msgspec.structs.fields(Record)}
    assert set(lines_of(RECORDED / FOLDERS[-1])[0]) == known


@pytest.mark.parametrize("name", FOLDERS)
def test_a_recorded_file_is_read_whole(name: str) -> None:
    lines, records = lines_of(RECORDED / name), read_records(RECORDED / name)
    assert len(records) == len(lines)
    for line, record in zip(lines, records, strict=True):
        again = json.loads(msgspec.json.encode(record))
        assert {*fields_of(line)} <= {*fields_of(again)}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_recorded_file_has_the_figures_that_it_had(name: str) -> None:
    folder = RECORDED / name
    _info, _records, rows = load(folder)
    ddp = next(row for row in rows if row.case.label == "ddp")
    assert ddp.speedup.ratio is not None
    assert ddp.samples_per_s is not None
    assert ddp.parity is not None
    assert ddp.parity.verdict == "exact"
    rates = [
        line["throughput"]["samples_per_s"]
        for line in lines_of(folder)
        if line["pass"] == "timing" and line["case"]["id"] == ddp.case.id
    ]
    assert [launch.figure for launch in ddp.launches] == rates
    assert "ddp" in plain(rows)
