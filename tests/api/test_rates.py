from pathlib import Path

import pytest

from api.rates import REMEMBERED_CALLERS, RateLimiter, TooManyRequests
from services import keys
from services.settings import Settings
from tests.api.serving import FakeBackground, running


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_let_through_and_then_the_steady_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(requests_per_s=2, burst=3, clock=clock)
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("a")
    clock.now_s = 0.5
    limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("a")


def test_callers_do_not_share_a_bucket() -> None:
    limiter = RateLimiter(requests_per_s=1, burst=1, clock=Clock())
    limiter.take("a")
    limiter.take("b")


def test_a_quiet_caller_gains_no_more_than_a_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(requests_per_s=1_000, burst=2, clock=clock)
    limiter.take("a")
    clock.now_s = 3_600
    limiter.take("a")
    limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("a")


def test_memory_is_bounded() -> None:
    limiter = RateLimiter(clock=Clock())
    for number in range(REMEMBERED_CALLERS + 10):
        limiter.take(str(number))
    assert len(limiter._buckets) == REMEMBERED_CALLERS


def test_too_many_requests_are_a_problem_that_says_when_to_come_back(tmp_path: Path) -> None:
    limiter = RateLimiter(requests_per_s=0.01, burst=2)
    with running(Settings(data_dir=tmp_path), FakeBackground(), limiter=limiter) as service:
        statuses = [service.http.get("/v1/experiments").status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        response = service.http.get("/v1/experiments")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["code"] == "too-many-requests"
        assert 0 < int(response.headers["Retry-After"]) <= 100
        assert service.http.get("/healthz").status_code == 200


def test_guessing_keys_is_limited_by_where_it_comes_from_and_hurts_nobody_with_a_key(tmp_path: Path) -> None:
    limiter = RateLimiter(requests_per_s=0.01, burst=3)
    with running(
        Settings(data_dir=tmp_path, require_keys=True), FakeBackground(), limiter=limiter
    ) as service:
        key = keys.create(service.database, "mine", [keys.Scope.READ]).token
        wrong = {"Authorization": f"Bearer {key[:-4]}AAAA"}
        statuses = [service.http.get("/v1/queue", headers=wrong).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        looked = service.http.post("/internal/v1/events", json={}, headers=wrong)
        assert looked.status_code == 429


def test_addresses_that_are_open_to_everyone_are_limited_too(tmp_path: Path) -> None:
    limiter = RateLimiter(requests_per_s=0.01, burst=2)
    with running(
        Settings(data_dir=tmp_path, require_keys=True), FakeBackground(), limiter=limiter
    ) as service:
        assert [service.http.get("/readyz").status_code for _ in range(3)] == [200, 200, 429]
