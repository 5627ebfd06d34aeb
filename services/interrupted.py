"""What an attempt used after its last whole window, when it was cut off: a rank was killed, or the job ended.

No meter was read at the end of the window that was open then, so this is the integral of the power that the node's
sampler, a process of its own, saw from there on. It stands apart from the energy of whole windows and is an
estimate: it ends with the last sample, and waiting peers are in it.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from phantom_core.meters.integration import integrate_power
from services.tables import Attempt, PowerSample, Run, Window
from services.window_rows import Span, WindowRow
from services.window_samples import Seen


def interrupted_energy(
    session: Session,
    run: Run,
    attempt: Attempt,
    windows: Sequence[WindowRow],
    devices: Collection[int],
    rate_hz: float,
) -> tuple[float | None, str | None]:
    """Energy of the window that was open when the attempt was cut off.

    Args:
        session: A session.
        run: The run.
        attempt: An attempt of it that was cut off.
        windows: All windows of the attempt.
        devices: Keys of the arm's boards.
        rate_hz: Power samples per second that were asked for.

    Returns:
        Millijoules over the arm's boards, None if any of them is unknown; and what must be said of it.
    """
    if not devices:
        return None, "which boards it used was never reported"
    total_mj = 0.0
    for device in sorted(devices):
        ends = [w.started_monotonic_s + w.duration_s for w in windows if w.device_key == device]
        last_s = _last_sample_s(session, device, attempt.experiment_attempt)
        start_s = max(ends) if ends else _began_s(session, device, attempt)
        if last_s is None or start_s is None:
            return None, "no power sample saw what it used after its last whole window"
        end_s = _end_s(session, device, attempt, run, start_s, last_s)
        if end_s <= start_s:
            return None, "no power sample came after its last whole window"
        seen = Seen.in_span(session, Span(device, attempt.experiment_attempt, start_s, end_s))
        integral = integrate_power(
            seen.table(), start_s, end_s, rate_hz=rate_hz, sensor_period_s=seen.look_back_s(rate_hz)
        )
        if integral.energy_mj is None:
            return None, f"what it used after its last whole window is unknown: {integral.reason}"
        total_mj += integral.energy_mj
    return total_mj, (
        "it was cut off: what it used after its last whole window is the integral of sampled power, up to the "
        "last sample"
    )


def _last_sample_s(session: Session, device: int, experiment_attempt: int) -> float | None:
    return session.execute(
        select(func.max(PowerSample.ended_monotonic_s)).where(
            PowerSample.device_key == device,
            PowerSample.experiment_attempt == experiment_attempt,
            PowerSample.mean_mw.is_not(None),
        )
    ).scalar_one()


def _began_s(session: Session, device: int, attempt: Attempt) -> float | None:
    """When the attempt began, on the monotonic clock of the device's host, as its samples tell both."""
    block = session.execute(
        select(PowerSample.started_at, PowerSample.started_monotonic_s)
        .where(PowerSample.device_key == device, PowerSample.experiment_attempt == attempt.experiment_attempt)
        .order_by(PowerSample.started_monotonic_s, PowerSample.key)
        .limit(1)
    ).first()
    if block is None or attempt.started_at is None:
        return None
    elapsed_s: float = (attempt.started_at - block.started_at).total_seconds()
    return float(block.started_monotonic_s + elapsed_s)


def _end_s(session: Session, device: int, attempt: Attempt, run: Run, start_s: float, last_s: float) -> float:
    """The last sample, or another run's first window, if the job went on."""
    following = session.execute(
        select(func.min(Window.started_monotonic_s)).where(
            Window.device_key == device,
            Window.experiment_attempt == attempt.experiment_attempt,
            Window.started_monotonic_s >= start_s,
            (Window.run_key != run.key) | Window.run_key.is_(None),
        )
    ).scalar_one()
    return last_s if following is None else min(last_s, following)
