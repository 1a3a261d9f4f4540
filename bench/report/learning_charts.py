"""Charts of training: the loss over steps, and over seconds. Needs matplotlib."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from bench.analyze.learning import smoothed
from bench.analyze.rows import Row
from bench.report.drawing import Looks, new_figure, tell
from bench.report.lettering import add_legend

Over = Literal["steps", "seconds"]
LINES = ("-", "--", "-.", ":")
"""By number of devices, the most of them drawn through."""
MOST_LINES = 16
"""That can be told apart."""


def losses_figure(rows: Sequence[Row], over: Over) -> Any:
    """A line a row, averaged over some steps, and its plain losses faint behind it.

    Over seconds, each step stands at the median of the launches.
    """
    shown = [row for row in rows if row.training and not row.is_proved_wrong]
    if not shown or len(shown) > MOST_LINES:
        return None
    looks = Looks(rows)
    sizes = sorted({row.case.world_size for row in shown}, reverse=True)
    figure, axes = new_figure(6.4, 4.2)
    for row in shown:
        label, colour, _ = looks.of(row)
        losses = row.training[0].losses
        places = _places(row, over)
        name = f"{label} x{row.case.world_size}"
        style = LINES[sizes.index(row.case.world_size) % len(LINES)]
        raw = [math.nan if one is None else one for one in losses]
        axes.plot(places, raw, color=colour, linewidth=0.6, alpha=0.2)
        curve = [one if math.isfinite(one) else math.nan for one in smoothed(losses)]
        (line,) = axes.plot(places, curve, style, color=colour, linewidth=1.4, label=name)
        tell(line, f"{name}: {curve[-1]:.3g} after {len(losses)} steps")
    for loss in {one for row in shown if (one := row.training[0].constant_loss) is not None}:
        axes.axhline(loss, color="#777777", linewidth=1, linestyle=":", label="constant prediction")
    axes.set_xlabel("optimizer steps" if over == "steps" else "seconds of steps")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def _places(row: Row, over: Over) -> list[float]:
    if over == "steps":
        return [float(step) for step in range(1, len(row.training[0].losses) + 1)]
    return [statistics.median(times) for times in zip(*(o.at_s for o in row.training), strict=True)]
