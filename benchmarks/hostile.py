"""Ten thousand hostile requests to a service in a process of its own: what it answers, and how long it takes.

    python -m benchmarks.hostile [--cases 10000] [--out benchmarks/results/hostile.json]

Requests come from `benchmarks.hostile_asks`: the project's own strategies, and Schemathesis over the service's OpenAPI
document. The service's Ray address is one where nothing listens, since nothing is to be run. Every answer with a status
of 400 or more must be a problem document, none may be a 5xx, and none may take longer than `LONGEST_S`; the first that
is otherwise is printed with what was asked, and the exit code is 1.
"""

import argparse
import http.client
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as examples
from hypothesis import strategies as st

from benchmarks.hostile_asks import Known, strategies_of
from benchmarks.http_load import Ask
from benchmarks.main_job import service_process
from benchmarks.record import record
from services import job_logs, leases
from services.assignments import assignment
from services.database import Database
from services.experiments import submit
from services.log_parts import LogPart
from services.settings import Settings
from tests.running import free_port
from tests.services.simulated_job import SimulatedJob, spec

LONGEST_S = 10.0
"""An answer that takes longer counts as a hang."""
SEED = 8411
LOG = "".join(f"line {number}\n" for number in range(50_000))
PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    kind: str
    """Content type."""
    body: bytes
    """The first piece of it where the answer is a stream."""
    seconds: float


@dataclass
class Tally:
    """What became of one kind of requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    faults: int = 0
    """Answers that are not as they should be, or that never came."""
    unsendable: int = 0
    """Requests that HTTP has no way to write down."""


class Caller:
    """Sends whatever it is given over one connection at a time."""

    def __init__(self, url: str, longest_s: float) -> None:
        """Args: the service's address, and how long an answer may take."""
        parts = urlsplit(url)
        self.longest_s = longest_s
        self._host, self._port = str(parts.hostname), parts.port
        self._connection: http.client.HTTPConnection | None = None

    def send(self, ask: Ask) -> Answer | None:
        """One exchange; None where the request can't be written down.

        Raises:
            TimeoutError: No answer in time.
        """
        kept, self._connection = self._connection, None
        if kept is not None:
            try:
                return self._exchange(kept, ask)
            except (http.client.RemoteDisconnected, ConnectionError):
                # It was idle while the next request was thought up, and the service closes what is idle.
                kept.close()
        return self._exchange(http.client.HTTPConnection(self._host, self._port, timeout=self.longest_s), ask)

    def _exchange(self, connection: http.client.HTTPConnection, ask: Ask) -> Answer | None:
        began_s = time.perf_counter()
        try:
            connection.request(ask.method, ask.path, ask.body, dict(ask.headers))
        except (ValueError, http.client.InvalidURL, UnicodeError):
            connection.close()
            return None
        response = connection.getresponse()
        kind = response.headers.get("content-type", "")
        is_stream = kind.startswith("text/event-stream")
        body = response.read1() if is_stream else response.read()
        answer = Answer(response.status, kind, body, time.perf_counter() - began_s)
        if is_stream or response.will_close:
            connection.close()
        else:
            self._connection = connection
        return answer


def fault_of(ask: Ask, answer: Answer, longest_s: float = LONGEST_S) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    if answer.status >= 500:
        return f"status {answer.status}"
    if answer.seconds > longest_s:
        return f"{answer.seconds:.1f} s"
    if answer.status < 400 or ask.method == "HEAD":
        return None
    if answer.kind != PROBLEM:
        return f"status {answer.status} as {answer.kind!r}"
    return None if json.loads(answer.body)["detail"] else "a problem without a detail"


def main() -> int:
    """Asks, counts, writes down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument(
        "--longest-s", type=float, default=LONGEST_S, help="an answer that takes longer counts as a hang"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hostile.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        settings = Settings(data_dir=Path(name) / "data")
        known = prepared(settings)
        with service(settings) as url:
            description = httpx.get(f"{url}/openapi.json", timeout=60).json()
            kinds = strategies_of(known, description)
            tallies, faults = attack(url, kinds, arguments.cases, arguments.longest_s)
            alive = httpx.get(f"{url}/healthz", timeout=arguments.longest_s).status_code == httpx.codes.OK
    record(arguments.out, [row(kind, tally) for kind, tally in tallies.items()])
    for fault in faults[:20]:
        print(fault)
    print(
        f"{sum(sum(tally.statuses.values()) for tally in tallies.values()):,} answers, {len(faults)} faults"
    )
    return 0 if alive and not faults else 1


def prepared(settings: Settings) -> Known:
    """A database with an experiment under way, so that hostile requests reach what is behind an id."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with Database(settings.database_url) as database:
        database.migrate()
        identifier = submit(database, spec())
        lease = leases.claim(database, "benchmark", 3_600)
        assert lease is not None
        token = leases.begin_attempt(database, lease).token
        job_logs.store(database, identifier, 1, LogPart(0, LOG.encode()), ended=False)
        simulated = SimulatedJob(assignment(database, identifier, settings.data_roots))
    run = simulated.assignment.runs[0]
    batch = simulated.batch([*simulated.started(), *simulated.run(run)][:12])
    return Known(identifier, run.run_id, token, json.loads(batch.model_dump_json()))


@contextmanager
def service(settings: Settings) -> Iterator[str]:
    """The service on that database, without a cluster; it must not be asked to run anything."""
    port, nowhere = free_port(), free_port()
    with service_process(
        settings.data_dir,
        GHOSTWATT_PORT=str(port),
        GHOSTWATT_RAY_ADDRESS=f"http://127.0.0.1:{nowhere}",
    ) as (process, log):
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url, process, log)
        yield url


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the service accepts requests; that it can run nothing is no fault here."""
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            httpx.get(f"{url}/healthz", timeout=10).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"the service did not start:\n{log.read_text()[-4000:]}")


def attack(
    url: str, kinds: dict[str, st.SearchStrategy[Ask]], cases: int, longest_s: float
) -> tuple[dict[str, Tally], list[str]]:
    """Sends `cases` requests, the same number of each kind but that a fifth of all are Schemathesis'.

    Returns:
        Tallies by kind, and what was wrong.
    """
    described = [kind for kind in kinds if kind.startswith("described")]
    caller, faults = Caller(url, longest_s), list[str]()
    tallies: dict[str, Tally] = defaultdict(Tally)
    for kind, strategy in kinds.items():
        part = (
            cases / 5 / len(described) if kind in described else 4 * cases / 5 / (len(kinds) - len(described))
        )
        share = math.ceil(part)
        began_s = time.monotonic()
        _draw(strategy, share, lambda ask, kind=kind: faults.extend(_tried(caller, kind, ask, tallies[kind])))
        print(
            f"{kind}: {dict(sorted(tallies[kind].statuses.items()))}, {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    return dict(tallies), faults


def _draw(strategy: st.SearchStrategy[Ask], count: int, use: Any) -> None:
    @seed(SEED)
    @examples(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(ask: Ask) -> None:
        use(ask)

    each()


def _tried(caller: Caller, kind: str, ask: Ask, tally: Tally) -> list[str]:
    shown = f"{kind}: {ask.method} {ask.path[:300]} {dict(ask.headers)} {(ask.body or b'')[:500]!r}"
    try:
        answer = caller.send(ask)
    except (OSError, http.client.HTTPException) as error:
        tally.faults += 1
        return [f"{shown}: {error!r}"]
    if answer is None:
        tally.unsendable += 1
        return []
    tally.statuses[answer.status] += 1
    tally.seconds.append(answer.seconds)
    fault = fault_of(ask, answer, caller.longest_s)
    if fault is None:
        return []
    tally.faults += 1
    return [f"{shown}: {fault}: {answer.body[:300]!r}"]


def row(kind: str, tally: Tally) -> dict[str, Any]:
    """A tally as it is written down."""
    return {
        "kind": kind,
        "answers": sum(tally.statuses.values()),
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "server_errors": sum(count for status, count in tally.statuses.items() if status >= 500),
        "longest_ms": 1_000 * max(tally.seconds, default=0.0),
        "faults": tally.faults,
        "unsendable": tally.unsendable,
    }


if __name__ == "__main__":
    sys.exit(main())
