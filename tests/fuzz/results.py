"""Results folders: a run that was measured, with some of its lines and fields spoiled."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bench.report.index import newest
from tests.fuzz.odd import TEXTS, Draw, damaged, mutated

RESULTS = Path(__file__).parent.parent.parent / "results"
MOST_STEPS = 12
RUBBISH = (
    b"\x00\xff\xfe\n",
    b"\n",
    b"[]\n",
    b"null\n",
    b"{}\n",
    b'{"foreign": 1}\n',
    b"[" * 5000 + b"\n",
    b'{"case": ' * 3000 + b"\n",
    b"\x80\x04\x95cos\nsystem\n",
    b'{"schema": 99}\n',
    b'"\\ud800"\n',
)


RUNG = {"precision": "bf16-amp", "id": "rung"}
"""What a case of ours has on top of the published one that it stands on."""


@functools.cache
def published() -> Path:
    """The run that folders are made from."""
    found = newest("quick", RESULTS)
    assert found is not None, "it is published"
    return found


@functools.cache
def published_lines() -> list[str]:
    """Of its records."""
    return gzip.decompress((published() / "records.jsonl.gz").read_bytes()).decode().splitlines()


@functools.cache
def lower() -> str:
    """Id of plain DDP on two devices, which is a rung, and has a setting beside it."""
    for line in published_lines():
        case = json.loads(line)["case"]
        named = (case["workload"], case["label"], case["world_size"], case.get("twin"))
        if named == ("transformer", "ddp", 2, False):
            return str(case["id"])
    raise AssertionError("the published run has it")


@functools.cache
def run_text() -> str:
    """``run.json`` of a run of the cases below."""
    info = json.loads((published() / "run.json").read_bytes())
    planned = info["suite"]["planned"]
    planned = [one for one in planned if one["case"]["workload"] == "transformer"]
    upper = [
        {**one, "case": one["case"] | RUNG, "rung_below": one["case"]["id"]}
        for one in planned
        if one["case"]["id"] == lower()
    ]
    info["suite"]["planned"] = [*planned, *upper]
    info["suite"]["budget_s"] = 60.0
    return json.dumps(info)


@functools.cache
def lines() -> tuple[str, ...]:
    """Records of one model, with fewer steps than were measured; a twin, a rung and a failure."""
    found = []
    for line in published_lines():
        record = json.loads(line)
        if record["case"]["workload"] != "transformer":
            continue
        timing = record["timing"]
        if timing is not None:
            for name in ("warmup_step_s", "step_s"):
                timing[name] = [steps[:MOST_STEPS] for steps in timing[name]]
        found.append(json.dumps(record))
        if record["case"]["id"] == lower():
            found.append(json.dumps(record | {"case": record["case"] | RUNG}))
    failed = json.loads(found[0]) | {"status": "failed", "reason": "of\nno\x1b[31m use <b>"}
    failed |= {"pass": "timing", "launch": 7, "log_tail": {"0": ["last\x00 line"]}, "parity": None}
    return (*found, json.dumps(failed))


@st.composite
def spoiled(draw: Draw, text: str) -> bytes:
    """One JSON document with a field or some characters changed."""
    if draw(st.integers(0, 5)) == 0:
        return draw(damaged(text)).encode("utf-8", "surrogatepass")
    document: Any = json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        document = mutated(draw, document)
    return json.dumps(document).encode()


@st.composite
def labelled(draw: Draw) -> list[bytes]:
    """All records of a case, with the same odd words in each: they remain one row."""
    word, place = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(lines()))
    id_ = json.loads(place)["case"]["id"]
    name = draw(st.sampled_from(["label", "workload", "preset", "backend", "strategy", "id"]))
    found = []
    for line in lines():
        record = json.loads(line)
        if record["case"]["id"] == id_:
            record["case"][name] = word
            record["flags"] = [*record["flags"], word]
            if record["throughput"] is not None:
                record["throughput"]["unit"] = word
        found.append(json.dumps(record).encode())
    return found


@st.composite
def folders(draw: Draw) -> tuple[bytes, bytes]:
    """Contents of ``run.json`` and ``records.jsonl``."""
    kind = draw(st.sampled_from(["lines", "lines", "lines", "labels", "labels", "run", "both"]))
    run = run_text().encode()
    if kind in {"run", "both"}:
        run = draw(spoiled(run_text()))
    found = draw(labelled()) if kind == "labels" else [line.encode() for line in lines()]
    if kind in {"lines", "both"}:
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(found) - 1))
            match draw(st.sampled_from(["spoil", "spoil", "spoil", "double", "drop", "rubbish"])):
                case "spoil":
                    found[at] = draw(spoiled(lines()[at % len(lines())]))
                case "double":
                    found.append(found[at])
                case "drop":
                    found = [*found[:at], *found[at + 1 :]] or found
                case "rubbish":
                    found.insert(at, draw(st.sampled_from(RUBBISH)).rstrip(b"\n"))
    records = b"\n".join(found) + b"\n"
    if draw(st.integers(0, 9)) == 0:
        records = records[: draw(st.integers(0, len(records)))]
    return run, records
