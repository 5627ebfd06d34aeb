import math
from collections.abc import Iterator

import pytest

from phantom_core.protocol import Window
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.services.simulated_job import Figures, begun, deliver, ran

FIGURES = {"phantom": Figures(power_mw=50_000.0)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(Settings(data_dir=tmp_path_factory.mktemp("runs")), FakeBackground()) as found:
        yield found


@pytest.fixture(scope="module")
def ended(service: Service) -> str:
    """An experiment whose phantom arm used half of the energy, and never learnt anything."""
    return ran(service.database, figures={"phantom": Figures(power_mw=50_000.0, loss=math.nan)})


def run_of(service: Service, experiment: str, arm: str) -> dict[str, object]:
    page = service.http.get(f"/v1/experiments/{experiment}/runs", params={"arm": arm}).json()
    found: dict[str, object] = page["items"][0]
    return found


def test_runs_are_listed_in_order_and_paged(service: Service, ended: str) -> None:
    path = f"/v1/experiments/{ended}/runs"
    everything = service.http.get(path).json()
    assert [(run["round"], run["position"]) for run in everything["items"]] == [
        (number, position) for number in range(3) for position in range(2)
    ]
    first = service.http.get(path, params={"limit": 4}).json()
    rest = service.http.get(path, params={"limit": 4, "cursor": first["next_cursor"]}).json()
    assert [*first["items"], *rest["items"]] == everything["items"]
    assert rest["next_cursor"] is None


def test_runs_are_filtered_by_arm_and_state(service: Service, ended: str) -> None:
    path = f"/v1/experiments/{ended}/runs"
    phantom = service.http.get(path, params={"arm": "phantom"}).json()["items"]
    assert {run["arm"] for run in phantom} == {"phantom"}
    assert service.http.get(path, params={"state": "failed"}).json()["items"] == []
    assert service.http.get(path, params={"state": "bored"}).status_code == 422


def test_a_run_has_its_energy_with_method_and_attempts(service: Service, ended: str) -> None:
    run = service.http.get(f"/v1/runs/{run_of(service, ended, 'tensor')['id']}").json()
    assert run["energy_training_mj"] == pytest.approx(100_000.0 * 20 * 2)
    assert run["method"] == "nvml.counter"
    assert len(run["attempts"]) == 1


def test_a_number_that_is_none_is_null_and_named(service: Service, ended: str) -> None:
    run = service.http.get(f"/v1/runs/{run_of(service, ended, 'phantom')['id']}").json()
    assert run["final_evaluation_loss"] is None
    assert run["non_finite"]["final_evaluation_loss"] == "nan"
    history = service.http.get(f"/v1/runs/{run['id']}/metrics", params={"name": "evaluation_loss"}).json()
    [series] = history["series"]
    assert series["value"] == [None, None]
    assert series["non_finite"] == {"0": "nan", "1": "nan"}
    assert series["step"] == [50, 100]


def test_metrics_are_chosen_and_thinned_out(service: Service, ended: str) -> None:
    path = f"/v1/runs/{run_of(service, ended, 'tensor')['id']}/metrics"
    assert [series["name"] for series in service.http.get(path).json()["series"]] == [
        "evaluation_loss",
        "train_loss",
    ]
    only = service.http.get(path, params={"name": "train_loss", "max_points": 2}).json()["series"]
    assert [(series["name"], len(series["step"])) for series in only] == [("train_loss", 2)]
    assert service.http.get(path, params={"name": "No Name"}).status_code == 422
    assert service.http.get(path, params={"attempt": 0}).status_code == 422


def test_power_has_every_board_with_its_windows(service: Service, ended: str) -> None:
    power = service.http.get(f"/v1/runs/{run_of(service, ended, 'tensor')['id']}/power").json()
    assert {series["device_uuid"] for series in power["series"]} == {"GPU-0", "GPU-1"}
    assert {window["phase"] for window in power["windows"]} >= {"training"}
    thinned = service.http.get(
        f"/v1/runs/{run_of(service, ended, 'tensor')['id']}/power", params={"max_points": 2}
    ).json()
    assert all(len(series["at"]) <= 3 for series in thinned["series"])


def test_the_comparison_pairs_the_rounds(service: Service, ended: str) -> None:
    answer = service.http.get(f"/v1/experiments/{ended}/comparison").json()
    [phantom] = answer["arms"]
    assert phantom["primary"]["pairs"] == 3
    assert phantom["primary"]["ratio"] == pytest.approx(0.5)
    assert answer["final"]
    turned = service.http.get(f"/v1/experiments/{ended}/comparison", params={"baseline": "phantom"}).json()
    assert turned["arms"][0]["primary"]["ratio"] == pytest.approx(2.0)
    nobody = service.http.get(f"/v1/experiments/{ended}/comparison", params={"baseline": "nobody"})
    assert (nobody.status_code, nobody.json()["code"]) == (422, "not-comparable")


def test_the_page_shows_the_answer_with_interval_and_verdict(service: Service, ended: str) -> None:
    text = service.http.get(f"/experiments/{ended}").text
    assert "saves 50.0 %" in text
    assert "[0.5" in text
    assert "nvml.counter" in text
    assert "saves 50.0 %" in service.http.get("/").text


def test_an_estimate_is_labelled_wherever_it_is_shown(service: Service) -> None:
    estimate = {"method": "estimate", "scope": "process", "flags": ("estimated",)}
    _, _, job = begun(service.database)
    events = [
        event.model_copy(update={"payload": event.payload.model_copy(update=estimate)})
        if isinstance(event.payload, Window)
        else event
        for event in job.everything(FIGURES)
    ]
    deliver(service.database, job, events)
    identifier = job.assignment.experiment_id
    answer = service.http.get(f"/v1/experiments/{identifier}/comparison").json()
    assert answer["estimated"]
    assert "estimated" in answer["arms"][0]["primary"]["sentence"]
    [listed] = service.http.get("/v1/experiments", params={"limit": 1}).json()["items"]
    assert (listed["id"], listed["verdicts"][0]["estimated"]) == (identifier, True)
    assert "estimate, not a measurement" in service.http.get(f"/experiments/{identifier}").text
    assert "saves 50.0 % (estimate)" in service.http.get("/").text
