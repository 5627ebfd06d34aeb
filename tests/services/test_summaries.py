"""Summaries of runs: each board once, only charged windows, unknown rather than too low."""

from collections.abc import Callable, Iterator

import pytest

from phantom_core.protocol import Event, PowerSamples, Reason, RunFinished, Window
from services import runs
from services.database import Database
from services.views import RunView
from tests.services.simulated_job import Figures, begun, deliver, spec, uuid

Change = Callable[[Event], Iterator[Event]]


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """One kind is enough here: what is stored and read back is held by the tests of ingest."""
    return sqlite_database


def summary(database: Database, change: Change | None = None, figures: Figures | None = None) -> RunView:
    """The first run of a job whose events a test has changed."""
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    events = [*job.started(), *job.run(run, figures)]
    deliver(database, job, [told for event in events for told in (change or keep)(event)])
    return runs.get(database, run.run_id)


def keep(event: Event) -> Iterator[Event]:
    """Changes nothing."""
    yield event


def windows(**changes: object) -> Change:
    """Changes the training windows."""

    def change(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, Window) and event.payload.phase == "training":
            payload = event.payload.model_copy(update=changes)
            event = event.model_copy(update={"payload": payload})
        yield event

    return change


def finish(**changes: object) -> Change:
    """Changes what the ranks say at the end."""

    def change(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, RunFinished):
            event = event.model_copy(update={"payload": event.payload.model_copy(update=changes)})
        yield event

    return change


def samples(factor: float | None) -> Change:
    """Multiplies sampled power; None leaves the samples out."""

    def change(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, PowerSamples):
            if factor is None:
                return
            powers = tuple(None if mw is None else mw * factor for mw in event.payload.power_mw)
            event = event.model_copy(
                update={"payload": event.payload.model_copy(update={"power_mw": powers})}
            )
        yield event

    return change


def test_all_figures_of_a_sound_run(database: Database) -> None:
    run = summary(database)
    assert run.energy_training_mj == 2 * 2 * 10 * 100_000
    assert run.energy_training_uncertainty_mj == 4 * 10_000
    assert run.energy_setup_mj == 2 * 50_000
    assert (run.steps, run.samples, run.training_s) == (100, 25_600, 20.0)
    assert run.energy_per_step_mj == 40_000.0
    assert run.energy_per_step_uncertainty_mj == 400.0
    assert run.energy_per_sample_mj == 40_000.0 / 256
    assert (run.seconds_per_step, run.per_step_phase) == (0.2, "training")
    assert run.idle_power_mw == 100_000.0
    assert run.energy_net_mj == 4_000_000.0 - 100_000.0 * 20
    assert run.energy_integral_mj == pytest.approx(4_000_000.0)
    assert run.largest_gap_s == pytest.approx(0.1)
    assert (run.method, run.scope, run.flags, run.energy_reason) == ("nvml.counter", "gpu", (), None)
    assert (run.step_mode, run.parameters, run.peak_memory_bytes) == ("graph", 12_345, 2**20)
    assert (run.compiled, run.exchange, run.exchange_reason) == (False, "symmetric_memory", None)
    assert (run.energy_evaluation_mj, run.energy_idle_boards_mj, run.energy_steady_mj) == (None, None, None)


def test_a_board_that_two_ranks_share_is_counted_once(database: Database) -> None:
    def shared(event: Event) -> Iterator[Event]:
        yield event
        if isinstance(event.payload, Window) and event.payload.phase == "training":
            again = event.payload.model_copy(update={"energy_mj": 7.0})
            yield event.model_copy(update={"source": "rank-7", "payload": again})

    assert summary(database, shared).energy_training_mj == 4_000_000.0


def test_of_two_readings_of_a_board_the_known_one_counts(database: Database) -> None:
    def shared(event: Event) -> Iterator[Event]:
        yield event
        if isinstance(event.payload, Window) and event.payload.phase == "training":
            lost = event.payload.model_copy(update={"energy_mj": None, "reason": "no permission"})
            yield event.model_copy(update={"source": "a-rank", "payload": lost})

    assert summary(database, shared).energy_training_mj == 4_000_000.0


def test_an_idle_board_is_recorded_apart_and_not_charged(database: Database) -> None:
    experiment = spec(
        arms=[
            {"strategy": "tensor", "name": "two", "world_size": 2},
            {"strategy": "dense", "name": "one"},
        ],
        baseline="two",
    )
    _, _, job = begun(database, experiment)
    alone = next(run for run in job.assignment.runs if run.arm == "one")
    deliver(database, job, [*job.started(), *job.run(alone, Figures(boards=1))])
    run = runs.get(database, alone.run_id)
    assert run.energy_training_mj == 2_000_000.0
    assert run.energy_idle_boards_mj == 50_000.0
    assert run.idle_power_mw == 50_000.0
    assert run.attempts[0].energy_mj == 2_050_000.0


def test_an_unknown_window_makes_the_sum_unknown_with_its_reason(database: Database) -> None:
    def lost(event: Event) -> Iterator[Event]:
        payload = event.payload
        if isinstance(payload, Window) and payload.phase == "training" and payload.index == 1:
            lost = payload.model_copy(update={"energy_mj": None, "reason": "the board fell off the bus"})
            event = event.model_copy(update={"payload": lost})
        yield event

    run = summary(database, lost)
    assert (run.energy_training_mj, run.energy_per_step_mj, run.energy_net_mj) == (None, None, None)
    assert run.energy_reason == "the board fell off the bus"
    assert run.flags == ("energy_unknown",)
    assert run.seconds_per_step == 0.2


@pytest.mark.parametrize("missing", ["rank-0", "rank-1"])
def test_a_board_whose_windows_have_not_come_makes_the_sum_unknown(database: Database, missing: str) -> None:
    def without(event: Event) -> Iterator[Event]:
        is_window = isinstance(event.payload, Window) and event.payload.phase == "training"
        if not (is_window and event.source == missing):
            yield event

    run = summary(database, without)
    assert run.energy_training_mj is None
    assert run.energy_reason == "training window 0 has not come from all boards"


def test_a_window_that_has_come_from_no_board_makes_the_sum_unknown(database: Database) -> None:
    def without(event: Event) -> Iterator[Event]:
        payload = event.payload
        if not (isinstance(payload, Window) and payload.phase == "training" and payload.index == 1):
            yield event

    run = summary(database, without)
    assert run.energy_training_mj is None
    assert run.energy_reason == "training windows hold 50 of 100 steps; the others have not come"


def test_a_steady_window_gives_the_figures_per_step(database: Database) -> None:
    def steady(event: Event) -> Iterator[Event]:
        payload = event.payload
        if isinstance(payload, Window) and payload.phase == "training" and payload.index == 1:
            longer = payload.model_copy(
                update={"phase": "steady", "index": 0, "steps": 1_000, "samples": 256_000}
            )
            event = event.model_copy(update={"payload": longer})
        if isinstance(payload, RunFinished):
            event = event.model_copy(update={"payload": payload.model_copy(update={"steps": 50})})
        yield event

    run = summary(database, steady)
    assert run.energy_training_mj == 2_000_000.0
    assert (run.energy_steady_mj, run.steady_s, run.steady_steps) == (2_000_000.0, 10.0, 1_000)
    assert (run.per_step_phase, run.energy_per_step_mj) == ("steady", 2_000.0)
    assert run.seconds_per_step == 0.01
    assert run.energy_per_sample_mj == 2_000.0 / 256


@pytest.mark.parametrize(
    ("seconds", "flags"), [(0.4, ("short_window_refused", "imprecise")), (4.0, ("short_window",)), (5.0, ())]
)
def test_windows_that_are_too_short_are_flagged(
    database: Database, seconds: float, flags: tuple[str, ...]
) -> None:
    assert summary(database, figures=Figures(window_s=seconds)).flags == flags


@pytest.mark.parametrize(
    ("factor", "flags"), [(1.0, ()), (0.97, ()), (0.90, ("methods_disagree",)), (1.2, ("methods_disagree",))]
)
def test_counter_and_integral_are_held_against_each_other(
    database: Database, factor: float, flags: tuple[str, ...]
) -> None:
    run = summary(database, samples(factor))
    assert run.energy_integral_mj == pytest.approx(factor * 4_000_000.0)
    assert run.flags == flags


def test_without_samples_there_is_no_integral_and_a_flag(database: Database) -> None:
    run = summary(database, samples(None))
    assert (run.energy_integral_mj, run.sample_count) == (None, 0)
    assert run.flags == ("sampler_lost",)


def test_a_hole_in_the_samples_is_flagged(database: Database) -> None:
    def hole(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, PowerSamples):
            powers = tuple(
                None if 30 <= number < 60 else mw for number, mw in enumerate(event.payload.power_mw)
            )
            event = event.model_copy(
                update={"payload": event.payload.model_copy(update={"power_mw": powers})}
            )
        yield event

    run = summary(database, hole)
    assert run.flags == ("sampler_gap",)
    assert run.largest_gap_s == pytest.approx(3.1)


def test_an_estimate_is_flagged_and_not_held_against_itself(database: Database) -> None:
    def estimated(event: Event) -> Iterator[Event]:
        for told in windows(method="estimate", scope="process")(event):
            yield from samples(0.5)(told)

    run = summary(database, estimated)
    assert (run.method, run.flags) == ("estimate", ("estimated",))


def test_flags_of_the_meter_reach_the_run_in_their_order(database: Database) -> None:
    run = summary(database, windows(flags=("of_a_newer_job", "power_capped", "counter_reset")))
    assert run.flags == ("counter_reset", "power_capped", "of_a_newer_job")


def test_a_baseline_that_was_not_idle_is_flagged_on_every_run(database: Database) -> None:
    def busy(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, Window) and event.payload.phase == "idle_before":
            payload = event.payload.model_copy(update={"flags": ("not_idle_baseline", "board_shared")})
            event = event.model_copy(update={"payload": payload})
        yield event

    assert summary(database, busy).flags == ("not_idle_baseline",)


def test_without_an_idle_baseline_net_energy_is_unknown(database: Database) -> None:
    def without(event: Event) -> Iterator[Event]:
        if not (isinstance(event.payload, Window) and event.payload.phase == "idle_before"):
            yield event

    run = summary(database, without)
    assert (run.idle_power_mw, run.energy_net_mj) == (None, None)
    assert run.energy_training_mj == 4_000_000.0


@pytest.mark.parametrize(
    ("times", "net_mj", "flags"),
    [
        (0.5, 3_000_000.0, ()),
        (2.0, 0.0, ()),
        # 20 s of twice 100 W and 1 % more are 40 kJ above the energy: as much as its bound.
        (2.02, pytest.approx(-40_000.0), ()),
        (2.03, None, ("not_idle_baseline",)),
        (20.0, None, ("not_idle_baseline",)),
    ],
)
def test_net_energy_is_never_below_zero_by_more_than_its_bound(
    database: Database, times: float, net_mj: float | None, flags: tuple[str, ...]
) -> None:
    def idled(event: Event) -> Iterator[Event]:
        if isinstance(event.payload, Window) and event.payload.phase == "idle_before":
            energy_mj = times * (event.payload.energy_mj or 0.0)
            payload = event.payload.model_copy(update={"energy_mj": energy_mj, "uncertainty_mj": 0.0})
            event = event.model_copy(update={"payload": payload})
        yield event

    run = summary(database, idled)
    assert run.energy_training_mj == 4_000_000.0
    assert run.idle_power_mw == pytest.approx(times * 2 * 50_000.0)
    assert (run.energy_net_mj, run.flags) == (net_mj, flags)
    assert (net_mj is None) == ("net energy is unknown" in (run.energy_reason or ""))


def test_net_energy_takes_each_board_s_idle_power_for_that_board_s_own_seconds(database: Database) -> None:
    """One rank was held up at both edges of a window: its board idled while nobody looked at the other."""
    late_s = 3.0

    def held_up(event: Event) -> Iterator[Event]:
        window = event.payload
        if isinstance(window, Window) and window.phase == "training" and window.device_uuid == uuid(1):
            idled_mj = 50_000.0 * late_s
            changes = {
                "duration_s": window.duration_s + late_s,
                "energy_mj": (window.energy_mj or 0.0) + idled_mj,
            }
            event = event.model_copy(update={"payload": window.model_copy(update=changes)})
        yield event

    sound, late = summary(database), summary(database, held_up)
    assert (late.energy_training_mj or 0.0) > (sound.energy_training_mj or 0.0)
    assert late.energy_net_mj == pytest.approx(sound.energy_net_mj)
    assert late.energy_net_mj == pytest.approx(2_000_000.0)


def test_idle_power_after_the_last_round_counts_for_every_run(database: Database) -> None:
    """It comes when all have ended: the first one's net energy rests on it, too."""
    _, _, job = begun(database)
    first, second, *_ = job.assignment.runs

    def warm(event: Event) -> Event:
        window = event.payload
        assert isinstance(window, Window)
        payload = window.model_copy(update={"phase": "idle_after", "energy_mj": 90_000.0 * window.duration_s})
        return event.model_copy(update={"source": f"{event.source}-late", "payload": payload})

    started = list(job.started())
    deliver(database, job, [*started, *job.run(first), *job.run(second)])
    assert runs.get(database, first.run_id).idle_power_mw == 100_000.0
    idle = [
        each for each in started if isinstance(each.payload, Window) and each.payload.phase == "idle_before"
    ]
    deliver(database, job, map(warm, idle))
    for run in (first, second):
        found = runs.get(database, run.run_id)
        assert (found.idle_power_mw, found.energy_net_mj) == (140_000.0, 4_000_000.0 - 140_000.0 * 20)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_window_that_one_board_never_told_changes_no_time(database: Database, rank: int) -> None:
    def without(event: Event) -> Iterator[Event]:
        window = event.payload
        if not (isinstance(window, Window) and (window.phase, window.index, window.device_uuid) == LOST):
            yield event

    LOST = ("training", 1, uuid(rank))
    run = summary(database, without)
    assert (run.energy_training_mj, run.seconds_per_step) == (None, 0.2)
    assert run.energy_reason == "training window 1 has not come from all boards"


@pytest.mark.parametrize(
    ("phase", "figure"), [("setup", "energy_setup_mj"), ("evaluation", "energy_evaluation_mj")]
)
def test_what_one_board_used_is_not_told_as_what_all_did(database: Database, phase: str, figure: str) -> None:
    def without(event: Event) -> Iterator[Event]:
        window = event.payload
        if not (isinstance(window, Window) and window.phase == phase and window.device_uuid == uuid(1)):
            yield event

    sound, less = summary(database), summary(database, without)
    if phase == "setup":
        assert getattr(sound, figure) > 0
    assert getattr(less, figure) is None
    assert less.energy_training_mj == sound.energy_training_mj


def test_a_board_that_nobody_sampled_is_said_although_the_other_was(database: Database) -> None:
    def without(event: Event) -> Iterator[Event]:
        if not (isinstance(event.payload, PowerSamples) and event.payload.device_uuid == uuid(1)):
            yield event

    assert "sampler_lost" in summary(database, without).flags


def test_a_window_that_failed_has_used_energy_and_made_no_step(database: Database) -> None:
    def failed(event: Event) -> Iterator[Event]:
        window = event.payload
        if isinstance(window, Window) and window.phase == "training" and window.index == 1:
            broken = {"steps": 0, "samples": 0, "duration_s": 1.0, "energy_mj": 100_000.0}
            event = event.model_copy(update={"payload": window.model_copy(update=broken)})
        if isinstance(window, RunFinished):
            broken_run = {"outcome": "failed", "reason": Reason.ARM_ERROR, "steps": 50, "samples": 12_800}
            event = event.model_copy(update={"payload": window.model_copy(update=broken_run)})
        yield event

    run = summary(database, failed)
    assert (run.steps, run.energy_training_mj) == (50, 2_200_000.0)
    assert (run.energy_per_step_mj, run.seconds_per_step) == (40_000.0, 0.2)


def test_an_eager_step_on_a_gpu_is_flagged_if_a_graph_was_wanted(database: Database) -> None:
    why = "capture failed: out of memory"
    run = summary(database, finish(step_mode="eager", step_mode_reason=why))
    assert (run.step_mode, run.step_mode_reason, run.flags) == ("eager", why, ("graph_fallback",))


def test_a_run_that_failed_in_set_up_has_what_it_used_and_nothing_else(database: Database) -> None:
    _, _, job = begun(database)
    first = job.assignment.runs[0]
    events = list(job.run(first, Figures(outcome="failed")))
    end = events[-1].model_copy(
        update={"payload": RunFinished(outcome="failed", reason="out_of_memory", steps=0, samples=0)}
    )
    deliver(database, job, [*job.started(), *events[:3], end])
    run = runs.get(database, first.run_id)
    assert (run.state, run.reason, run.flags) == ("failed", "out_of_memory", ())
    assert (run.energy_setup_mj, run.attempts[0].energy_mj) == (100_000.0, 100_000.0)
    assert (run.energy_training_mj, run.energy_per_step_mj, run.seconds_per_step) == (None, None, None)


def test_figures_that_are_not_finite_are_named(database: Database) -> None:
    strange = {"energy_to_target_mj": float("inf"), "final_train_loss": float("nan")}
    run = summary(database, finish(**strange))
    assert (run.energy_to_target_mj, run.final_train_loss) == (None, None)
    assert run.non_finite == {"energy_to_target_mj": "inf", "final_train_loss": "nan"}


UNREAD = {
    "energy_mj": None,
    "uncertainty_mj": None,
    "method": None,
    "scope": None,
    "reason": "the counter did not move in 0.050 s: the window is shorter than its update period",
    "flags": ("energy_unknown",),
}
"""A window that the counter could not resolve."""


def beside(event: Event, name: str, **changes: object) -> Event:
    """A copy of a window's event with changes, told by a source of its own."""
    payload = event.payload.model_copy(update=changes)
    return event.model_copy(update={"payload": payload, "source": f"{event.source}-{name}"})


def test_evaluation_windows_too_short_to_read_neither_hide_nor_flag_what_training_used(
    database: Database,
) -> None:
    def evaluated(event: Event) -> Iterator[Event]:
        """An unread evaluation after every training window, told by a source of its own."""
        yield event
        if isinstance(event.payload, Window) and event.payload.phase == "training":
            yield beside(event, "evaluation", phase="evaluation", duration_s=0.05, steps=0, **UNREAD)

    run = summary(database, evaluated)
    assert run.energy_training_mj == 4_000_000.0
    assert (run.energy_evaluation_mj, run.flags, run.energy_reason) == (None, (), None)


def test_energy_to_a_target_comes_from_steady_steps_where_training_windows_were_too_short(
    database: Database,
) -> None:
    def steady(event: Event) -> Iterator[Event]:
        """Training is not resolved; behind it 50 steps hold steady for 20 s at 100 W on each board."""
        for unread in windows(**UNREAD)(event):
            yield from finish(target_step=80, seconds_to_target=0.5)(unread)
        if (
            isinstance(event.payload, Window)
            and event.payload.phase == "training"
            and event.payload.index == 0
        ):
            yield beside(event, "steady", phase="steady", duration_s=20.0, steps=50, energy_mj=2_000_000.0)

    run = summary(database, steady)
    assert run.energy_training_mj is None
    assert run.energy_per_step_mj == pytest.approx(80_000.0)
    assert run.energy_to_target_mj == pytest.approx(80 * 80_000.0)
    assert run.seconds_to_target == 0.5
    assert "from_steady" in run.flags


def test_a_bound_wider_than_was_asked_for_is_flagged(database: Database) -> None:
    assert summary(database, windows(uncertainty_mj=100_000.0)).flags == ("imprecise",)
    estimate = windows(uncertainty_mj=500_000.0, method="estimate", scope="process")
    assert summary(database, estimate).flags == ("estimated",)


def test_idle_power_is_the_mean_of_before_and_after(database: Database) -> None:
    def after(event: Event) -> Iterator[Event]:
        yield event
        if isinstance(event.payload, Window) and event.payload.phase == "idle_before":
            yield beside(event, "after", phase="idle_after", energy_mj=1.2 * (event.payload.energy_mj or 0.0))

    run = summary(database, after)
    assert run.idle_power_mw == pytest.approx(1.1 * 2 * 50_000.0)
