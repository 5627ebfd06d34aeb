"""What is shown while an experiment is waited for: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from client.figures import number, quantity
from client.models import Experiment, Run, Timings
from client.tables import STATE_STYLES, run_counts

PHASES = {
    "queued": "waiting for its turn",
    "cluster": "waiting for the cluster to take the job up",
    "start_up": "starting the worker group (every rank loads PyTorch)",
    "set_up": "measuring idle power and setting the first run up",
    "runs": "running",
}
"""What a person is waiting for, by phase."""


class Waiting:
    """A line that says what is being waited for, and how long already; a context manager."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._began = clock()
        self._last = ""
        self._live: Progress | None = None
        if console.is_terminal:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._live.add_task("", total=None, count="")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(
        self,
        text: str,
        *,
        done: int | None = None,
        total: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Shows what is being waited for; elsewhere than on a terminal only when `text` changed.

        Args:
            text: One line.
            done: How many of `total` are done; None if that isn't known.
            total: Of how many.
            seconds: How long this has been so; only shown where it can be kept up to date.
        """
        count = f"{done}/{total}" if done is not None and total is not None else ""
        if self._live is not None:
            lasting = "" if seconds is None else f" ({seconds:.0f} s)"
            self._live.update(
                self._task, description=text + lasting, completed=done or 0, total=total, count=count
            )
        elif text != self._last:
            self._last = text
            self.note(Text(text))

    def note(self, text: Text) -> None:
        """Leaves a line behind, with the time since the beginning."""
        seconds = int(self._clock() - self._began)
        self.console.print(Text(f"[{seconds // 60:02d}:{seconds % 60:02d}] ", "dim") + text, soft_wrap=True)


class ExperimentProgress:
    """Follows one experiment: its state on the live line, every run that ended as a line left behind."""

    def __init__(self, waiting: Waiting, list_runs: Callable[[str], list[Run]]) -> None:
        """Says where to show it.

        Args:
            waiting: The line.
            list_runs: Gives an experiment's runs; asked only when another run has ended.
        """
        self._waiting = waiting
        self._list_runs = list_runs
        self._shown: set[str] = set()
        self._state = ""
        self._told_wait: int | None = None

    def update(self, experiment: Experiment) -> None:
        """Shows the experiment as it is now."""
        if experiment.state != self._state:
            self._state = experiment.state
            self._waiting.note(Text("experiment ") + state_text(experiment))
        ended, total = run_counts(experiment)
        if ended > len(self._shown):
            new = [
                run for run in self._list_runs(experiment.id) if run.is_terminal and run.id not in self._shown
            ]
            self._shown.update(run.id for run in new)
            for alike in _alike(run for run in new if run.state != "skipped"):
                self._waiting.note(run_text(alike[0]))
                if len(alike) > 1:
                    self._waiting.note(
                        Text(f"{len(alike) - 1} more runs {alike[0].state} for the same reason")
                    )
            skipped = [run for run in new if run.state == "skipped"]
            if skipped:
                self._waiting.note(Text(f"{len(skipped)} runs not needed: {skipped[0].message}"))
        if not experiment.is_terminal:
            phase = experiment.phase.name
            stage = PHASES.get(phase, experiment.state)
            if phase == "runs":
                stage = experiment.progress or stage
                self._tell_wait(experiment)
            elif experiment.message:
                stage = f"{stage}: {experiment.message}"
            self._waiting.say(stage, done=ended, total=total, seconds=experiment.phase.elapsed_s)

    def _tell_wait(self, experiment: Experiment) -> None:
        """Where the time before the first step went, once for every attempt."""
        if self._told_wait == experiment.attempt:
            return
        self._told_wait = experiment.attempt
        self._waiting.note(Text("first step: ") + Text(wait_text(experiment.timings)))


def _alike(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs that ended badly for one reason together, in the order of their first; each of the others by itself."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        why = run.id if run.state == "succeeded" else (run.state, run.reason, run.message)
        found.setdefault(why, []).append(run)
    return list(found.values())


def wait_text(timings: Timings) -> str:
    """Seconds from submission to the first step, and what they went into."""
    parts = {
        "queued": timings.queued_s,
        "cluster": timings.cluster_s,
        "start-up": timings.start_up_s,
        "set-up": timings.set_up_s,
    }
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in known.items())
    return f"{sum(known.values()):.1f} s after submission ({told})"


def state_text(experiment: Experiment) -> Text:
    """An experiment's state, with the reason where it ended badly."""
    text = Text(experiment.state, STATE_STYLES.get(experiment.state, ""))
    why = ": ".join(part for part in (experiment.reason, experiment.message) if part)
    return text + Text(f" ({why})" if why else "")


def run_text(run: Run) -> Text:
    """One ended run on one line: energy and seconds to the target where it was reached, else of training."""
    text = Text(f"round {run.round + 1}  {run.arm}  ") + Text(run.state, STATE_STYLES.get(run.state, ""))
    if run.state != "succeeded":
        return text + Text(f": {run.message or run.reason or 'no reason given'}")
    to_target = run.energy_to_target_mj is not None
    name = "energy_to_target_mj" if to_target else "energy_training_mj"
    energy = run.energy_to_target_mj if to_target else run.energy_training_mj
    seconds = run.seconds_to_target if to_target else run.training_s
    what = "to the target" if to_target else "of training"
    label = " (estimate)" if run.method == "estimate" and energy is not None else ""
    per_step = quantity("energy_per_step_mj", run.energy_per_step_mj)
    more = "" if run.energy_per_step_mj is None else f", {per_step} J per step"
    return text + Text(f"  {quantity(name, energy)} J{label} and {number(seconds)} s {what}{more}")
