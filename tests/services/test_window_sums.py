"""Sums of windows: each board once, whoever told of it; unknown rather than too low; never below zero."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phantom_core.protocol import DeviceInfo
from ray_jobs.spent import reads_device
from services.window_rows import WindowRow
from services.window_sums import distinct, sum_over

BOARDS = (1, 2, 3)


def row(number: int, device: int, source: str, energy_mj: float | None, phase: str = "training") -> WindowRow:
    return WindowRow(
        key=0,
        attempt=1,
        run_key=1,
        device_key=device,
        experiment_attempt=1,
        source=source,
        seq=number,
        phase=phase,
        number=number,
        charged=True,
        started_monotonic_s=float(number),
        duration_s=1.0,
        steps=1,
        samples=1,
        energy_mj=energy_mj,
        uncertainty_mj=None if energy_mj is None else 1.0,
        method="nvml.counter",
        scope="gpu",
        reason=None if energy_mj is not None else "lost",
        flags=None,
        integral_mj=None,
        integral_uncertainty_mj=None,
        sample_count=0,
        largest_gap_s=None,
        seen_flags=None,
    )


told = st.tuples(st.integers(0, 3), st.sampled_from(BOARDS), st.sampled_from("abcd"), st.booleans())


@settings(deadline=None)
@given(windows=st.lists(told, max_size=40), used=st.sets(st.sampled_from(BOARDS), min_size=1))
def test_a_sum_has_every_board_of_every_window_once_or_is_unknown(
    windows: list[tuple[int, int, str, bool]], used: set[int]
) -> None:
    def energy_mj(number: int, device: int) -> float:
        return float(10 ** (number + 4 * device))

    of_used = [each for each in windows if each[1] in used]
    rows = [
        row(n, device, source, energy_mj(n, device) if read else None) for n, device, source, read in of_used
    ]
    total = sum_over(distinct(rows), used)
    numbers = {n for n, _, _, _ in of_used}
    known = {(n, device) for n, device, _, read in of_used if read}
    wanted = {(n, device) for n in numbers for device in used}
    if numbers and known == wanted:
        assert total.energy_mj == sum(energy_mj(*each) for each in wanted)
        assert total.uncertainty_mj == len(wanted)
    else:
        assert total.energy_mj is None
        assert total.reason


def board(host: str, uuid: str) -> DeviceInfo:
    return DeviceInfo(host=host, uuid=uuid, kind="cuda", name="board", method=None, scope=None)


boards = st.builds(board, st.sampled_from(["host-a", "host-b"]), st.sampled_from(["GPU-1", "GPU-2", "GPU-3"]))


@given(devices=st.lists(boards, min_size=1, max_size=12), size=st.integers(1, 12))
def test_of_ranks_that_share_a_board_one_alone_reads_it_and_none_from_outside_the_arm(
    devices: list[DeviceInfo], size: int
) -> None:
    team = devices[:size]
    reading = [rank for rank in range(len(devices)) if reads_device(team, rank)]
    names = [(devices[rank].host, devices[rank].uuid) for rank in reading]
    assert len(names) == len(set(names))
    assert set(names) == {(device.host, device.uuid) for device in team}
