"""The launches of a plan in order, and how long they will take.

Every round is one independent launch of each case, in an order shuffled anew, so that a drift of
the machine meets all cases alike.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.plan.case import Case, Pass, PlannedCase
from bench.plan.registry import find_strategy
from bench.records.record import Record
from bench.run.rank import proof_size

LAUNCH_GUESS_S = 3.0
"""Start, set-up and warm-up of a launch, before any has been seen."""
SEARCHED = 10
"""Launches of a search for the largest batch, roughly."""
WITH_WINDOW = frozenset({"timing", "communication"})
"""Passes that go on for as long as the window is."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launch to come."""

    planned: PlannedCase
    pass_: Pass
    launch: int
    round: int = 0
    """Launches of one round share a fork server."""

    @property
    def key(self) -> tuple[str, int, Pass]:
        """The key that its record will have."""
        return (self.planned.case.id, self.launch, self.pass_)


@dataclass(kw_only=True)
class Estimate:
    """How long the rest will take, from what the most similar launches so far took."""

    seen: dict[tuple[str, Pass], list[float]] = field(default_factory=dict)
    restarts: list[float] = field(default_factory=list)
    """Seconds of each restart of the fork server, which a round begins with."""

    def learn(self, record: Record) -> None:
        """Learn from a launch."""
        if record.elapsed_s is not None:
            self.seen.setdefault((record.case.id, record.pass_), []).append(record.elapsed_s)
        if record.restart_s is not None:
            self.restarts.append(record.restart_s)

    def left_s(self, steps: Iterable[Step]) -> float:
        """Seconds that some launches will take one after the other."""
        steps = list(steps)
        servers = {
            (
                step.round if step.pass_ == "timing" else step.pass_,
                environment_key(step.planned.case),
            )
            for step in steps
            if step.pass_ == "timing" or step.planned.case.env
        }
        return sum(map(self._one, steps)) + len(servers) * self.restart_s

    @property
    def restart_s(self) -> float:
        """Of one fork server."""
        return statistics.fmean(self.restarts) if self.restarts else 0.0

    def _one(self, step: Step) -> float:
        own = self.seen.get((step.planned.case.id, step.pass_))
        if own:
            return statistics.fmean(own)
        case = step.planned.case
        launches = SEARCHED if step.pass_ == "max_batch" else 1
        model = f"{case.workload}-{case.preset}"
        alike = [
            (pass_, times) for (id_, pass_), times in self.seen.items() if id_.startswith(model)
        ]
        same_pass = [seconds for pass_, times in alike if pass_ == step.pass_ for seconds in times]
        if same_pass:
            return statistics.fmean(same_pass)
        window_s = step.planned.effort.window.max_s if step.pass_ in WITH_WINDOW else 0.0
        of_model = [seconds for _, times in alike for seconds in times]
        return launches * (statistics.fmean(of_model) if of_model else LAUNCH_GUESS_S) + window_s


def schedule(plan: Sequence[PlannedCase], seed: int, *, traced: bool = False) -> list[Step]:
    """The launches of a plan in order; the same for the same seed.

    Args:
        plan: what to run.
        seed: of the order.
        traced: whether each case is profiled, also one that does not communicate.
    """
    shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
    runnable = [planned for planned in plan if planned.skip_reason is None]
    steps: list[Step] = []

    def visit(pass_: Pass, launch: int, chosen: Iterable[PlannedCase]) -> None:
        turn = [
            Step(planned=planned, pass_=pass_, launch=launch, round=launch) for planned in chosen
        ]
        steps.extend(in_turn(turn, shuffle))

    # A twin shows what noise does to figures of time; all else its original has shown.
    visit("parity", 0, (one for one in runnable if not one.case.twin))
    # Cases with the same reference come one after the other, so that one file is kept at a time.
    steps.sort(key=lambda step: reference_key(step.planned.case))
    for launch in range(max((planned.effort.launches for planned in runnable), default=0)):
        visit("timing", launch, (one for one in runnable if launch < one.effort.launches))
    measured = [planned for planned in runnable if not planned.case.twin]
    explained = [planned for planned in measured if planned.effort.breakdown]
    talking = [one for one in explained if _has_communication(one.case)]
    visit("communication", 0, measured if traced else talking)
    visit("memory", 0, (one for one in explained if _needs_memory_pass(one.case)))
    visit("checkpoint", 0, (one for one in measured if one.effort.checkpoint))
    trained = [one for one in measured if one.effort.train_steps]
    for launch in range(max((planned.effort.launches for planned in trained), default=0)):
        visit("training", launch, (one for one in trained if launch < one.effort.launches))
    visit("max_batch", 0, (one for one in measured if one.effort.find_max_batch))
    return steps


def in_turn(steps: Sequence[Step], shuffle: Callable[[list[Any]], None]) -> list[Step]:
    """Steps of a round in the order in which they are taken: shuffled, by environment.

    Cases with the same variables follow each other, since others need another fork server. The
    environments are shuffled too, so that on average every case stands in the middle of its round.
    """
    shuffled = list(steps)
    shuffle(shuffled)
    groups: dict[str, list[Step]] = {}
    for step in shuffled:
        groups.setdefault(environment_key(step.planned.case), []).append(step)
    keys = sorted(groups)
    shuffle(keys)
    return [step for key in keys for step in groups[key]]


def environment_key(case: Case) -> str:
    """Equal for cases whose processes one fork server can fork."""
    return msgspec.json.encode(case.env, order="deterministic").decode()


def _has_communication(case: Case) -> bool:
    return case.world_size > 1 and find_strategy(case.strategy).communicates


def _needs_memory_pass(case: Case) -> bool:
    """An accelerator's allocator keeps its own peak, and disturbs nothing."""
    return case.device == "cpu"


def further_round(
    wanted: Iterable[PlannedCase],
    launches: Mapping[str, int],
    *,
    round_: int,
    affordable_s: float,
    estimate: Estimate,
) -> list[Step]:
    """One more launch of each case, as far as the time goes.

    Args:
        wanted: cases that need it, the neediest first.
        launches: how many of each there have been.
        round_: number of the round.
        affordable_s: time that is left.
        estimate: of what a launch takes.
    """
    steps: list[Step] = []
    for planned in wanted:
        launch = launches[planned.case.id]
        step = Step(planned=planned, pass_="timing", launch=launch, round=round_)
        if estimate.left_s([*steps, step]) <= affordable_s:
            steps.append(step)
    return steps


def reference_key(case: Case) -> str:
    """Equal for cases that train on the same samples from the same parameters."""
    options, batch = proof_size(case)
    strategy = find_strategy(case.strategy)
    rhythm = strategy.rhythm(strategy.in_few_steps(case.options))
    parts: tuple[Any, ...] = (
        case.env,  # first, so that those of one environment come one after the other
        strategy.reference(case.options),
        strategy.casts(case.options),
        rhythm.settle_steps,
        rhythm.proof_steps,
        case.workload,
        msgspec.to_builtins(options),
        batch,
        case.device,
        case.cores_per_device,
        case.precision,
        case.optimizer,
        case.world_size,
        case.nodes,  # each host makes its own
        case.accumulation_steps,
        case.seed,
    )
    return msgspec.json.encode(parts, order="deterministic").decode()
