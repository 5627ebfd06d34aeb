"""Thousands of tiny experiments through the real service, while it, Ray's head and jobs are killed at random.

    python -m benchmarks.soak [--experiments 3000] [--minutes 60] [--databases sqlite postgresql] [--append]

The service, its dispatcher and its database are the real ones; Ray is `tests.services.fake_ray`, whose jobs are
processes that speak through the real spool and reporter and train nothing. In the first half of the experiments the
service is killed too; in the second it lives, so that its memory can be watched: the resident set, threads and open
files at each twentieth.
At the end every row is looked at: nothing unfinished, held or open, every event there once, no job left.
Exits with 1 if anything is not as it must be; the file then says what.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import func, select

from benchmarks.record import command_line, record, recorded_rows
from benchmarks.service import databases
from services.database import Database
from services.states import TERMINAL_STATES
from services.tables import Experiment
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import FaultBench, faults, small

AHEAD = 20
"""Experiments that wait or run at a time."""
CANCELLED = 0.03
"""Share of experiments that somebody cancels at once."""
SAMPLES = 20
SETTINGS = {
    "GHOSTWATT_RAY_MAX_ACTIVE": "8",
    "GHOSTWATT_KEEP_GROUP_S": "3",
    "GHOSTWATT_SILENCE_DEADLINE_S": "120",
}


def main() -> None:
    """Runs the soak and writes what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--experiments", type=int, default=3_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="nothing is submitted after that")
    parser.add_argument("--databases", nargs="*", choices=["sqlite", "postgresql"], default=["sqlite"])
    parser.add_argument("--fault-every-s", type=float, default=5.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    parser.add_argument("--append", action="store_true", help="keep what the file has of other databases")
    options = parser.parse_args()
    problems = [_soaked(database, options) for database in options.databases]
    sys.exit(any(problem is not None for problem in problems))


def _soaked(kind: str, options: argparse.Namespace) -> str | None:
    """One soak on an empty database, written down; what was not as it must be."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="ghostwatt-soak-", ignore_cleanup_errors=True)
            )
        )
        url = stack.enter_context(databases(kind, folder))()
        with Database(url) as database:
            database.migrate()
        bench = stack.enter_context(faults(folder, url, Behaviour(pause_s=0.002)))
        soak = Soak(bench, random.Random(options.seed), options.experiments, options.fault_every_s)
        row = {"database": kind, "command": command_line()} | soak.run(options.minutes * 60)
    kept = recorded_rows(options.out) if options.append else []
    others = [each for each in kept if each["database"] != kind]
    options.append = True  # this run's own databases stay beside each other
    record(options.out, sorted([*others, row], key=lambda each: str(each["database"])))
    print(
        f"{kind}: {row['states']} in {row['minutes']:.1f} min, faults {row['faults']}, "
        f"{row['problem'] or 'all is well'}",
        flush=True,
    )
    problem: str | None = row["problem"]
    return problem


@dataclass
class Soak:
    """One soak under way."""

    bench: FaultBench
    chance: random.Random
    experiments: int
    fault_every_s: float
    accepted: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def run(self, longest_s: float) -> dict[str, Any]:
        """Submits, kills and looks, until all experiments were submitted and have ended.

        Args:
            longest_s: Seconds after which nothing more is submitted.

        Returns:
            The row to write.
        """
        began_s = time.monotonic()
        self.bench.start(**SETTINGS)
        next_fault_s = began_s + self._until_next_fault_s()
        problem = None
        try:
            while len(self.accepted) < self.experiments and time.monotonic() - began_s < longest_s:
                ended = self._ended()
                self._sample(ended)
                for _ in range(
                    min(AHEAD - (len(self.accepted) - ended), self.experiments - len(self.accepted))
                ):
                    self._submit()
                if time.monotonic() >= next_fault_s:
                    self._fault(ended)
                    next_fault_s = time.monotonic() + self._until_next_fault_s()
                time.sleep(0.2)
            self.bench.wait_until(self._all_ended, "end of the last experiments")
            self.bench.settled(self.accepted)
        except AssertionError as error:
            problem = str(error)[:10_000]
        return {
            "experiments": len(self.accepted),
            "minutes": (time.monotonic() - began_s) / 60,
            "faults": dict(self.faults),
            "states": self._states(),
            "samples": self.samples,
            "problem": problem,
        }

    def _until_next_fault_s(self) -> float:
        return self.chance.expovariate(1 / self.fault_every_s)

    def _submit(self) -> None:
        identifier = self.bench.submit()
        self.accepted.append(identifier)
        if self.chance.random() < CANCELLED:
            self.bench.services["a"].post(f"/v1/experiments/{identifier}/cancel")
            self.faults["cancels"] += 1

    def _fault(self, ended: int) -> None:
        kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "jobs": (6, self._kill_job),
            "heads": (1, self._kill_head),
        }
        if ended < self.experiments / 2:
            kinds["services"] = (3, self._kill_service)
        names = list(kinds)
        (name,) = self.chance.choices(names, [kinds[name][0] for name in names])
        kinds[name][1]()

    def _kill_job(self) -> None:
        running = self.bench.head.running()
        if running and self.bench.head.kill_job(self.chance.choice(running)):
            self.faults["jobs"] += 1

    def _kill_head(self) -> None:
        self.bench.head.kill()
        self.faults["heads"] += 1
        time.sleep(self.chance.uniform(0, 2))
        self.bench.head.start()

    def _kill_service(self) -> None:
        """In the middle of a submission, half of the time: it is accepted or it is not."""
        service = self.bench.services["a"]
        if self.chance.random() < 0.5:
            document = small().model_dump(mode="json", exclude_unset=True)
            try:
                httpx.post(
                    f"{service.url}/v1/experiments", json=document, timeout=self.chance.uniform(0.005, 0.05)
                )
            except httpx.HTTPError:
                self.faults["submissions without an answer"] += 1
        self.bench.kill()
        self.faults["services"] += 1
        self.bench.start(**SETTINGS)
        with self.bench.database.read() as session:
            self.accepted = list(session.scalars(select(Experiment.id)))

    def _all_ended(self) -> bool:
        ended = self._ended()
        self._sample(ended)
        return ended == len(self.accepted)

    def _ended(self) -> int:
        with self.bench.database.read() as session:
            ended = select(func.count()).where(Experiment.state.in_(TERMINAL_STATES))
            return session.execute(ended).scalar_one()

    def _sample(self, ended: int) -> None:
        """The service's memory whenever another twentieth has ended."""
        if ended * SAMPLES < (len(self.samples) + 1) * self.experiments:
            return
        process = psutil.Process(self.bench.services["a"].process.pid)
        self.samples.append(
            {
                "ended": ended,
                "rss_mib": process.memory_info().rss / 2**20,
                "threads": process.num_threads(),
                "open_files": process.num_fds(),
                "pid": process.pid,
                "service_age_s": time.time() - process.create_time(),
            }
        )

    def _states(self) -> dict[str, int]:
        with self.bench.database.read() as session:
            rows = session.execute(
                select(Experiment.state, Experiment.reason, func.count()).group_by(
                    Experiment.state, Experiment.reason
                )
            ).all()
        return {f"{state} ({reason})" if reason else state: number for state, reason, number in rows}


if __name__ == "__main__":
    main()
