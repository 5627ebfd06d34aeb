"""Power blocks: what is packed comes back to the bit, whatever it was."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantom_core.protocol import PowerSamples
from services.power_blocks import cut, joined, moment, pack, readings_of, unpack

MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(8999, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
POWERS = st.one_of(st.none(), st.floats())


@given(
    st.lists(
        st.tuples(MOMENTS, st.floats(allow_nan=False, allow_infinity=False), POWERS), min_size=1, max_size=50
    ),
    st.booleans(),
)
def test_readings_come_back_to_the_bit(
    readings: list[tuple[datetime, float, float | None]], has_utilization: bool
) -> None:
    samples = PowerSamples(
        host="h",
        device_uuid="u",
        method="instant",
        at=tuple(at for at, _, _ in readings),
        monotonic_s=tuple(monotonic_s for _, monotonic_s, _ in readings),
        power_mw=tuple(power_mw for _, _, power_mw in readings),
        utilization_percent=tuple(50.0 for _ in readings) if has_utilization else (),
    )
    back = unpack(pack(readings_of(samples)))
    assert [moment(at) for at in back.at_us.tolist()] == list(samples.at)
    assert back.monotonic_s.tolist() == list(samples.monotonic_s)
    expected = [mw if mw is not None and math.isfinite(mw) else None for mw in samples.power_mw]
    assert [None if math.isnan(mw) else mw for mw in back.power_mw.tolist()] == expected
    assert (back.utilization_percent is not None) == has_utilization


def test_a_second_of_samples_takes_a_few_bytes_each() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    random = np.random.default_rng(0)
    count = 1_200
    samples = PowerSamples(
        host="h",
        device_uuid="u",
        method="instant",
        at=tuple(start + timedelta(seconds=number / 10, microseconds=number % 50) for number in range(count)),
        monotonic_s=tuple(number / 10 + 1e-6 * (number % 50) for number in range(count)),
        power_mw=tuple(float(mw) for mw in random.integers(400_000, 600_000, count)),
    )
    assert len(pack(readings_of(samples))) < 14 * count


def test_blocks_join_in_order_of_the_monotonic_clock() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    parts = []
    for first in (20, 0, 10):
        samples = PowerSamples(
            host="h",
            device_uuid="u",
            method="instant",
            at=tuple(start for _ in range(10)),
            monotonic_s=tuple(float(first + number) for number in range(10)),
            power_mw=tuple(float(first + number) for number in range(10)),
        )
        parts.append(readings_of(samples))
    together = joined(parts)
    assert together.power_mw.tolist() == [float(number) for number in range(30)]


def test_a_block_of_a_later_version_is_not_misread() -> None:
    with pytest.raises(ValueError, match="power block of version 9"):
        unpack(bytes([9, 0]) + b"anything")


def test_long_series_are_cut_so_that_no_part_is_longer_than_a_minute() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [300.0, 0.0, 59.0, 60.0, 60.5, 61.0, 200.0]
    readings = readings_of(
        PowerSamples(
            host="h",
            device_uuid="u",
            method="instant",
            at=tuple(start for _ in times),
            monotonic_s=tuple(times),
            power_mw=tuple(times),
        )
    )
    parts = [part.power_mw.tolist() for part in cut(readings)]
    assert parts == [[0.0, 59.0, 60.0], [60.5, 61.0], [200.0], [300.0]]
