"""Signs of life go by the spool, and straight to the service where that would not do."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from phantom_core.plan import make_plan
from phantom_core.protocol import EVENT_ADAPTER, Alive, Assignment, Event
from phantom_core.spec import ExperimentSpec
from ray_jobs import signs
from ray_jobs.environment import JobEnvironment
from ray_jobs.service import Service as ReachedService
from ray_jobs.signs import STRAIGHT_SOURCE, Signs
from tests.ray_jobs.short_experiments import SHORT

JOB = JobEnvironment("http://127.0.0.1:9", "exp-1", "a token")


class Service:
    """Takes what is sent straight to it, or can't be reached."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_away = False
        self.status = 200

    def post(self, service: ReachedService, experiment_id: str, events: Sequence[Event]) -> httpx.Response:
        assert (service.urls, experiment_id) == (JOB.urls, JOB.experiment_id)
        if self.is_away:
            raise httpx.ConnectError("nobody answers")
        self.events += events
        return httpx.Response(self.status)

    @property
    def heard(self) -> list[tuple[str, int]]:
        return [(event.source, event.seq) for event in self.events]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr(signs, "post", made.post)
    return made


def opened(folder: Path) -> Signs:
    plan = make_plan(ExperimentSpec.model_validate(SHORT))
    return Signs(JOB, Assignment(experiment_id="exp-1", attempt=2, plan=plan, runs=()), folder)


def spooled(folder: Path) -> list[tuple[str, int]]:
    lines = (line for file in folder.glob("*.events") for line in file.read_bytes().splitlines())
    return [(event.source, event.seq) for event in map(EVENT_ADAPTER.validate_json, lines)]


def test_signs_are_spooled_as_long_as_the_disk_takes_them(tmp_path: Path, service: Service) -> None:
    with opened(tmp_path) as made:
        made.tell(Alive(ranks=2))
        made.tell(Alive(ranks=2))
    assert spooled(tmp_path) == [("pulse", 0), ("pulse", 1)]
    assert service.heard == []


def test_what_the_disk_does_not_take_goes_straight_and_to_the_disk_once_it_can(
    tmp_path: Path, service: Service
) -> None:
    folder = tmp_path / "not there yet"
    with opened(folder) as made:
        made.tell(Alive(ranks=2))
        made.tell(Alive(ranks=2))
        assert service.heard == [(STRAIGHT_SOURCE, 0), (STRAIGHT_SOURCE, 1)]
        assert {(event.subject_id, event.attempt) for event in service.events} == {("exp-1", 2)}
        folder.mkdir()
        made.tell(Alive(ranks=2))
    assert len(service.heard) == 2
    assert spooled(folder) == [("pulse", 0), ("pulse", 1), ("pulse", 2)]


def test_at_the_end_nothing_is_spooled_any_more(tmp_path: Path, service: Service) -> None:
    with opened(tmp_path) as made:
        made.tell(Alive(ranks=2))
        made.go_straight()
        made.tell(Alive(ranks=2))
    assert spooled(tmp_path) == [("pulse", 0)]
    assert service.heard == [(STRAIGHT_SOURCE, 0)]


def test_a_service_that_is_away_or_refuses_costs_the_sign_and_nothing_else(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as made:
        made.go_straight()
        service.is_away = True
        made.tell(Alive(ranks=2))
        service.is_away, service.status = False, 503
        made.tell(Alive(ranks=2))
    assert "ConnectError" in caplog.text
    assert "the service answered 503" in caplog.text
