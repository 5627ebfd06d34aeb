"""A run's summary: the figures of its row, from its windows, its samples and what its ranks reported.

Only charged windows count; a board that two sources tell of counts once; a sum that misses a board or a
window is unknown, with the reason, and never too low. Everything is worked out anew from the rows, so the
order in which events came leaves no trace.
"""

import math
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.board_limits import BoardLimits
from phantom_core.flags import Flag
from phantom_core.meters.windows import methods_disagree, window_flags
from phantom_core.protocol import Carried, RunFinished
from phantom_core.spec import MeasurementSpec
from services.idle_baseline import IdleBaseline, idle_baseline, net_energy
from services.made_with import MadeWith
from services.resumed import carried_windows
from services.tables import Arm, Attempt, Device, Experiment, ExperimentAttempt, Run, Window
from services.window_rows import WindowRow, window_rows, windows_of
from services.window_sums import Sum, distinct, energy_or_integral, sum_over, total_energy

LOST_AFTER_S = 2.0
"""Windows of a board at least this long, without a single power sample in them, mean that its sampler was gone."""


def summarise(session: Session, experiment: Experiment, run: Run, windows: Sequence[WindowRow]) -> None:
    """Fills in a run's summary from the rows of its current attempt.

    Does nothing before the job said how the run ended.

    Args:
        session: A write session.
        experiment: Whose run it is.
        run: The run.
        windows: All windows of its current attempt, as they are after samples were looked at.
    """
    attempt = session.get(Attempt, (run.key, run.attempt))
    if attempt is None or attempt.finish is None:
        return
    finish = RunFinished.model_validate(attempt.finish)
    windows = distinct([*carried_windows(session, run, finish.carried), *windows])
    charged = [window for window in windows if window.charged]
    devices = _devices_of_arm(session, run, attempt) | {window.device_key for window in charged}
    trained = [window for window in charged if window.phase == "training"]
    training = sum_over(trained, devices)
    if training.steps < finish.steps:
        missing = f"training windows hold {training.steps} of {finish.steps} steps; the others have not come"
        training = training.without_energy(missing)
    steady_windows = [window for window in charged if window.phase == "steady"]
    steady = sum_over(steady_windows, devices)
    # A window that failed has used energy and made no whole step.
    whole = [window for window in trained if window.steps > 0]
    if steady.steps:
        per_step, told = steady, steady_windows
    elif len(whole) == len(trained) or training.energy_mj is None:
        per_step, told = training, trained
    else:
        per_step, told = sum_over(whole, devices), whole
    idle = _idle_baseline(session, experiment, attempt.experiment_attempt, devices)
    net = net_energy(training, trained, idle)
    _copy_report(run, finish)
    told_s = finish.training_s
    run.training_s = told_s if told_s is not None and math.isfinite(told_s) else training.seconds
    run.energy_training_mj = training.energy_mj
    run.energy_training_uncertainty_mj = training.uncertainty_mj
    run.energy_setup_mj = _energy(charged, "setup", devices)
    run.energy_evaluation_mj = _energy(charged, "evaluation", devices)
    run.energy_idle_boards_mj = total_energy([window for window in windows if not window.charged])
    run.steady_s = steady.seconds if steady.steps else None
    run.steady_steps = steady.steps or None
    run.energy_steady_mj = steady.energy_mj
    run.per_step_phase = "steady" if steady.steps else "training" if training.steps else None
    run.energy_per_step_mj = _ratio(per_step.energy_mj, per_step.steps)
    run.energy_per_step_uncertainty_mj = _ratio(per_step.uncertainty_mj, per_step.steps)
    from_steady = _energy_from_steady(run, training, steady)
    run.energy_per_sample_mj = _ratio(per_step.energy_mj, per_step.samples)
    run.seconds_per_step = _ratio(per_step.seconds, per_step.steps)
    run.idle_power_mw = idle.power_mw
    run.energy_net_mj = net.energy_mj
    run.energy_integral_mj = training.integral_mj
    run.sample_count = training.sample_count
    run.largest_gap_s = training.largest_gap_s
    run.device_keys = sorted(devices)
    run.method, run.scope = per_step.method, per_step.scope
    reasons = dict.fromkeys(each for each in (training.reason, per_step.reason, net.reason) if each)
    run.energy_reason = "; ".join(reasons) or None
    flags = training.flags | steady.flags | idle.flags | net.flags
    flags |= _run_flags(session, run, training, per_step, carried=bool(finish.carried))
    if finish.carried and _limits_changed(session, run, attempt, finish.carried, devices):
        flags |= {Flag.CLOCKS_DIFFER}
    if _sampler_was_lost(told):
        flags |= {Flag.SAMPLER_LOST}
    if _is_imprecise(per_step, MeasurementSpec.model_validate(experiment.spec["measurement"])):
        flags |= {Flag.IMPRECISE}
    run.flags = ordered(flags | ({Flag.FROM_STEADY} if from_steady else set()))


def spent(
    session: Session, experiment: Experiment, attempt: Attempt, run: Run, windows: Sequence[WindowRow]
) -> None:
    """Fills in what one attempt has used so far over the arm's boards, whatever became of it.

    Args:
        session: A write session.
        experiment: Whose run it is.
        attempt: The attempt.
        run: Its run.
        windows: All windows of the attempt, as they are after samples were looked at.
    """
    charged = [window for window in distinct(windows) if window.charged]
    attempt.energy_mj, attempt.energy_reason = energy_or_integral(charged)
    attempt.energy_interrupted_mj = None
    if _is_cut_off(attempt):
        # Not at the top, like `look` below: both bring NumPy, which a service needs at its first event, not to start.
        from services.interrupted import interrupted_energy

        devices = _devices_of_arm(session, run, attempt)
        attempt.energy_interrupted_mj, said = interrupted_energy(
            session, run, attempt, charged, devices, experiment.sample_rate_hz
        )
        parts = [part for part in (attempt.energy_reason, said) if part]
        attempt.energy_reason = "; ".join(parts) or None


def cut_off(session: Session, experiment: Experiment, attempt: Attempt, run: Run) -> None:
    """The same for an attempt that has just been given up, of whose windows the samples were not looked at yet."""
    from services.window_samples import look

    look(session, experiment, windows_of(session, [attempt]))
    spent(session, experiment, attempt, run, windows_of(session, [attempt]))


def _is_cut_off(attempt: Attempt) -> bool:
    """Whether it began, has ended, and its ranks never said how."""
    return attempt.started_at is not None and attempt.outcome is not None and attempt.finish is None


def ordered(flags: Iterable[str]) -> list[str]:
    """Flags in the order of their table; those of a newer job, which it doesn't have, at the end."""
    given = set(flags)
    known = [flag.value for flag in Flag if flag in given]
    return known + sorted(given.difference(known))


def _copy_report(run: Run, finish: RunFinished) -> None:
    copied = (
        "final_train_loss",
        "final_evaluation_loss",
        "steps",
        "samples",
        "target_step",
        "energy_to_target_mj",
        "seconds_to_target",
        "step_mode",
        "step_mode_reason",
        "compiled",
        "exchange",
        "exchange_reason",
        "parameters",
        "peak_memory_bytes",
        "flops_per_step",
        "bytes_sent_per_step",
    )
    strange: dict[str, str] = {}
    for name in copied:
        value = getattr(finish, name)
        if isinstance(value, float) and not math.isfinite(value):
            strange[name] = name_of(value)
            value = None
        setattr(run, name, value)
    run.non_finite = strange or None


def name_of(value: float) -> str:
    """`nan`, `inf` or `-inf`."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _devices_of_arm(session: Session, run: Run, attempt: Attempt) -> set[int]:
    """The boards that an arm used in an attempt: those of its ranks, the first of the worker group."""
    arm = session.get_one(Arm, run.arm_key)
    job = session.get(ExperimentAttempt, (run.experiment_id, attempt.experiment_attempt))
    ranks = ((job.environment if job else None) or {}).get("ranks", [])
    names = {(rank["host"], rank["device_uuid"]) for rank in ranks if rank["rank"] < arm.world_size}
    if not names:
        return set()
    devices = session.scalars(select(Device).where(Device.experiment_id == run.experiment_id))
    return {device.key for device in devices if (device.host, device.uuid) in names}


def _idle_baseline(
    session: Session, experiment: Experiment, experiment_attempt: int, devices: set[int]
) -> IdleBaseline:
    windows = window_rows(
        session,
        Window.experiment_id == experiment.id,
        Window.phase.in_(["idle_before", "idle_after"]),
        Window.experiment_attempt == experiment_attempt,
        Window.device_key.in_(devices),
    )
    return idle_baseline(distinct(windows), devices)


def _run_flags(session: Session, run: Run, training: Sum, per_step: Sum, *, carried: bool) -> frozenset[str]:
    flags: set[str] = set()
    if per_step.steps:
        flags.update(window_flags(per_step.seconds))
        if per_step.energy_mj is None:
            flags.add(Flag.ENERGY_UNKNOWN)
    if "estimate" in {training.method, per_step.method}:
        flags.add(Flag.ESTIMATED)
    elif _disagree(per_step) or _disagree(training):
        flags.add(Flag.METHODS_DISAGREE)
    if carried:
        flags.add(Flag.RESUMED)
    if run.step_mode == "eager" and run.step_mode_reason is not None and _on_gpu(session, run):
        flags.add(Flag.GRAPH_FALLBACK)
    return frozenset(flags)


def _limits_changed(
    session: Session, run: Run, attempt: Attempt, carried: Iterable[Carried], devices: set[int]
) -> bool:
    """Whether a run that went on from an earlier start was made under other limits there."""
    boards = session.scalars(select(Device).where(Device.key.in_(devices))).all()

    def limits(number: int) -> list[BoardLimits]:
        start = session.get(ExperimentAttempt, (run.experiment_id, number))
        told = MadeWith.of(start.environment if start else None)
        return [told.limits_of(board) for board in boards]

    now = limits(attempt.experiment_attempt)
    for each in carried:
        earlier = session.get(Attempt, (run.key, each.attempt))
        if earlier is None:
            continue
        before = limits(earlier.experiment_attempt)
        if any(one.changed_from(other) for one, other in zip(now, before, strict=True)):
            return True
    return False


def _sampler_was_lost(windows: Sequence[WindowRow]) -> bool:
    """Whether some board has windows, long enough together, and no sample in any of them."""
    boards: dict[int, list[WindowRow]] = {}
    for window in windows:
        boards.setdefault(window.device_key, []).append(window)
    return any(
        math.fsum(window.duration_s for window in of_board) >= LOST_AFTER_S
        and not any(window.sample_count for window in of_board)
        for of_board in boards.values()
    )


def _energy_from_steady(run: Run, training: Sum, steady: Sum) -> bool:
    """Fills in an energy to the target that training's own windows were too short to tell.

    Returns:
        Whether it did.
    """
    if run.energy_to_target_mj is not None or not run.target_step or training.energy_mj is not None:
        return False
    per_step_mj = _ratio(steady.energy_mj, steady.steps)
    if per_step_mj is None:
        return False
    run.energy_to_target_mj = per_step_mj * run.target_step
    return True


def _is_imprecise(per_step: Sum, measurement: MeasurementSpec) -> bool:
    if not per_step.energy_mj or per_step.uncertainty_mj is None or per_step.method == "estimate":
        return False
    return per_step.uncertainty_mj > measurement.energy_precision * per_step.energy_mj


def _disagree(total: Sum) -> bool:
    """Whether counter and integral differ by more than 5 %, and by more than both may be off."""
    if not methods_disagree(total.energy_mj, total.integral_mj):
        return False
    assert total.energy_mj is not None
    assert total.integral_mj is not None
    allowed_mj = (total.uncertainty_mj or 0.0) + (total.integral_uncertainty_mj or 0.0)
    return abs(total.energy_mj - total.integral_mj) > allowed_mj


def _on_gpu(session: Session, run: Run) -> bool:
    return (
        session.scalars(
            select(Device.key)
            .where(Device.experiment_id == run.experiment_id, Device.kind.in_(["cuda", "rocm"]))
            .limit(1)
        ).first()
        is not None
    )


def _energy(charged: Sequence[WindowRow], phase: str, devices: set[int]) -> float | None:
    """Of all the boards, or none: what some of them used is less than it took."""
    return sum_over([window for window in charged if window.phase == phase], devices).energy_mj


def _ratio(total: float | None, count: int) -> float | None:
    return None if total is None or not count else total / count
