"""The result of a comparison, which shows itself in a terminal, in a notebook, and to a test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.analyze.rows import Comparison as Ratio
from bench.analyze.rows import Row
from bench.errors import BenchError
from bench.records.record import Record, RunInfo
from bench.report.document import Part, Text
from bench.report.html import fragment_of
from bench.report.page import plain, scaling
from bench.report.tables import Table, tables_of

Than = Literal["single", "ddp"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """What was measured, and what it comes to."""

    run: RunInfo
    records: tuple[Record, ...]
    """One for each launch and pass of each case, with all raw times."""
    rows: tuple[Row, ...]
    """One for each case, as the tables have it."""
    folder: Path | None = None
    """Where the results lie on disk, if they were to be kept."""

    def row(self, strategy: str, world_size: int | None = None) -> Row:
        """The row of a strategy, by its name or its label with options.

        Args:
            strategy: which.
            world_size: on how many devices; the most that there is by default.

        Raises:
            BenchError: there is no such row.
        """
        found = [
            row
            for row in self.rows
            if strategy in {row.case.strategy, row.case.label}
            and world_size in {None, row.case.world_size}
        ]
        if not found:
            known = ", ".join(f"{row.case.label} on {row.case.world_size}" for row in self.rows)
            what = strategy if world_size is None else f"{strategy} on {world_size}"
            raise BenchError(f"there is no row of {what}; there are {known}")
        return max(found, key=lambda row: row.case.world_size)

    def require_not_slower(
        self, strategy: str, than: Than = "single", world_size: int | None = None
    ) -> None:
        """Stand for a strategy's throughput, as a test does.

        It fails where the difference is more than noise, and not for noise alone; and where there
        is no figure to stand for.

        Args:
            strategy: whose row is meant, as for ``row``.
            than: one device without a wrapper, or plain DDP on as many devices.
            world_size: as for ``row``.

        Raises:
            AssertionError: it is slower, or was not measured or proved; says which.
            BenchError: there is no such row.
        """
        row = self.row(strategy, world_size)
        name = f"{row.case.label} on {row.case.world_size}"
        if row.samples_per_s is None:
            raise AssertionError(f"{name} was not measured: {row.status}: {row.reason}")
        if row.is_proved_wrong:
            reason = row.parity.reason if row.parity is not None else ", ".join(row.flags)
            raise AssertionError(f"{name} trains another model than one device: {reason}")
        ratio = row.speedup if than == "single" else row.peer
        if ratio.is_baseline:
            return
        if ratio.verdict is None:
            raise AssertionError(
                f"{name} cannot be compared with {than}: "
                f"{ratio.reason or 'one launch of each shows no noise; set launches: 2 or more'}"
            )
        if ratio.verdict == "slower":
            raise AssertionError(f"{name} is slower than {than}: {_in_words(ratio)}\n\n{self}")

    def __str__(self) -> str:
        return plain(self.rows)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} cases, {len(self.records)} records>\n{self}"

    def _repr_html_(self) -> str:
        """The tables, for a notebook."""
        tables = tables_of(self.rows)
        return fragment_of([part for table in tables for part in _parts(table)])


def _in_words(ratio: Ratio) -> str:
    assert ratio.ratio is not None, "what has a verdict has a ratio"
    found = ratio.ratio
    interval = (
        ""
        if found.low is None or found.high is None
        else (f" (95 %: {found.low:.2f} to {found.high:.2f})")
    )
    return f"{found.value:.2f} of its samples per second{interval}"


def _parts(table: Table) -> list[Part]:
    return [Text(table.title, is_strong=True), Text(table.rule), scaling(table)]
