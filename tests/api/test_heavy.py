"""Documents that cost seconds to read."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from api import bodies
from api.examples import SPEC
from api.heavy import HEAVY_JSON_BYTES, HEAVY_YAML_BYTES, WAITING, HeavyDocuments, TooManyHeavy
from phantom_core.documents import parse_yaml
from tests.api.serving import Service

YAML = {"Content-Type": "application/yaml"}


def test_one_has_its_turn_a_few_wait_and_the_rest_is_refused() -> None:
    heavy, inside, go_on = HeavyDocuments(), threading.Semaphore(0), threading.Event()

    def read() -> None:
        with heavy.turn(is_heavy=True):
            inside.release()
            assert go_on.wait(300)

    with ThreadPoolExecutor(1 + WAITING) as pool:
        readers = [pool.submit(read) for _ in range(1 + WAITING)]
        assert inside.acquire(timeout=30)
        while heavy._places._value:  # until all the others wait
            time.sleep(0.01)
        with pytest.raises(TooManyHeavy), heavy.turn(is_heavy=True):
            pass
        with heavy.turn(is_heavy=False):
            pass
        assert not inside.acquire(blocking=False)
        go_on.set()
        for reader in readers:
            reader.result()
    with heavy.turn(is_heavy=True):
        pass


def test_long_yaml_keeps_nobody_with_a_short_spec_waiting(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(text: str) -> object:
        if len(text) > HEAVY_YAML_BYTES:
            begun.release()
            assert go_on.wait(300)
        return parse_yaml(text)

    def send(_number: int) -> int:
        text = "# " + "x" * HEAVY_YAML_BYTES + "\nname: long\n"
        url = f"{service.url}/v1/experiments:validate"
        return httpx.post(url, content=text, headers=YAML, timeout=300).status_code

    monkeypatch.setattr(bodies, "parse_yaml", slow)
    with ThreadPoolExecutor(50) as pool:
        long = [pool.submit(send, number) for number in range(50)]
        assert begun.acquire(timeout=300)
        while sum(each.done() for each in long) < 50 - 1 - WAITING:
            time.sleep(0.01)
        short = service.http.post("/v1/experiments:validate", json=SPEC)
        assert short.status_code == 200
        go_on.set()
        statuses = [each.result() for each in long]
    assert sorted(set(statuses)) == [422, 503]
    assert statuses.count(422) == 1 + WAITING


def test_specs_that_people_write_wait_for_nobody() -> None:
    assert HEAVY_YAML_BYTES < HEAVY_JSON_BYTES
    assert len(str(SPEC)) < HEAVY_YAML_BYTES
