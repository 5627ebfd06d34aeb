"""Metric points in blocks: what is read is what was sent, whatever the events' order, sizes and shapes."""

import math
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phantom_core.protocol import Event, MetricPoint, Metrics
from services import histories
from services.database import Database
from services.metric_blocks import Points, unpack
from services.metric_packing import Block, pack
from services.summaries import name_of
from tests.services.simulated_job import begun, deliver

LARGEST = 2**63 - 1
NAMES = ["loss", "train_loss", "null", "a", "x" * 64]

floats = st.floats(allow_nan=True, allow_infinity=True)
steps = st.one_of(st.integers(0, 20), st.integers(-LARGEST, LARGEST))


def points_strategy(most: int) -> st.SearchStrategy[list[MetricPoint]]:
    """Points of one event."""
    return st.lists(
        st.builds(
            MetricPoint,
            step=steps,
            name=st.sampled_from(NAMES),
            value=floats,
            energy_mj=st.none() | floats,
            training_s=st.none() | floats,
        ),
        max_size=most,
    )


def known(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def bits(figure: float) -> str:
    """Tells -0.0 from 0.0, and takes all NaN for one."""
    return repr(figure)


def unpacked(*blocks: Block) -> Points:
    return unpack([block.first_step for block in blocks], [block.packed for block in blocks])


Shown = tuple[int, str, float | None, float | None]
"""Step, value, energy, seconds."""


def shown(point: MetricPoint) -> Shown:
    return point.step, bits(point.value), known(point.energy_mj), known(point.training_s)


@given(st.lists(points_strategy(12).filter(bool), max_size=8))
def test_blocks_hold_exactly_what_was_packed(events: list[list[MetricPoint]]) -> None:
    found = unpacked(*[pack(told) for told in events])
    read: list[list[tuple[str, Shown]]] = [[] for _ in events]
    for place, number in enumerate(found.block.tolist()):
        energy_mj, training_s = float(found.energy_mj[place]), float(found.training_s[place])
        told = MetricPoint(
            step=int(found.step[place]),
            name=found.names[found.name[place]],
            value=float(found.value[place]),
            energy_mj=energy_mj,
            training_s=training_s,
        )
        read[number].append((told.name, shown(told)))
    assert read == [[(point.name, shown(point)) for point in told] for told in events]


@pytest.mark.parametrize("spread", [0, 1, 255, 256, 2**16 - 1, 2**16, 2**24, 2**32 - 1, 2**32, 2**64 - 2])
def test_steps_of_any_spread_come_back(spread: int) -> None:
    told = [MetricPoint(step=step - LARGEST, name="a", value=1.0) for step in (0, spread, spread // 2)]
    assert unpacked(pack(told)).step.tolist() == [point.step for point in told]


@pytest.mark.parametrize("count", [1, 2, 256, 257, 70_000])
def test_any_number_of_names_comes_back(count: int) -> None:
    told = [MetricPoint(step=0, name=f"m{number}", value=float(number)) for number in range(count)]
    found = unpacked(pack(told))
    assert [found.names[place] for place in found.name.tolist()] == [point.name for point in told]


def test_a_point_alone_takes_little_more_than_its_figures() -> None:
    alone = MetricPoint(step=10**12, name="loss", value=0.1, energy_mj=0.2, training_s=0.3)
    assert len(pack([alone]).packed) == 2 + len("loss\n") + 3 * 8


def test_a_block_of_a_later_version_is_not_guessed_at() -> None:
    block = pack([MetricPoint(step=0, name="a", value=1.0)])
    with pytest.raises(ValueError, match="metric block of version 9; this version of Ghostwatt reads 1"):
        unpacked(Block(block.first_step, b"\x09" + block.packed[1:]))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_what_is_read_is_what_was_sent(database: Database, data: st.DataObject) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    events: list[Event] = []
    for source in ("rank-0", "rank-1"):
        for seq, told in enumerate(data.draw(st.lists(points_strategy(9), max_size=6), label=source)):
            payload = Metrics(points=tuple(told))
            events.append(
                Event(
                    subject_id=run.run_id,
                    attempt=run.attempt,
                    source=source,
                    seq=seq,
                    at=job.at(),
                    payload=payload,
                )
            )
    sent = data.draw(st.permutations(events + events[:2]), label="order")
    size = data.draw(st.integers(1, 5), label="events a batch")
    accepted = sum(
        deliver(database, job, sent[start : start + size]).accepted for start in range(0, len(sent), size)
    )
    assert accepted == len(events)
    found = histories.metric_history(database, run.run_id)
    read = {
        series.name: [
            (step, bits(value if value is not None else float(series.non_finite[index])), energy_mj, seconds)
            for index, (step, value, energy_mj, seconds) in enumerate(
                zip(series.step, series.value, series.energy_mj, series.training_s, strict=True)
            )
        ]
        for series in found.series
    }
    assert read == expected(events)
    assert list(read) == sorted(read)
    chosen = histories.metric_history(database, run.run_id, names=NAMES[:2]).series
    assert [series.name for series in chosen] == [name for name in sorted(NAMES[:2]) if name in read]


def expected(events: Sequence[Event]) -> dict[str, list[Shown]]:
    """Points by name and step; those of one step in the order of the events, and within one as told."""
    series: defaultdict[str, list[Shown]] = defaultdict(list)
    for event in sorted(events, key=lambda each: (each.seq, each.source)):
        assert isinstance(event.payload, Metrics)
        for point in event.payload.points:
            series[point.name].append(shown(point))
    return {name: sorted(told, key=lambda each: each[0]) for name, told in series.items()}


def test_what_is_not_finite_has_its_name_at_its_place_in_a_thinned_history(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    values = [1.0, math.nan, 2.0, math.inf, 3.0, -math.inf]
    for value, step in zip(values, range(len(values)), strict=True):
        told = Metrics(points=(MetricPoint(step=step, name="loss", value=value),))
        deliver(database, job, [job.rank0.event(run.run_id, run.attempt, job.at(), told)])
    (series,) = histories.metric_history(database, run.run_id, max_points=3).series
    assert series.step == (0, 2, 5)
    assert series.value == (1.0, 2.0, None)
    assert series.non_finite == {2: name_of(-math.inf)}
