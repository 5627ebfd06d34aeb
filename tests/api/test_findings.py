"""Verdicts across experiments, as they are asked for over HTTP, from Python and on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from client.client import GhostwattClient
from client.command import app
from services.settings import Settings
from services.tables import Comparison, Device
from tests.api.serving import FakeBackground, Service, running
from tests.services.simulated_job import Figures, ran, spec

SENTENCE = {
    "strategy": "phantom", "board": "H100", "saving_at_least": 0.3, "verdict": "saves", "equal_loss": "true",
}  # fmt: skip
"""All phantom runs on H100s that saved more than 30 % at equal loss."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(Settings(data_dir=tmp_path_factory.mktemp("findings")), FakeBackground()) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(service: Service) -> str:
    """The one experiment that the sentence means, among others that each miss one word of it."""

    def saved(share: float, board: str | None = None, **changes: object) -> str:
        figures = {"phantom": Figures(power_mw=100_000.0 * (1 - share))}
        identifier = ran(service.database, spec(**changes), figures)
        if board is not None:
            with service.database.write() as session:
                session.execute(update(Device).where(Device.experiment_id == identifier).values(name=board))
        return identifier

    saved(0.1)
    saved(0.4, board="NVIDIA H200")
    other_loss, unknown_loss = saved(0.4), saved(0.4)
    with service.database.write() as session:
        session.execute(
            update(Comparison).where(Comparison.experiment_id == other_loss).values(loss_differs=True)
        )
        session.execute(
            update(Comparison)
            .where(Comparison.experiment_id == unknown_loss, Comparison.metric == "final_evaluation_loss")
            .values(ratio=None)
        )
    other_arm = [
        {"strategy": "tensor", "name": "tensor", "world_size": 2},
        {"strategy": "block_diagonal", "name": "phantom", "world_size": 2},
    ]
    saved(0.4, arms=other_arm)
    return saved(0.4, tags={"team": "a"})


def ids(service: Service, **query: Any) -> list[str]:
    response = service.http.get("/v1/findings", params=query)
    assert response.status_code == 200, response.text
    return [item["experiment_id"] for item in response.json()["items"]]


def test_all_phantom_runs_on_h100s_that_saved_more_than_thirty_per_cent_at_equal_loss(
    service: Service, wanted: str
) -> None:
    assert ids(service, **SENTENCE) == [wanted]


@pytest.mark.parametrize("left_out", SENTENCE)
def test_every_word_of_the_sentence_counts(service: Service, wanted: str, left_out: str) -> None:
    less = {name: value for name, value in SENTENCE.items() if name != left_out}
    if left_out == "verdict":
        less = {**less, "verdict": "costs_more"}
        assert ids(service, **less) == []
        return
    assert set(ids(service, **less)) > {wanted}


def test_the_command_and_the_client_find_the_same(service: Service, wanted: str) -> None:
    with GhostwattClient(service.url) as client:
        found = client.findings(strategy="phantom", board="H100", saving_at_least=0.3, equal_loss=True)
        assert [each.experiment_id for each in found] == [wanted]
        paged = [each.experiment_id for each in client.findings(order="largest_saving", limit=3)]
        assert len(paged) == 3
    arguments = "find --strategy phantom --board H100 --saving 30 --verdict saves --equal-loss --tag team=a"
    environment = {"GHOSTWATT_URL": service.url, "COLUMNS": "200"}
    result = CliRunner().invoke(app, [*arguments.split(), "--json"], env=environment)
    assert result.exit_code == 0, result.output
    assert [each["experiment_id"] for each in json.loads(result.stdout)] == [wanted]
    table = CliRunner().invoke(app, arguments.split(), env=environment).stdout
    assert wanted in table
    assert "saves 40" in table
    nothing = CliRunner().invoke(app, ["find", "--board", "TPU"], env=environment)
    assert (nothing.exit_code, nothing.stdout) == (0, "")


@pytest.mark.parametrize(
    "query",
    [
        {"colour": "red"},
        {"saving_at_least": "nan"},
        {"saving_at_least": "inf"},
        {"saving_at_least": 1},
        {"verdict": "wins"},
        {"order": "name"},
        {"width_at_least": 2**31},
        {"world_size": 0},
        {"board": "\x00"},
        {"tag": "no-value"},
        {"submitted_after": "yesterday"},
        {"submitted_after": "2026-01-01T00:00:00"},
        {"cursor": "e30"},
        {"limit": 0},
        {"limit": 201},
        {"metric": "'; DROP TABLE runs; --"},
    ],
)
def test_what_can_not_be_asked_is_refused(service: Service, wanted: str, query: dict[str, Any]) -> None:
    response = service.http.get("/v1/findings", params=query)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"


def test_a_cursor_belongs_to_its_question(service: Service, wanted: str) -> None:
    page = service.http.get("/v1/findings", params={"limit": 2}).json()
    rest = ids(service, limit=2, cursor=page["next_cursor"])
    assert not set(rest) & {item["experiment_id"] for item in page["items"]}
    for changed in ({"strategy": "phantom"}, {"order": "largest_saving"}, {"equal_loss": "true"}):
        response = service.http.get("/v1/findings", params={"cursor": page["next_cursor"], **changed})
        assert (response.status_code, response.json()["code"]) == (422, "invalid-query")


def test_a_data_folder_is_not_needed_to_ask(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["find", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 3
    assert not list(tmp_path.iterdir())
