"""One run on one rank: set up, train to the stop rule between windows, say how it went."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from phantom_core.plan import PlannedArm
from phantom_core.protocol import (
    AssignedRun,
    Carried,
    Metrics,
    Payload,
    Reason,
    RunOutcome,
    RunStarted,
)
from phantom_core.spec import MeasurementSpec
from phantom_core.stopping import decide, next_interval
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer
from ray_jobs import patience, steady
from ray_jobs.checkpoints import Checkpoints, Reached
from ray_jobs.headway import Headway
from ray_jobs.ranks import Team
from ray_jobs.run_report import Ending, Failure, MeasuredCosts, first_line, outcome_of
from ray_jobs.run_state import State
from ray_jobs.spent import Spent
from ray_jobs.window_clock import PeerFailed, WindowClock

log = logging.getLogger(__name__)


class ArmRun:
    """One arm in one round, as one of its ranks makes it."""

    def __init__(
        self,
        run: AssignedRun,
        planned: PlannedArm,
        measurement: MeasurementSpec,
        dataset: Dataset,
        *,
        team: Team,
        clock: WindowClock,
        reads_meter: bool,
        device: torch.device,
        checkpoints: Checkpoints,
        emit: Callable[[Payload], object],
        headway: Headway | None = None,
    ) -> None:
        """Args.

        run: Which run it is.
        planned: The arm.
        measurement: Warm-up and windows.
        dataset: The task's rows.
        team: The ranks of the arm.
        clock: Opens windows.
        reads_meter: Whether this rank reads a device.
        device: Where this rank computes.
        checkpoints: Keep what the run has reached.
        emit: Stores one event of this run.
        headway: Is told what this rank does between windows; None if nobody asks for it.
        """
        self._run = run
        self._planned = planned
        self._measurement = measurement
        self._dataset = dataset
        self._team = team
        self._clock = clock
        self._reads_meter = reads_meter
        self._device = device
        self._checkpoints = checkpoints
        self._carried: tuple[Carried, ...] = ()
        self._emit = emit
        self._headway = headway or Headway()
        self._training = Spent(reads_meter)
        """This rank's own; `_state` has all ranks'."""
        self._steady = Spent()
        """All ranks'."""
        self._state = State()
        self._trainer: Trainer | None = None
        self.alarmed = False
        """Whether a rank of the arm failed, which ends its compute group; known when the run was made."""

    def make(self) -> RunOutcome:
        """Makes the run and reports how it ended; what only concerns this arm is not raised.

        What goes wrong inside a window is voted on there, so that all ranks give up together and go on to the
        next run. What goes wrong elsewhere on one rank (its disk is full, say) leaves the others waiting: it
        is raised, which ends the worker group.
        """
        self._emit_once(RunStarted(ranks=self._team.size))
        outcome: RunOutcome = "failed"
        failure: Failure | None = None
        message: str | None = None
        try:
            self._set_up()
            outcome, message = self._train()
            if outcome == "succeeded":
                self._hold_steady()
        except PeerFailed as error:
            outcome = "failed"
            log.info("%s", error)
        except torch.OutOfMemoryError as error:
            self._together(error)
            failure = self._failure(Reason.OUT_OF_MEMORY, first_line(error))
        except Exception as error:
            self._together(error)
            log.exception("run %s failed", self._run.run_id)
            failure = self._failure(Reason.ARM_ERROR, f"{type(error).__name__}: {first_line(error)}")
        self._headway.enter("the agreement of all ranks on how the run ended")
        failures = [told for told in self._team.gather(failure) if told is not None]
        costs = self._team.gather(MeasuredCosts.of(self._trainer))
        if failures:
            self.alarmed = True
            outcome = "failed"
        ending = Ending(outcome, failures, message, costs, self._carried)
        self._emit_once(ending.told(self._planned, self._dataset, self._state, self._trainer))
        self._headway.enter("the end of the run")
        self._headway.watch(None)
        self._checkpoints.forget()
        if self._trainer is not None:
            self._trainer.close()
        return outcome

    @property
    def figure_mj(self) -> float | None:
        """What comparisons rest on, as far as ranks can tell; None if it is not known well enough."""
        return steady.figure_mj(self._planned.training.stop, self._state, self._steady)

    def _together(self, error: Exception) -> None:
        if not self._clock.peers_know(error):
            raise error

    def _failure(self, reason: Reason, what: str) -> Failure:
        return Failure(reason, f"rank {self._team.rank}: {what}", self._clock.failed_at_s or time.time())

    def _set_up(self) -> None:
        # Two windows, since what fails on one rank alone mostly fails here (its device is too small), and
        # its peers would wait for it in the first collective of the warm-up.
        with self._clock.window("setup", patience.UNKNOWN_S):
            trainer = self._trainer = Trainer(
                self._planned,
                self._dataset,
                group=self._team.compute,
                device=self._device,
                seed=self._run.seed,
            )
        self._headway.watch(lambda: trainer.enqueued)
        with self._clock.window("setup", patience.UNKNOWN_S):
            trainer.prepare(self._measurement.warmup_steps)
        reached = self._checkpoints.latest()  # not in a window, where ranks may part ways
        if reached is not None:
            with self._clock.window("setup", patience.UNKNOWN_S):
                self._go_on(reached)

    def _go_on(self, reached: Reached) -> None:
        """Takes up an earlier attempt at the end of one of its windows, with what it had spent until then."""
        self._ready.load_state_dict(reached.trainer)
        self._carried = reached.carried
        self._training = reached.own
        self._state = State(reached.step, reached.spent, reached.train_loss, reached.evaluation_loss)
        windows = reached.spent.windows
        self._clock.go_on({"training": windows, "evaluation": windows + 1})

    @property
    def _step_s(self) -> float | None:
        """Seconds of a step, as far as is known."""
        state = self._state
        return state.training_s / state.step if state.step else self._ready.warm_step_s

    def _save(self) -> None:
        state = self._state
        windows = state.spent.windows
        self._headway.enter("the copy of its state to the host", patience.UNKNOWN_S)
        self._checkpoints.save(
            Reached(
                step=state.step,
                spent=state.spent,
                own=self._training,
                train_loss=state.train_loss,
                evaluation_loss=state.evaluation_loss,
                carried=(
                    *self._carried,
                    Carried(attempt=self._run.attempt, windows=windows, steps=state.step),
                ),
                trainer=self._ready.state_dict(),
            )
        )

    def _train(self) -> tuple[RunOutcome, str | None]:
        trainer = self._ready
        rule = self._planned.training.stop
        if not self._carried:
            self._evaluate()
        while True:
            stop = decide(rule, self._state.for_stop_rule)
            if stop is not None:
                return outcome_of(stop), stop.message
            steps = next_interval(rule, self._planned.training.evaluation_interval, self._state.step)
            with self._clock.window(
                "training", patience.for_steps(steps, self._step_s, trainer.step_mode)
            ) as window:
                window.steps = steps
                window.samples = steps * self._planned.training.batch_size
                trainer.run(steps)
            self._headway.enter("the agreement of all ranks on energy and loss")
            self._training = self._training.and_window(window)
            self._agree_on(steps, float(trainer.losses().double().mean()))
            self._evaluate(follows=True)
            if self._checkpoints.is_due():
                self._save()

    def _agree_on(self, steps: int, train_loss: float) -> None:
        """Sums energy over the arm's devices; time and loss are rank 0's, so that all ranks decide alike."""
        self._state = replace(
            self._state,
            step=self._state.step + steps,
            spent=Spent.by_all(self._team.gather(self._training)),
            train_loss=self._team.from_first(train_loss),
        )

    def _evaluate(self, *, follows: bool = False) -> None:
        rows, batch_size = len(self._dataset.validation_features), self._planned.training.batch_size
        may_take_s = patience.for_rows(rows, batch_size, self._step_s)
        with self._clock.window("evaluation", may_take_s, follows=follows) as window:
            window.samples = rows
            loss = self._ready.evaluate()
        self._state = replace(self._state, evaluation_loss=self._team.from_first(loss))
        self._emit_once(Metrics(points=self._state.points))

    def _hold_steady(self) -> None:
        """Adds steps in windows of their own where training can't tell joules per step well enough."""
        state, mine = self._state, Spent(self._reads_meter)
        if state.step == 0:
            return
        step_s = state.training_s / state.step
        for _ in range(steady.MOST_WINDOWS):
            wanted_s = steady.wanted_s(self._measurement, state.spent, self._steady)
            if wanted_s <= 0:
                return
            steps = math.ceil(steady.with_margin_s(wanted_s, self._measurement) / max(step_s, 1e-6))
            with self._clock.window(
                "steady", patience.for_steps(steps, step_s, self._ready.step_mode)
            ) as window:
                window.steps = steps
                window.samples = steps * self._planned.training.batch_size
                self._ready.run(steps)
            mine = mine.and_window(window)
            self._steady = Spent.by_all(self._team.gather(mine))
            # The machine was slower while training, or the clocks have risen.
            step_s = self._steady.seconds / self._steady.steps

    def _emit_once(self, payload: Payload) -> None:
        if self._team.rank == 0:
            self._emit(payload)

    @property
    def _ready(self) -> Trainer:
        assert self._trainer is not None, "training comes after set-up"
        return self._trainer
