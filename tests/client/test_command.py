import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from api.examples import SPEC
from client.command import app
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.services.simulated_job import Figures, begun, ran

FIGURES = {"phantom": Figures(power_mw=50_000.0)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(Settings(data_dir=tmp_path_factory.mktemp("service")), FakeBackground()) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def ended(service: Service) -> str:
    """An experiment whose phantom arm used half of the energy; the first of all, since jobs take the oldest."""
    return ran(service.database, figures=FIGURES)


@pytest.fixture(scope="module", autouse=True)
def underway(service: Service, ended: str) -> str:
    """An experiment whose job has begun."""
    return begun(service.database)[0]


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    return file


def ghostwatt(service: Service, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"GHOSTWATT_URL": service.url}, input=text)


def test_submit_prints_the_id_alone(service: Service, spec_file: Path) -> None:
    result = ghostwatt(service, "submit", str(spec_file))
    assert result.exit_code == 0, result.output
    identifier = result.stdout.strip()
    assert service.http.get(f"/v1/experiments/{identifier}").json()["name"] == SPEC["name"]


def test_submit_reads_standard_input_and_prints_json(service: Service) -> None:
    result = ghostwatt(service, "submit", "-", "--json", text=json.dumps(SPEC))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "queued"


def test_a_repeated_submission_is_the_same_experiment(service: Service, spec_file: Path) -> None:
    first, second = (
        ghostwatt(service, "submit", str(spec_file), "--idempotency-key", "k").stdout for _ in range(2)
    )
    assert first == second


def test_a_bad_spec_is_a_usage_error_that_names_each_field(service: Service, spec_file: Path) -> None:
    spec_file.write_text(yaml.safe_dump({**SPEC, "model": {"width": 0, "depth": "x"}}))
    result = ghostwatt(service, "submit", str(spec_file))
    assert result.exit_code == 2
    assert "model.width = 0" in result.stderr
    assert "model.depth = x" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("text", ["{", "[]", "a: b: c", ""])
def test_a_file_that_is_no_document_is_a_usage_error(service: Service, spec_file: Path, text: str) -> None:
    spec_file.write_text(text)
    assert ghostwatt(service, "submit", str(spec_file)).exit_code == 2


def test_a_file_that_is_not_there_is_a_usage_error(service: Service, tmp_path: Path) -> None:
    result = ghostwatt(service, "validate", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr


def test_watch_ends_with_the_answer_on_standard_output(service: Service, ended: str) -> None:
    result = ghostwatt(service, "watch", ended)
    assert result.exit_code == 0, result.output
    assert "saves 50.0 %" in result.stdout
    assert "phantom against tensor" in result.stdout
    assert "round 1" in result.stderr
    assert "round 1" not in result.stdout


def test_watch_prints_json_that_a_program_can_read(service: Service, ended: str) -> None:
    answer = json.loads(ghostwatt(service, "watch", ended, "--json").stdout)
    assert answer["arms"][0]["primary"]["verdict"] == "saves"
    assert answer == service.http.get(f"/v1/experiments/{ended}/comparison").json() | {"arms": answer["arms"]}


def test_watch_of_an_experiment_that_ended_badly_is_1(service: Service) -> None:
    identifier = service.submit()
    service.http.post(f"/v1/experiments/{identifier}/cancel")
    result = ghostwatt(service, "watch", identifier)
    assert result.exit_code == 1
    assert "cancelled" in result.stderr


def test_watch_gives_up_when_told_to_and_leaves_the_experiment_alone(service: Service) -> None:
    identifier = service.submit()
    result = ghostwatt(service, "watch", identifier, "--timeout", "0")
    assert result.exit_code == 7
    assert "goes on" in result.stderr
    assert service.http.get(f"/v1/experiments/{identifier}").json()["state"] == "queued"


def test_submit_and_wait_gives_up_likewise_with_the_id_told(service: Service, spec_file: Path) -> None:
    result = ghostwatt(service, "submit", str(spec_file), "--wait", "--timeout", "0")
    assert result.exit_code == 7
    assert result.stdout.startswith("exp-")


def test_list_shows_what_there_is(service: Service, ended: str) -> None:
    result = ghostwatt(service, "list", "--state", "succeeded")
    assert result.exit_code == 0
    assert ended in result.stdout
    assert "6/6" in result.stdout
    listed = json.loads(ghostwatt(service, "list", "--state", "succeeded", "--limit", "1", "--json").stdout)
    assert [item["id"] for item in listed] == [ended]


def test_a_filter_that_is_none_is_refused(service: Service) -> None:
    result = ghostwatt(service, "list", "--state", "asleep")
    assert result.exit_code == 5
    assert "state" in result.stderr


def test_show_has_every_run_with_its_energy(service: Service, ended: str) -> None:
    result = ghostwatt(service, "show", ended)
    assert result.exit_code == 0
    assert result.stdout.count("phantom") >= 3
    assert "nvml.counter" in result.stdout
    assert json.loads(ghostwatt(service, "show", ended, "--json").stdout)["spec"]["name"] == "ghosts"


def test_compare_says_4_where_there_is_no_verdict(service: Service, ended: str) -> None:
    assert ghostwatt(service, "compare", ended).exit_code == 0
    assert ghostwatt(service, "compare", service.submit()).exit_code == 4


def test_compare_with_an_arm_that_is_none_is_refused(service: Service, ended: str) -> None:
    result = ghostwatt(service, "compare", ended, "--baseline", "nobody")
    assert result.exit_code == 5
    assert "nobody" in result.stderr
    assert ghostwatt(service, "compare", ended, "--baseline", "phantom").exit_code == 0


def test_validate_says_what_it_would_take(service: Service, spec_file: Path) -> None:
    result = ghostwatt(service, "validate", str(spec_file))
    assert result.exit_code == 0, result.output
    assert "(baseline)" in result.stdout
    assert "on 2 ranks" in result.stdout


def test_validate_of_what_can_not_run_is_2(service: Service, spec_file: Path) -> None:
    arms = [{"name": "phantom", "strategy": "phantom", "ghosts": 300, "world_size": 2}]
    spec_file.write_text(yaml.safe_dump({**SPEC, "arms": arms}))
    result = ghostwatt(service, "validate", str(spec_file))
    assert result.exit_code == 2
    assert "arms.0" in result.stdout


def test_cancel_and_delete(service: Service) -> None:
    identifier = service.submit()
    assert ghostwatt(service, "cancel", identifier).exit_code == 0
    assert service.http.get(f"/v1/experiments/{identifier}").json()["state"] == "cancelled"
    without = ghostwatt(service, "delete", identifier)
    assert without.exit_code == 2
    assert "--yes" in without.stderr
    assert ghostwatt(service, "delete", identifier, "--yes").exit_code == 0
    assert ghostwatt(service, "show", identifier).exit_code == 5


def test_an_experiment_that_ended_can_not_be_cancelled(service: Service, ended: str) -> None:
    result = ghostwatt(service, "cancel", ended)
    assert result.exit_code == 5
    assert "ended already" in result.stderr


def test_a_running_experiment_is_deleted_once_it_has_stopped(service: Service, underway: str) -> None:
    assert ghostwatt(service, "delete", underway, "--yes").exit_code == 0
    assert service.http.get(f"/v1/experiments/{underway}").json()["delete_requested_at"]


def test_a_service_that_is_not_there_is_3(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.http.PAUSE_S", 0.0)
    result = ghostwatt(service, "list", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "ghostwatt serve" in result.stderr


def test_an_unknown_command_is_a_usage_error(service: Service) -> None:
    assert ghostwatt(service, "dance").exit_code == 2
    assert ghostwatt(service, "watch").exit_code == 2


def test_ctrl_c_leaves_a_watched_experiment_running(service: Service) -> None:
    identifier = service.submit()
    with subprocess.Popen(
        [sys.executable, "-m", "client", "watch", identifier, "--url", service.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "queued" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"ghostwatt watch {identifier}" in stderr
    assert "Traceback" not in stderr
    assert service.http.get(f"/v1/experiments/{identifier}").json()["cancel_requested_at"] is None


def test_a_reader_who_has_seen_enough_is_no_error(service: Service) -> None:
    for number in range(3):
        service.submit(name=f"long list {number}")
    command = (
        f"{sys.executable} -m client list --json --url {service.url} | head -c 1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[0"
    assert "Traceback" not in done.stderr
