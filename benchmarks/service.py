"""The service under load, beside a real MLflow server on the same machine, in one run.

    python -m benchmarks.service [--mlflow PYTHON] [--only peers floor submit watchers archive start]
        [--databases sqlite postgresql] [--rounds 3] [--seconds 10] [--samples 10000000] [--append] [--out FILE]

`peers`: both servers, one at a time in shuffled order, each on a fresh database: runs created (four clients),
metric points stored (four clients, a thousand a request), a history of 16,000 points, a search. `floor`: what the
same four clients get from the web stack alone. `submit`: latency of submissions at 100 a second. `watchers`:
submissions with and without fifty live event streams, in pairs.
`archive`: ten million power samples. `start`: from the command to an answer.

MLflow runs from an environment of its own: `--mlflow` names its interpreter; without it one is made for the
benchmark, which downloads MLflow.
"""

import argparse
import compileall
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text

from benchmarks.event_watchers import watching
from benchmarks.http_load import Ask, Load, ask_once, closed_loop, one_by_one, open_loop
from benchmarks.power_archive import fill
from benchmarks.record import command_line, record, recorded_rows
from benchmarks.tracking_servers import (
    POINTS_PER_BATCH,
    Bare,
    Ghostwatt,
    Server,
    serving_bare,
    serving_ghostwatt,
    serving_mlflow,
)
from services.database import Database
from tests.embedded_postgresql import embedded_postgresql

MLFLOW = ("mlflow==3.17.2", "psycopg2-binary")
CLIENTS = 4
HISTORY_POINTS = 16_000
BATCHES_PER_S = 80
"""Batches that lie ready for each client and second: more than any server here takes."""
SUBMISSIONS_PER_S = 100
WATCHERS = 50
WATCHED_PAIRS = 6
"""Pairs of a round, with and without streams: a host's hiccup spoils one of them."""
ROOT = Path(__file__).parents[1]
PACKAGES = ("phantom_core", "services", "api", "client", "migrations")
"""What a service process loads of the project."""
PARTS = ("peers", "floor", "submit", "watchers", "archive", "start")

Row = dict[str, Any]
Fresh = Callable[[], str]
"""Gives the URL of a new, empty database."""


def main() -> None:
    """Runs the chosen parts and writes what they gave after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mlflow", type=Path, help="interpreter that has MLflow")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--databases", nargs="*", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "service.json")
    parser.add_argument("--append", action="store_true", help="keep what the file has of other parts")
    arguments = parser.parse_args()
    rows: list[Row] = recorded_rows(arguments.out) if arguments.append else []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ghostwatt-load-")))
        for database in arguments.databases:
            fresh = stack.enter_context(databases(database, folder))
            for name in arguments.only:
                made = RUN[name](arguments, folder, fresh)
                found = [
                    {"part": name, "database": database, "command": command_line(), **row} for row in made
                ]
                rows = [row for row in rows if (row["part"], row["database"]) != (name, database)]
                for row in found:
                    print(row, flush=True)
                rows += found
                record(arguments.out, rows)


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Fresh]:
    """Gives URLs of empty databases: files, or databases of one PostgreSQL server."""
    numbers = count()
    if kind == "sqlite":
        yield lambda: f"sqlite:///{folder}/{next(numbers)}.sqlite3"
        return
    with embedded_postgresql() as server:
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")

        def make() -> str:
            name = f"load_{next(numbers)}"
            engine = create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            engine.dispose()
            return url.set(database=name).render_as_string(hide_password=False)

        yield make


def peers(arguments: argparse.Namespace, folder: Path, fresh: Fresh) -> list[Row]:
    """Ghostwatt and MLflow, round by round."""
    python = arguments.mlflow or _mlflow_environment(folder)
    rows = []
    for number in range(arguments.rounds):
        sides = ["ghostwatt", "mlflow"]
        random.Random(number).shuffle(sides)
        for side in sides:
            place = _place(folder)
            serving = (
                serving_ghostwatt(place, fresh())
                if side == "ghostwatt"
                else serving_mlflow(place, fresh(), python)
            )
            with serving as server:
                rows.append(
                    {
                        "round": number + 1,
                        "server": side,
                        "version": server.version(),
                        **_measure(server, arguments.seconds),
                    }
                )
    return rows


def _measure(server: Server, seconds: float) -> Row:
    targets = server.begin_runs(CLIENTS)
    # Bodies are made beforehand: their making is the client's work, not the server's.
    batches = [
        [target.batch(number) for number in range(HISTORY_POINTS // POINTS_PER_BATCH)] for target in targets
    ]
    stored = closed_loop(server.url, CLIENTS, seconds, lambda client: iter(batches[client]))
    # The first runs hold exactly the points of the history; later ones keep on storing.
    history = one_by_one(server.url, [target.history(HISTORY_POINTS) for target in targets], 3)
    more = server.begin_runs(CLIENTS)
    bulk = [[target.batch(number) for number in range(round(BATCHES_PER_S * seconds))] for target in more]
    stored = closed_loop(server.url, CLIENTS, seconds, lambda client: iter(bulk[client]))
    numbers = count()
    created = closed_loop(
        server.url, CLIENTS, seconds, lambda _client: (server.create(next(numbers)) for _ in count())
    )
    found = one_by_one(server.url, [server.search()], 20)
    return {
        "created_per_s": created.per_second,
        "create_p99_ms": created.quantile_ms(0.99),
        "points_per_s": stored.per_second * POINTS_PER_BATCH,
        "points_p99_ms": stored.quantile_ms(0.99),
        "history_p50_ms": history.quantile_ms(0.5),
        "search_p50_ms": found.quantile_ms(0.5),
    }


def floor(arguments: argparse.Namespace, folder: Path, _fresh: Fresh) -> list[Row]:
    """The bodies of submissions sent to a route that only reads their JSON: what no service on this stack exceeds."""
    with serving_bare(_place(folder)) as server:
        one_by_one(server.url, [server.create(0)], 20)
        return [
            {"round": number + 1, "answers_per_s": _creating(server, arguments.seconds).per_second}
            for number in range(arguments.rounds)
        ]


def submit(arguments: argparse.Namespace, folder: Path, fresh: Fresh) -> list[Row]:
    """Latency of submissions at a steady rate, by round."""
    with serving_ghostwatt(_place(folder), fresh()) as server:
        one_by_one(server.url, [server.create(0)], 20)
        rows = []
        for number in range(arguments.rounds):
            load = open_loop(server.url, 32, arguments.seconds, SUBMISSIONS_PER_S, server.create)
            rows.append(
                {
                    "round": number + 1,
                    "per_s": SUBMISSIONS_PER_S,
                    "p50_ms": load.quantile_ms(0.5),
                    "p99_ms": load.quantile_ms(0.99),
                    "longest_ms": load.quantile_ms(1.0),
                }
            )
        return rows


def watchers(arguments: argparse.Namespace, folder: Path, fresh: Fresh) -> list[Row]:
    """Submissions a second with no stream open and with fifty, in pairs whose order alternates."""
    with serving_ghostwatt(_place(folder), fresh()) as server:
        watched = [run.experiment_id for run in server.begin_runs(5)]
        _creating(server, arguments.seconds)  # neither side has the cold start
        rows = []
        for number in range(WATCHED_PAIRS * arguments.rounds):
            for streams in (0, WATCHERS) if number % 2 == 0 else (WATCHERS, 0):
                with watching(server.url, [watched[each % len(watched)] for each in range(streams)]):
                    load = _creating(server, arguments.seconds / 2)
                rows.append({"pair": number + 1, "streams": streams, "created_per_s": load.per_second})
        return rows


def _creating(server: Ghostwatt | Bare, seconds: float) -> Load:
    numbers = count()
    return closed_loop(
        server.url, CLIENTS, seconds, lambda _client: (server.create(next(numbers)) for _ in count())
    )


def archive(arguments: argparse.Namespace, folder: Path, fresh: Fresh) -> list[Row]:
    """Answers from a database with millions of power samples, and how fast it still takes new ones."""
    database_url = fresh()
    with Database(database_url) as database:
        database.migrate()
        stored = fill(database, arguments.samples)
    chosen = random.Random(0)
    with serving_ghostwatt(_place(folder), database_url) as server:
        comparisons = [
            Ask("GET", f"/v1/experiments/{chosen.choice(stored.experiments)}/comparison") for _ in range(300)
        ]
        runs = [run for experiment in stored.experiments for run in _runs_of(server.url, experiment)]
        plots = [Ask("GET", f"/v1/runs/{chosen.choice(runs)}/power") for _ in range(300)]
        long = [Ask("GET", f"/v1/runs/{stored.long_run}/power")]
        compared = one_by_one(server.url, comparisons, 1)
        plotted = one_by_one(server.url, plots, 1)
        plotted_long = one_by_one(server.url, long, 300)
    first, last = _ends(stored.rates_per_s)
    return [
        {
            "samples": stored.samples,
            "comparison_p99_ms": compared.quantile_ms(0.99),
            "power_plot_p99_ms": plotted.quantile_ms(0.99),
            "long_run_samples": stored.samples // 2,
            "long_power_plot_p99_ms": plotted_long.quantile_ms(0.99),
            "samples_per_s_on_empty": first,
            "samples_per_s_on_full": last,
            "joining_s": stored.joining_s,
        }
    ]


def _ends(rates_per_s: Sequence[float]) -> tuple[float, float]:
    """Rate of the first experiment, whose tables were empty, and the median of the last five."""
    return rates_per_s[0], statistics.median(rates_per_s[-5:])


def _runs_of(url: str, experiment_id: str) -> list[str]:
    page = json.loads(ask_once(url, Ask("GET", f"/v1/experiments/{experiment_id}/runs")))
    return [str(run["id"]) for run in page["items"]]


def start(arguments: argparse.Namespace, folder: Path, fresh: Fresh) -> list[Row]:
    """Seconds that `import api.app` takes, and from the command to the first answer.

    `to_ready_s` is on a database at this version's tables, as at every start but the first; `empty_to_ready_s` is that
    first one, which makes them. Bytecode lies ready, as an installation leaves it: where Python may not write any
    (`PYTHONDONTWRITEBYTECODE`), each start of the sources would compile the whole service anew.
    """
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=1)
    database_url = fresh()
    with Database(database_url) as database:
        database.migrate()
    rows = []
    for number in range(arguments.rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import api.app"], check=True)
        imported_s = time.perf_counter() - began
        began = time.perf_counter()
        with serving_ghostwatt(_place(folder), database_url):
            ready_s = time.perf_counter() - began
        empty_url = fresh()
        began = time.perf_counter()
        with serving_ghostwatt(_place(folder), empty_url):
            empty_ready_s = time.perf_counter() - began
        rows.append(
            {
                "round": number + 1,
                "import_s": imported_s,
                "to_ready_s": ready_s,
                "empty_to_ready_s": empty_ready_s,
            }
        )
    return rows


def _place(folder: Path) -> Path:
    """A folder of one server's own."""
    return Path(tempfile.mkdtemp(dir=folder))


def _mlflow_environment(folder: Path) -> Path:
    place = folder / "mlflow-environment"
    print(f"installing {MLFLOW[0]} into an environment of its own", flush=True)
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *MLFLOW], check=True)
    return python


RUN: dict[str, Callable[[argparse.Namespace, Path, Fresh], list[Row]]] = {
    "peers": peers,
    "floor": floor,
    "submit": submit,
    "watchers": watchers,
    "archive": archive,
    "start": start,
}
"""How each part is run."""


if __name__ == "__main__":
    main()
