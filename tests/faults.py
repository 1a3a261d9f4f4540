"""Every fault that a test injects: the list from which the tests take what they ask for, and from
which ``docs/faults.md`` is made. ``python -m tests.faults`` writes that page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.plan.case import Limits
from bench.records.record import Status

PAGE = Path(__file__).parent.parent / "docs" / "faults.md"
LIMITS = Limits(warm_up_s=4.0, window_s=30.0)
"""Short for what stands still in warm-up, and ample for everything else."""

Who = Literal["A rank", "The parent", "The disk", "The network", "A host", "The machine"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, and what must follow from it."""

    who: Who
    what: str
    status: Status | None
    """Of the row; None where none is concerned."""
    then: str
    exit_code: str = "1"
    """Of the run."""
    shown_by: str


@dataclass(frozen=True, kw_only=True)
class RankFault(Fault):
    """One that the last of two ranks does to itself: a strategy of ``tests.fakes``."""

    who: Who = "A rank"
    strategy: str
    shown_by: str = "test_a_rank_at_fault"
    reason: str | None = None
    """Part of the row's."""
    rank: int | None = 1
    phase: str = "warm-up"
    exception: str | None = None
    signal: str | None = None
    code: int | None = None
    traceback: str = ""
    """Part of the fault's."""
    flags: tuple[str, ...] = ()
    teardown_exit: Mapping[str, int] = field(default_factory=dict)


RANK_FAULTS = (
    RankFault(
        strategy="RAISE",
        what="raises an exception",
        status="failed",
        reason="rank 1 of 2, in warm-up: ValueError: deliberate: red | pipe",
        exception="ValueError",
        traceback="in _raise",
        then="The exception and the end of its traceback are the reason; what the others say of"
        " their lost connections is not.",
    ),
    RankFault(
        strategy="EXIT",
        what="exits with a code",
        status="failed",
        reason="the process ended with exit code 17 and no result",
        code=17,
        then="The exit code is the reason.",
    ),
    RankFault(
        strategy="QUIET",
        what="exits with code 0 and no result",
        status="failed",
        reason="the process ended with exit code 0 and no result",
        code=0,
        then="As above; the others, which wait for it, are ended after 5 s.",
    ),
    RankFault(
        strategy="KILL",
        what="is killed: SIGKILL, as by the system when memory runs out",
        status="failed",
        reason="the process was ended by SIGKILL",
        signal="SIGKILL",
        then="The signal is the reason.",
    ),
    RankFault(
        strategy="SEGV",
        what="reads memory that is not there: SIGSEGV",
        status="failed",
        reason="the process was ended by SIGSEGV",
        signal="SIGSEGV",
        traceback="in _read_nothing",
        then="The signal is the reason, with the Python stack at that moment.",
    ),
    RankFault(
        strategy="BUS",
        what="reads beyond the end of a mapped file: SIGBUS",
        status="failed",
        reason="the process was ended by SIGBUS",
        signal="SIGBUS",
        traceback="in _read_beyond_the_end",
        then="As above.",
    ),
    RankFault(
        strategy="ALLOCATE",
        what="asks for more memory than a limit allows",
        status="out_of_memory",
        reason="can't allocate memory",
        exception="RuntimeError",
        then="The allocator's words are the reason.",
    ),
    RankFault(
        strategy="OUT_OF_MEMORY",
        what="gets an accelerator's error that memory is used up",
        status="out_of_memory",
        reason="OutOfMemoryError: CUDA out of memory",
        exception="OutOfMemoryError",
        then="As above.",
    ),
    RankFault(
        strategy="STALL",
        what="stands still in a system call",
        status="timeout",
        reason="the limit of this phase is 4 s",
        traceback="in misbehave",
        then="The launch ends at the limit of the phase. The rank that does not wait for others is"
        " named; the Python stacks of all ranks are in the log's tail.",
    ),
    RankFault(
        strategy="SPIN",
        what="stands still in Python code",
        status="timeout",
        reason="the limit of this phase is 4 s",
        traceback="in _spin",
        then="As above.",
    ),
    RankFault(
        strategy="RECEIVE",
        what="stands still in a collective",
        status="timeout",
        reason="the limit of this phase is 4 s",
        traceback="in recv",
        then="As above; where all ranks wait, the one that has completed fewer steps is named, and"
        " where that is equal, none.",
    ),
    RankFault(
        strategy="MORE",
        what="trains one step more than the others",
        status="failed",
        reason="Is there a distributed collective mismatch in your code?",
        exception="RuntimeError",
        then="Over gloo the collectives that meet do not match, and one side aborts: the words of"
        " both are the reason.",
    ),
    RankFault(
        strategy="SHAPE",
        what="has a parameter of another shape",
        status="failed",
        reason="params[27] in this process with sizes [65]",
        phase="set-up",
        exception="RuntimeError",
        then="DDP's own check is the reason.",
    ),
    RankFault(
        strategy="NAN",
        what="computes a loss that is no number",
        status="ok",
        rank=None,
        flags=("loss_not_finite",),
        exit_code="0",
        then="The row is flagged `loss_not_finite`. The loss is looked at after the window.",
    ),
    RankFault(
        strategy="THREADS",
        what="leaves threads that never end",
        status="ok",
        rank=None,
        exit_code="0",
        then="The process is ended 2 s after its work.",
    ),
    RankFault(
        strategy="CHILDREN",
        what="leaves child processes, in its session and in another, and orphans",
        status="ok",
        rank=None,
        exit_code="0",
        then="They are killed when the launch is over (Linux).",
    ),
    RankFault(
        strategy="FLOOD",
        what="prints 100 MB",
        status="failed",
        reason="ValueError: after the flood",
        exception="ValueError",
        then="Only the log's end is read. The beginning of a log that grows beyond 64 MiB is given"
        " back to the disk (Linux).",
    ),
    RankFault(
        strategy="RUBBISH",
        what="prints binary rubbish and a line of a megabyte",
        status="failed",
        reason="ValueError: after the rubbish",
        exception="ValueError",
        then="The log's tail has neither control characters nor lines of more than 500 characters.",
    ),
    RankFault(
        strategy="HANDLES",
        what="runs out of file handles",
        status="failed",
        reason="exit code 1 and no result: OSError: [Errno 24] Too many open files",
        phase="done",
        exception="OSError",
        code=1,
        then="What it can no longer hand over is read from its log.",
    ),
    RankFault(
        strategy="STORE",
        what="loses the store that the ranks meet at",
        who="The network",
        status="failed",
        reason="DistNetworkError: Broken pipe",
        phase="set-up",
        exception="DistNetworkError",
        then="The rank that noticed is named. Nothing is tried again once all have joined.",
    ),
    RankFault(
        strategy="ABORT",
        what="aborts while it takes its group apart, its result handed over",
        status="ok",
        rank=None,
        teardown_exit={"1": -6},
        exit_code="0",
        then="The result stays, and `teardown_exit` has the exit code.",
    ),
    RankFault(
        strategy="SERVER",
        what="is killed together with the fork server",
        who="The parent",
        status="failed",
        reason="the fork server that starts all processes was killed, and they with it",
        rank=None,
        then="One row is lost; the next launch starts another server.",
    ),
    RankFault(
        strategy="SLOW",
        what="is merely slow",
        status="ok",
        rank=None,
        exit_code="0",
        then="Nothing: the limit of the window follows from how long warm-up took.",
    ),
)

OTHER_FAULTS = (
    Fault(
        who="A rank",
        what="stands still longer than a whole launch may take",
        status="timeout",
        then="The launch ends at `timeout_s`; as for a phase.",
        shown_by="test_a_stuck_launch_ends_at_its_limit_with_the_stacks_of_its_ranks",
    ),
    Fault(
        who="A rank",
        what="fails in any of these ways within a suite",
        status="failed",
        then="The other cases run, and every one has its rows.",
        shown_by="test_faults_cost_a_suite_their_own_rows_and_no_other",
    ),
    Fault(
        who="The parent",
        what="gets SIGINT, SIGTERM or SIGHUP (Ctrl-C, a batch system, a terminal that closes)",
        status="interrupted",
        exit_code="130, 143, 129",
        then="All processes end, the running case has a row, the report is written; `--resume`"
        " goes on.",
        shown_by="test_a_signal_ends_the_run_with_a_row",
    ),
    Fault(
        who="The parent",
        what="gets further signals while it tidies up",
        status="interrupted",
        exit_code="130",
        then="The first one counts; the rest changes nothing.",
        shown_by="test_further_signals_do_not_disturb_the_tidying",
    ),
    Fault(
        who="The parent",
        what="is killed: SIGKILL",
        status=None,
        exit_code="137",
        then="Fork server and ranks die with it within 5 s (Linux). The rows before are on the"
        " disk. Its temporary folder is removed by the next run.",
        shown_by="test_workers_die_with_a_launcher_that_is_killed",
    ),
    Fault(
        who="The parent",
        what="loses the terminal, or whoever read its output",
        status="ok",
        exit_code="0",
        then="The run goes on to its end, and the report is written.",
        shown_by="test_a_run_whose_reader_is_gone_goes_on",
    ),
    Fault(
        who="The parent",
        what="runs out of file handles",
        status="failed",
        then="The row says so; when there are handles again, the next launch is well.",
        shown_by="test_a_parent_without_file_handles_fails_the_launch_and_not_the_next",
    ),
    Fault(
        who="The disk",
        what="is full when a row is written",
        status=None,
        then="The run ends with one line. The rows before are whole, and `--resume` goes on.",
        shown_by="test_a_full_disk_ends_the_run_in_one_line",
    ),
    Fault(
        who="The disk",
        what="loses the results folder during the run",
        status=None,
        then="The run ends with one line.",
        shown_by="test_a_folder_that_is_removed_is_noticed",
    ),
    Fault(
        who="The disk",
        what="can only be read",
        status=None,
        exit_code="2",
        then="Nothing is started; if it becomes so during the run, as where it is full.",
        shown_by="test_a_disk_that_can_only_be_read_is_refused",
    ),
    Fault(
        who="The disk",
        what="holds a records file that was cut in the middle of a line",
        status=None,
        exit_code="0",
        then="The part is left out, and `--resume` runs its case again.",
        shown_by="test_resuming_runs_only_what_is_missing",
    ),
    Fault(
        who="The disk",
        what="gets two runs into one folder",
        status=None,
        exit_code="2",
        then="The second one is refused.",
        shown_by="test_only_one_writer_and_never_over_other_results",
    ),
    Fault(
        who="The disk",
        what="holds a run of a suite that has changed since",
        status=None,
        exit_code="2",
        then="`--resume` is refused; the line names the fields, and their old and new values.",
        shown_by="test_a_suite_that_has_changed_is_not_gone_on_with",
    ),
    Fault(
        who="The network",
        what="has the port taken that `MASTER_PORT` names",
        status="ok",
        exit_code="0",
        then="Nothing: the system picks a free port.",
        shown_by="test_ports_that_others_hold_do_not_matter",
    ),
    Fault(
        who="The network",
        what="fails before every rank has joined, and not for good",
        status="ok",
        exit_code="0",
        then="The launch is tried again, twice at most; `retries` has the reasons. What has begun"
        " to measure is never run again.",
        shown_by="test_a_start_that_fails_in_passing_is_tried_again",
    ),
    Fault(
        who="The network",
        what="has no interface of the name that `GLOO_SOCKET_IFNAME` gives",
        status="failed",
        then="Gloo's words are the reason.",
        shown_by="test_an_interface_that_does_not_exist_is_named",
    ),
    Fault(
        who="The network",
        what="cannot resolve the machine's own name",
        status="ok",
        exit_code="0",
        then="Nothing: one machine needs no name.",
        shown_by="test_a_machine_whose_name_nobody_knows",
    ),
    Fault(
        who="A host",
        what="of several never comes",
        status=None,
        exit_code="2",
        then="After `join_timeout` those that came say which node is missing; nothing is measured.",
        shown_by="test_a_host_that_never_comes",
    ),
    Fault(
        who="A host",
        what="has another suite, version or number of devices than node 0",
        status=None,
        exit_code="2",
        then="All hosts say what differs, and on which; nothing is measured.",
        shown_by="test_hosts_that_differ",
    ),
    Fault(
        who="A host",
        what="finds the rendezvous' port taken",
        status=None,
        exit_code="2",
        then="One line names the port; nothing is measured.",
        shown_by="test_a_port_that_is_taken",
    ),
    Fault(
        who="A host",
        what="is killed in mid-run",
        status="failed",
        then="The row names it, and so do those of all later cases that need it, which are not"
        " started; cases of other hosts go on. Its ranks die with it.",
        shown_by="test_a_host_that_is_killed_costs_its_rows_and_no_others",
    ),
    Fault(
        who="A host",
        what="is cut off from the others",
        status="failed",
        then="As above, once its kernel has not answered for 20 s.",
        shown_by="test_a_link_that_is_cut_ends_in_words",
    ),
    Fault(
        who="A host",
        what="has a rank at fault",
        status="failed",
        then="One row names rank, host and exception; the run goes on on all hosts.",
        shown_by="test_a_fault_on_one_host_is_one_row",
    ),
    Fault(
        who="A host",
        what="that is emulated loses the laboratory that made it: SIGKILL",
        status=None,
        exit_code="137",
        then="It dies, and its ranks. `bench lab clean` finds the namespaces by their names.",
        shown_by="test_what_a_killed_laboratory_has_left_is_found_by_name",
    ),
    Fault(
        who="The machine",
        what="sets its clock back",
        status="ok",
        exit_code="0",
        then="Nothing: whatever is measured or limited goes by clocks that only go forward.",
        shown_by="test_a_clock_that_is_set_back",
    ),
)

FAULTS: tuple[Fault, ...] = (*RANK_FAULTS, *OTHER_FAULTS)

HEAD = """\
# Faults

Whatever happens, every planned case ends as a row that says why, and nothing outlives the run. Each
fault below is injected for real by the test named, on two processes that talk over gloo. This page
is made from the tests' own list by `python -m tests.faults`.

- **Status** is the row's. `fault` in the record has the rank at fault, the phase and step it was
  in, the type of its exception or the signal or exit code that ended it, and the end of its
  traceback.
- **Exit code** is the run's, if nothing else happens in it.
- A launch that must be ended ends within its limit and 5 s. `timeout_s` is the limit of a launch;
  `limits` has those of its phases: `start_s`, `set_up_s`, `compile_s`, `warm_up_s`, `window_s` and
  `window_factor` (a window may take the factor times what warm-up promised, and `window_s` more),
  `pass_s` for each other phase. Both are settings of a suite like `window`. Where a model is
  compiled, the launch and each phase in which that may happen get `compile_s` on top: ranks compile
  at different speed, and wait for each other meanwhile.
- After each launch no process, port, shared memory or temporary file of it is left.
"""


def page() -> str:
    """``docs/faults.md``."""
    return HEAD + "".join(_tables())


def _tables() -> Iterator[str]:
    for who in dict.fromkeys(fault.who for fault in FAULTS):
        yield f"\n## {who}\n\n| {who.lower()} ... | status | what happens | exit code | test |\n"
        yield "|---|---|---|---|---|\n"
        for one in FAULTS:
            if one.who == who:
                status = f"`{one.status}`" if one.status else "–"
                yield (
                    f"| {one.what} | {status} | {one.then} | {one.exit_code} | `{one.shown_by}` |\n"
                )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
