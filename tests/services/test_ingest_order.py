"""Events land once, in any order and however often they are sent: the rows at the end are the same."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phantom_core.protocol import Event
from services.database import Database
from tests.services.rows import snapshot
from tests.services.simulated_job import Figures, begun, deliver, spec

ROUNDS = {"rounds": 3}
FIGURES = {"phantom": Figures(power_mw=60_000.0, window_s=4.0), "tensor": Figures(window_s=4.0)}


@pytest.fixture
def in_order(database: Database) -> dict[str, list[str]]:
    """Rows of an experiment whose events came once, in order, one batch."""
    identifier, _, job = begun(database, spec(measurement=ROUNDS))
    deliver(database, job, job.everything(FIGURES))
    return snapshot(database, identifier)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_rows_do_not_depend_on_order_repetition_or_batching(
    database: Database, in_order: dict[str, list[str]], data: st.DataObject
) -> None:
    identifier, _, job = begun(database, spec(measurement=ROUNDS))
    events = job.everything(FIGURES)
    sent = data.draw(st.permutations(events), label="order")
    sent = sent + data.draw(st.lists(st.sampled_from(events), max_size=10), label="repeated")
    accepted = 0
    for batch in _cut(sent, data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=6), label="cuts")):
        result = deliver(database, job, batch)
        assert result.rejected == {}
        accepted += result.accepted
    assert accepted == len(events)
    found = snapshot(database, identifier)
    for table, rows in in_order.items():
        assert found[table] == rows, table


def _cut(events: Sequence[Event], places: set[int]) -> list[list[Event]]:
    edges = [0, *sorted(places), len(events)]
    return [list(events[start:end]) for start, end in itertools.pairwise(edges)]
