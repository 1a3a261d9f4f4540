"""What all charts are drawn with. Never imports torch; needs matplotlib.

A strategy has one colour in every chart. Variants of a strategy share it and differ by marker, or
are named beside what is drawn. What was not measured is a marked gap, never a bar of height 0.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.errors import CONTROL, BenchError, in_words, one_line
from bench.records.store import write_atomically
from bench.report.lettering import wrapped
from bench.report.notes import variants

COLOURS = {
    "single": "#4d4d4d",
    "dp": "#e69f00",
    "ddp": "#0072b2",
    "fsdp": "#009e73",
    "zero": "#cc79a7",
    "deepspeed": "#d55e00",
    "fsdp1": "#56b4e9",
}
"""Okabe and Ito's palette and a grey, which people with any colour vision can tell apart."""
OTHERS = ("#882255", "#999933", "#332288", "#aa4499")
REFERENCE = "reference_implementation"
MARKERS = "osD^vP*X<>pHd8"
STYLE: dict[str, Any] = {
    "svg.hashsalt": "bench",
    "font.size": 9,
    "text.parse_math": False,  # a name with dollars in it is no formula
}
DPI = 120
TITLE_SIZE, TITLE_LINE = 10.0, 0.17
"""Points, and inches."""
LONGEST_TITLE, LONGEST_NAME = 300, 150
"""Characters: a figure grows with them."""
WIDEST_FIGURE = 100.0
"""Inches."""
TOLD = "told: "
TELLING = re.compile(rf'<g id="{TOLD}([^"]*)">')
PATH = re.compile(r' d="[^"]*"')
DECIMALS = re.compile(r"(\.\d\d)\d+")


class NoChartsError(BenchError):
    """Charts cannot be drawn here."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart on disk."""

    title: str
    """What it shows, in words; also for those who cannot see it."""
    svg: Path
    png: Path
    problem: str | None = None
    """Why it could not be drawn: there are no files then."""


@contextlib.contextmanager
def charts_in(folder: Path, names: Iterable[str]) -> Iterator[list[Chart]]:
    """Draw charts into a folder, all in one style; what is drawn goes into the list.

    Args:
        folder: is made where it does not exist.
        names: patterns of our charts there, without their ending: those no longer drawn go.

    Raises:
        NoChartsError: matplotlib cannot be imported.
        OSError: the folder cannot be written.
    """
    os.environ["MPLBACKEND"] = "agg"  # whatever a notebook or a user's settings name
    try:
        import matplotlib as mpl  # noqa: PLC0415 - reports without charts need none
    except ImportError as error:
        raise NoChartsError(f"matplotlib cannot be imported: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Chart] = []
    with mpl.rc_context(), warnings.catch_warnings():
        # The table beside the chart shows whatever letters the font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()  # the user's own style may need LaTeX, or hide things
        for name, value in STYLE.items():
            mpl.rcParams[name] = value  # type: ignore[index, unused-ignore] # its names are many
        yield drawn
    for chart in drawn:
        if chart.problem:
            warnings.warn(f"{chart.title}: {chart.problem}", stacklevel=3)
    kept = {path for chart in drawn if not chart.problem for path in (chart.svg, chart.png)}
    for name, suffix in itertools.product(names, ("svg", "png")):
        for stale in set(folder.glob(f"{name}.{suffix}")) - kept:
            stale.unlink()


def attempt(draw: Callable[[], Any], path: Path, title: str) -> Chart | None:
    """A chart, drawn and written; None where there is nothing to draw.

    Where it cannot be drawn, which a font or a library may prevent, it is one with the reason: no
    result is lost to that.

    Args:
        draw: gives a figure, or None.
        path: of its files, without their ending.
        title: what it shows.

    Raises:
        OSError: a file cannot be written.
    """
    title = one_line(title, limit=LONGEST_TITLE)
    chart = Chart(
        title=title, svg=path.with_name(f"{path.name}.svg"), png=path.with_name(f"{path.name}.png")
    )
    try:
        figure = draw()
        if figure is None:
            return None
        _entitle(figure, title)
        contents = _contents(figure, chart)
    except Exception as error:  # noqa: BLE001 - a plotting library's faults are many
        problem = f"this chart could not be drawn: {in_words(error)}"
        return msgspec.structs.replace(chart, problem=problem)
    for target, content in contents.items():
        write_atomically(target, content)
    return chart


def _entitle(figure: Any, title: str) -> None:
    """The figure grows by the lines that do not fit into the first."""
    width, height = figure.get_size_inches()
    shown = wrapped(figure, title, TITLE_SIZE, 0.98 * width)
    figure.set_size_inches(width, height + TITLE_LINE * shown.count("\n"))
    figure.suptitle(shown, fontsize=TITLE_SIZE, x=0.01, ha="left")


def _contents(figure: Any, chart: Chart) -> dict[Path, bytes]:
    """Both files; the same figure gives the same bytes."""
    from matplotlib.image import imsave  # noqa: PLC0415 - see ``charts_in``

    picture, drawing = io.BytesIO(), io.BytesIO()
    figure.canvas.draw()  # which also lays it out
    imsave(picture, figure.canvas.buffer_rgba(), format="png", origin="upper", dpi=DPI)
    figure.set_layout_engine(None)  # it has done its work: a format would draw all twice for it
    metadata: dict[str, str | None] = {"Date": None, "Title": chart.title}
    figure.savefig(drawing, format="svg", metadata=metadata)
    # Beside its outline, matplotlib notes each text as it was given.
    text = CONTROL.sub("", drawing.getvalue().decode())
    text = PATH.sub(_shortened, text)
    return {chart.svg: _with_hovers(text).encode(), chart.png: picture.getvalue()}


def _shortened(path: re.Match[str]) -> str:
    """A path cut to hundredths of a point: matplotlib writes millionths, which nobody sees."""
    return DECIMALS.sub(r"\1", path[0])


def tell(artist: Any, text: str) -> None:
    """Have browsers show a text where one points at something that was drawn."""
    artist.set_gid(f"{TOLD}{one_line(text)}")


def _with_hovers(svg: str) -> str:
    numbers = itertools.count(1)
    return TELLING.sub(lambda found: f'<g id="told_{next(numbers)}"><title>{found[1]}</title>', svg)


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Figure and axes that belong to no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see ``charts_in``
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    # With the canvas that draws it as PNG, all texts are measured once for that and the layout.
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


class Looks:
    """Colour by strategy; marker by variant of it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._name = variants(rows)
        self._variants: dict[str, list[str]] = {}
        for row in rows:
            names = self._variants.setdefault(row.case.strategy, [])
            if self.label(row) not in names:
                names.append(self.label(row))
        others = itertools.cycle(OTHERS)
        self._colours = {name: COLOURS.get(name) or next(others) for name in self._variants}
        self.labels = [name for names in self._variants.values() for name in names]

    def label(self, row: Row) -> str:
        """The variant's name, with what must be said of it wherever it is shown."""
        name = one_line(self._name(row.case), limit=LONGEST_NAME)
        return f"{name} (reference)" if REFERENCE in row.flags else name

    def of(self, row: Row) -> tuple[str, str, str]:
        """(label, colour, marker)."""
        label = self.label(row)
        number = self._variants[row.case.strategy].index(label)
        colour = self._colours[row.case.strategy]
        return label, colour, MARKERS[number % len(MARKERS)]


def missing_entries(axes: Any, rows: Sequence[Row], looks: Looks) -> None:
    """Name in the legend what has no point in a chart, with the reason."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        is_measured = row.samples_per_s is not None and not row.is_proved_wrong
        why = "not compared" if is_measured else why_missing(row)
        reasons.setdefault((looks.label(row), why), []).append(row.case.world_size)
    for (label, why), sizes in reasons.items():
        where = ", ".join(f"x{size}" for size in sorted(set(sizes)))
        axes.plot(
            [], [], "x", color="#a00000", markersize=5, linestyle="none",
            label=f"{label} {where}: {why}",
        )  # fmt: skip


def mark_cut(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    """An arrow where an interval goes on beyond the chart, which would else show nothing but it."""
    _, top = axes.get_ylim()
    for place, _ in points:
        axes.annotate(
            "▲", (place, top), (0, -1), textcoords="offset points", ha="center", va="top",
            fontsize=7, color="#333333", annotation_clip=False,
        )  # fmt: skip


def why_missing(row: Row) -> str:
    """Why there is a gap in its place, in few words."""
    if row.is_proved_wrong:
        return "failed its proof"
    return "no figure" if row.status == "ok" else row.status.replace("_", " ")
