"""What a row's footnotes say of its samples."""

from __future__ import annotations

from collections.abc import Iterator

from bench.analyze.rows import Row
from bench.errors import plural


def notes_of_samples(row: Row) -> Iterator[str]:
    """What became of the samples of an epoch, where not each of them was trained on once."""
    found = row.input
    if found is None or not (found.padded or found.dropped):
        return
    parts = []
    if found.padded:
        again = "comes" if found.padded == 1 else "come"
        parts.append(f"{found.padded:,} {again} a second time, so that all ranks have as many")
    if found.dropped:
        out = "is" if found.dropped == 1 else "are"
        parts.append(f"{found.dropped:,} {out} in no full batch and left out")
    yield f"of the {plural(found.samples, 'sample')} of an epoch, {' and '.join(parts)}"
