"""A cluster that is not there yet, or not as it should be: what is said of it, where, and how often."""

import logging
from pathlib import Path
from typing import cast

import pytest

from phantom_core.capacity import Capacity
from services import dispatcher
from services.cluster import Cluster
from services.dispatcher import Dispatcher
from services.ray_requests import ClusterUnreachable
from services.settings import Settings


class Keeper(Dispatcher):
    """Looks at the cluster as often as there are answers, without a pause."""

    def __init__(self, settings: Settings, answers: list[Exception | Capacity]) -> None:
        super().__init__(settings)
        self.answers = answers

    def _reach_cluster(self) -> Cluster:
        return cast(Cluster, self)

    def capacity(self) -> Capacity:
        answer = self.answers.pop(0)
        if not self.answers:
            self._stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def look(self) -> None:
        self._mishaps._clock_s = lambda: 100.0 * (100 - len(self.answers))  # each comes late enough
        self._keep_cluster()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "CLUSTER_CHECK_S", 0.0)
    monkeypatch.setattr(dispatcher, "FIRST_CHECK_S", 0.0)


def keeper(tmp_path: Path, *answers: Exception | Capacity, ray_address: str | None = None) -> Keeper:
    made = Keeper(Settings(data_dir=tmp_path, ray_address=ray_address), list(answers))
    made.look()
    return made


def away() -> ClusterUnreachable:
    return ClusterUnreachable("nobody answers")


HAS = Capacity(cpus=8, gpus=0)


def test_what_can_be_expected_is_logged_once_and_is_the_cluster_s_problem_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = keeper(
        tmp_path, away(), away(), away(), FileNotFoundError("no token"), FileNotFoundError("no token")
    )
    assert made.cluster_problem() == "no token"
    assert made.trouble() is None
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "keeping the cluster: nobody answers; trying again",
        "keeping the cluster: no token; trying again",
    ]


def test_a_cluster_that_comes_back_is_told_and_its_next_absence_is_logged_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = keeper(tmp_path, away(), HAS, away(), HAS)
    assert (made.cluster_problem(), made.trouble()) == (None, None)
    assert caplog.text.count("nobody answers") == caplog.text.count("works again") == 2


def test_what_nobody_expected_is_trouble_and_its_words_are_for_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = keeper(tmp_path, HAS, TypeError("a secret"), TypeError("a secret"))
    assert "keeping the cluster (TypeError)" in (made.trouble() or "")
    assert "TypeError" in (made.cluster_problem() or "")
    assert "secret" not in f"{made.trouble()} {made.cluster_problem()}"
    failures = [record for record in caplog.records if record.exc_info is not None]
    assert len(failures) == 1


def test_an_own_head_s_workers_have_what_this_interpreter_has_and_others_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_there in (True, False):
        monkeypatch.setattr(dispatcher, "find_spec", lambda name, found=is_there: name if found else None)
        assert _measured(keeper(tmp_path, HAS)).has_triton is is_there
    assert _measured(keeper(tmp_path, HAS, ray_address="http://head:8265")).has_triton is None


def _measured(made: Keeper) -> Capacity:
    assert made._capacity is not None
    return made._capacity
