"""One run on one rank: set up, train to the stop rule between windows, say how it went."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from phantom_core.cost import arm_cost
from phantom_core.flags import blocking
from phantom_core.meters.windows import window_flags
from phantom_core.plan import PlannedArm
from phantom_core.protocol import (
    AssignedRun,
    Carried,
    MetricPoint,
    Metrics,
    Payload,
    Reason,
    RunFinished,
    RunOutcome,
    RunStarted,
)
from phantom_core.spec import MeasurementSpec
from phantom_core.stopping import Stop, StopReason, StopState, decide, next_interval
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer
from ray_jobs import patience
from ray_jobs.checkpoints import Checkpoints, Reached
from ray_jobs.headway import Headway
from ray_jobs.ranks import Team
from ray_jobs.spent import Spent
from ray_jobs.window_clock import PeerFailed, WindowClock

log = logging.getLogger(__name__)

STEADY_MARGIN = 0.1
"""Share of their minimum by which steady windows are aimed above it, since the step time is only known roughly."""
MOST_STEADY_WINDOWS = 5
"""Tries to make one long enough, where steps become quicker meanwhile; their steps and energies are added up."""
LONGEST_STEADY_S = 600.0
"""No steady window is aimed at more, whatever precision was asked for."""


@dataclass(frozen=True)
class Failure:
    """Why a rank could not go on."""

    reason: Reason
    message: str
    at_s: float
    """When, in seconds since 1970: the others fail later, of waiting for the first."""


@dataclass(frozen=True)
class MeasuredCosts:
    """What one rank's trainer counted; None where it could not."""

    peak_memory_bytes: int | None
    bytes_sent_per_step: int | None


@dataclass(frozen=True)
class State:
    """What all ranks of the arm know of the training so far."""

    step: int = 0
    spent: Spent = field(default_factory=Spent)
    """In the training windows."""
    train_loss: float | None = None
    evaluation_loss: float | None = None

    @property
    def training_s(self) -> float:
        """Seconds of the training windows."""
        return self.spent.seconds

    @property
    def energy_mj(self) -> float | None:
        """Millijoules of the training windows over the arm's devices; None if unknown."""
        return self.spent.energy_mj


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
            failure = self._failure(Reason.OUT_OF_MEMORY, _first_line(error))
        except Exception as error:
            self._together(error)
            log.exception("run %s failed", self._run.run_id)
            failure = self._failure(Reason.ARM_ERROR, f"{type(error).__name__}: {_first_line(error)}")
        self._headway.enter("the agreement of all ranks on how the run ended")
        failures = [told for told in self._team.gather(failure) if told is not None]
        costs = self._team.gather(self._measured_costs())
        if failures:
            self.alarmed = True
            outcome = "failed"
        self._emit_once(self._finished(outcome, failures, message, costs))
        self._headway.enter("the end of the run")
        self._headway.watch(None)
        self._checkpoints.forget()
        if self._trainer is not None:
            self._trainer.close()
        return outcome

    @property
    def figure_mj(self) -> float | None:
        """What comparisons rest on, as far as ranks can tell: energy to the target if there is one, else per step.

        None if it is unknown, not positive, or of windows too short for a verdict.
        """
        training, steady = self._state.spent, self._steady
        if self._planned.training.stop.kind != "target_loss":
            rests_on = steady if steady.steps else training
            figure_mj = rests_on.per_step_mj
        elif not self._reached:
            return None
        elif training.energy_mj is None and steady.per_step_mj is not None:
            # As the service does: training's own windows were too short for the meter.
            rests_on, figure_mj = steady, steady.per_step_mj * self._state.step
        else:
            rests_on, figure_mj = training, training.energy_mj
        refused = blocking(window_flags(rests_on.seconds))
        return None if refused or figure_mj is None or not figure_mj > 0 else figure_mj

    @property
    def _reached(self) -> bool:
        rule, loss = self._planned.training.stop, self._state.evaluation_loss
        return rule.kind == "target_loss" and loss is not None and loss <= rule.target_loss

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
            state = self._state
            stop = decide(
                rule,
                StopState(
                    step=state.step,
                    training_s=state.training_s,
                    energy_mj=state.energy_mj,
                    evaluation_loss=state.evaluation_loss,
                    train_loss=state.train_loss,
                ),
            )
            if stop is not None:
                return _outcome(stop), stop.message
            steps = next_interval(rule, self._planned.training.evaluation_interval, state.step)
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
        self._report()

    def _report(self) -> None:
        state = self._state
        values = {"train_loss": state.train_loss, "evaluation_loss": state.evaluation_loss}
        points = tuple(
            MetricPoint(
                step=state.step,
                name=name,
                value=value,
                energy_mj=state.energy_mj,
                training_s=state.training_s,
            )
            for name, value in values.items()
            if value is not None
        )
        self._emit_once(Metrics(points=points))

    def _hold_steady(self) -> None:
        """Adds steps in windows of their own where training can't tell joules per step well enough.

        That is so where it was too short, or cut by evaluations into windows too short for the meter.
        """
        state, mine = self._state, Spent(self._reads_meter)
        if state.step == 0:
            return
        step_s = state.training_s / state.step
        for _ in range(MOST_STEADY_WINDOWS):
            wanted_s = min(self._more_steady_s(), LONGEST_STEADY_S)
            if wanted_s <= 0:
                return
            # A share of all, not of what is left: that can be little, and then the next try falls short too.
            spare_s = STEADY_MARGIN * max(wanted_s, self._measurement.minimum_window_s)
            steps = math.ceil((wanted_s + spare_s) / max(step_s, 1e-6))
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

    def _more_steady_s(self) -> float:
        """Seconds that the next steady window is to last; 0 if joules per step are known well enough."""
        minimum_s, precision = self._measurement.minimum_window_s, self._measurement.energy_precision
        training, steady = self._state.spent, self._steady
        if steady.windows:
            return max(minimum_s - steady.seconds, steady.missing_s(precision))
        missing_s = training.missing_s(precision, anew=True)
        if training.seconds >= minimum_s and training.energy_mj is not None and not missing_s:
            return 0.0
        return max(minimum_s, missing_s)

    def _finished(
        self,
        outcome: RunOutcome,
        failures: list[Failure],
        message: str | None,
        costs: list[MeasuredCosts],
    ) -> RunFinished:
        state, reached, trainer = self._state, self._reached, self._trainer
        reason = _REASONS.get(outcome)
        if failures:
            cause = min(failures, key=lambda failure: failure.at_s)
            reason, message = cause.reason, cause.message
        elif self._carried:
            last = self._carried[-1]
            went_on = f"went on at step {last.steps:,} from what attempt {last.attempt} had saved"
            message = f"{message}; {went_on}" if message else went_on
        peaks = [cost.peak_memory_bytes for cost in costs if cost.peak_memory_bytes is not None]
        sent = [cost.bytes_sent_per_step for cost in costs if cost.bytes_sent_per_step is not None]
        formula = arm_cost(self._planned, self._dataset.shape, self._dataset.placement)
        return RunFinished(
            outcome=outcome,
            reason=reason,
            message=message,
            steps=state.step,
            samples=state.step * self._planned.training.batch_size,
            training_s=state.training_s,
            final_train_loss=state.train_loss,
            final_evaluation_loss=state.evaluation_loss,
            target_step=state.step if reached else None,
            energy_to_target_mj=state.energy_mj if reached else None,
            seconds_to_target=state.training_s if reached else None,
            step_mode=trainer.step_mode if trainer else None,
            step_mode_reason=trainer.step_mode_reason if trainer else None,
            compiled=trainer.compiled if trainer else None,
            exchange=trainer.exchange.name if trainer else None,
            exchange_reason=trainer.exchange.reason if trainer else None,
            parameters=trainer.parameters_total if trainer else None,
            peak_memory_bytes=max(peaks) if peaks else None,
            flops_per_step=formula.step_flops,
            bytes_sent_per_step=sum(sent) if len(sent) == self._team.size else None,
            carried=self._carried,
        )

    def _measured_costs(self) -> MeasuredCosts:
        if self._trainer is None:
            return MeasuredCosts(None, None)
        return MeasuredCosts(self._trainer.peak_memory_bytes(), self._trainer.bytes_sent_per_step)

    def _emit_once(self, payload: Payload) -> None:
        if self._team.rank == 0:
            self._emit(payload)

    @property
    def _ready(self) -> Trainer:
        assert self._trainer is not None, "training comes after set-up"
        return self._trainer


_REASONS: dict[RunOutcome, Reason] = {
    "diverged": Reason.NON_FINITE_LOSS,
    "failed": Reason.ENERGY_UNKNOWN,  # the only failure that is no error: the rule could not be watched
}


def _outcome(stop: Stop) -> RunOutcome:
    if stop.diverged:
        return "diverged"
    return "failed" if stop.reason is StopReason.ENERGY_UNKNOWN else "succeeded"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:500]
