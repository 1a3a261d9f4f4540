"""Made launches: figures of rows under three kinds of noise, whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from bench.analyze.launches import Launch, counted

SIGMA = 0.02
"""Standard deviation of a launch, relative."""
SLOW_SHARE, SLOW_BY = 0.1, 8.0
"""One launch in ten is eight standard deviations slow."""
DRIFT = 2.0
"""Standard deviations that the machine loses from a run's first launch to its last."""
MOST = 20
"""Launches of a row."""

Generator = np.random.Generator
Figures = list[list[float]]
"""Per row, one figure per launch."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of noise.

    ``draw(random, rows, rounds)`` gives logarithms of figures, rows x rounds, about 0.
    """

    name: str
    draw: Callable[[Generator, int, int], np.ndarray]
    drifts: bool = False
    watched: int | None = None
    """Rows, the first, whose coverage is asked; None for all."""
    truth: float = 0.0
    """Median of a launch's logarithm, which a row's figure means to be."""


def _normal(random: Generator, rows: int, rounds: int) -> np.ndarray:
    return random.normal(0, SIGMA, (rows, rounds))


def _heavy(random: Generator, rows: int, rounds: int) -> np.ndarray:
    slow = random.random((rows, rounds)) < SLOW_SHARE
    noise: np.ndarray = _normal(random, rows, rounds) - slow * SLOW_BY * SIGMA
    return noise


def _drift(random: Generator, rows: int, rounds: int) -> np.ndarray:
    noise: np.ndarray = _normal(random, rows, rounds) + drift_line(rounds)
    return noise


def drift_line(rounds: int) -> np.ndarray:
    """What the drift adds to each round."""
    line: np.ndarray = np.linspace(0.5, -0.5, rounds) * DRIFT * SIGMA
    return line


def _uneven(random: Generator, rows: int, rounds: int) -> np.ndarray:
    """Rows that differ in their scatter, half of them by more than a factor of two."""
    scatter: np.ndarray = np.exp(random.normal(0, 0.7, (rows, 1)))
    noise: np.ndarray = _normal(random, rows, rounds) * scatter
    return noise


def _mixture_median() -> float:
    """Where (1 - share) of a normal distribution has half of the whole's mass above it."""
    return float(ndtri((0.5 - SLOW_SHARE) / (1 - SLOW_SHARE))) * SIGMA


NORMAL = Kind(name="normal, 2 %", draw=_normal)
HEAVY = Kind(name="one launch in ten 8 sd slow", draw=_heavy, truth=_mixture_median())
DRIFTING = Kind(name="drift by 2 sd over the run", draw=_drift, drifts=True)


def _odd(random: Generator, rows: int, rounds: int) -> np.ndarray:
    """One row scatters by 5 %, all others by 2 %."""
    scatter = np.ones((rows, 1))
    scatter[0] = 2.5
    noise: np.ndarray = _normal(random, rows, rounds) * scatter
    return noise


def _rounds(random: Generator, rows: int, rounds: int) -> np.ndarray:
    """Rounds that move all their launches alike, by half as much as launches scatter."""
    noise: np.ndarray = _normal(random, rows, rounds) + random.normal(0, SIGMA / 2, rounds)
    return noise


def _uneven_drift(random: Generator, rows: int, rounds: int) -> np.ndarray:
    noise: np.ndarray = _uneven(random, rows, rounds) + drift_line(rounds)
    return noise


UNEVEN = Kind(name="normal, rows unlike in scatter", draw=_uneven)
ODD = Kind(name="the one row of 24 at 5 %", draw=_odd, watched=1)
ROUNDS = Kind(name="rounds that move all alike, 1 %", draw=_rounds)
UNEVEN_DRIFT = Kind(name="drift, rows unlike in scatter", draw=_uneven_drift, drifts=True)
PROMISED = (NORMAL, HEAVY, DRIFTING)
KINDS = (*PROMISED, UNEVEN, ODD, ROUNDS, UNEVEN_DRIFT)


def figures(logs: np.ndarray) -> Figures:
    """Figures, all positive, of an array of logarithms."""
    return [[math.exp(value) for value in row] for row in logs]


def launches(rows: Sequence[Sequence[float]]) -> dict[str, list[Launch]]:
    """Launches made round by round: the round is the time."""
    return {
        str(number): [
            Launch(at=float(at), round=at, figure=figure) for at, figure in enumerate(row)
        ]
        for number, row in enumerate(rows)
    }


def counting(rows: Sequence[Sequence[float]]) -> Figures:
    """The figures that count."""
    return list(counted(launches(rows)).values())
