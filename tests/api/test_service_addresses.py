"""Where a job may tell what it has to tell: any service of the database that lives."""

from services import heartbeats, leases
from tests.api.serving import Service


def test_a_job_hears_which_services_live_and_nobody_else_does(service: Service) -> None:
    path = "/internal/v1/services"
    service.submit()
    lease = leases.claim(service.database, "test", 30)
    assert lease is not None
    token = leases.begin_attempt(service.database, lease).token
    for owner, url in (("a", "http://a:8411"), ("b", "http://b:8411"), ("c", "http://b:8411")):
        heartbeats.beat(service.database, owner, {"service_url": url})
    told = service.http.get(path, headers={"Authorization": f"Bearer {token}"})
    assert told.status_code == 200
    assert set(told.json()["urls"]) >= {"http://a:8411", "http://b:8411"}
    assert len(told.json()["urls"]) == len(set(told.json()["urls"]))
    assert service.http.get(path).status_code == 401
    assert service.http.get(path, headers={"Authorization": "Bearer gw_no"}).status_code == 401
