"""Processes of a job under a real Ray are killed one by one: its sampler, and its driver while it is a warm group's."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phantom_core.protocol import CHECKPOINT_FOLDER
from phantom_core.signs import SIGN_S
from ray_jobs.sealed_files import TENSORS, UNFINISHED
from tests.ray_jobs.short_experiments import SHORT, longer
from tests.running import ENDED, RunningService, running_service, wait_until

pytestmark = pytest.mark.timeout(900)

SILENCE_S = 2.25 * SIGN_S
"""As short as a deadline can be that a living job keeps on a busy machine."""
LONG_STEPS = 12_000
LONG = longer(LONG_STEPS, LONG_STEPS // 8, name="a long one")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("lost processes")
    with running_service(folder, GHOSTWATT_SILENCE_DEADLINE_S=str(SILENCE_S)) as service:
        yield service


def sampled(service: RunningService, identifier: str, sources: str) -> int:
    """Batches of power that the sampler's starts have delivered."""
    query = "SELECT count(*) FROM events WHERE experiment_id = ? AND kind = 'power_samples' AND source LIKE ?"
    return int(service.rows(query, identifier, sources)[0][0])


def test_a_killed_sampler_starts_again_training_goes_on_and_the_run_says_so(service: RunningService) -> None:
    # The sampler must be back, with all that it loads, before training ends.
    steps = 2 * LONG_STEPS
    identifier = service.submit(longer(steps, steps // 8, name="a longer one"))
    first, again = "sampler-%", "sampler-%.1"
    wait_until(lambda: sampled(service, identifier, first), 240, "power samples", service.tell)
    windows = "SELECT 1 FROM windows WHERE experiment_id = ? AND phase = 'training'"
    wait_until(lambda: service.rows(windows, identifier), 240, "a training window", service.tell)
    ranks = {process.pid for process in service.processes("RayTrainWorker")}
    (sampler,) = service.processes("SamplerActor")
    sampler.kill()
    wait_until(lambda: sampled(service, identifier, again), 120, "samples of its next start", service.tell)
    ended = service.wait_for(identifier, ENDED, 300)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1), (ended["message"], service.tell())
    assert ranks <= {process.pid for process in service.processes("RayTrainWorker")}, "they never noticed"
    (run,) = service.get(f"/v1/experiments/{identifier}/runs")["items"]
    assert run["steps"] == steps
    assert run["energy_training_mj"] > 0, "ranks read their meters themselves"
    assert "sampler_gap" in run["flags"]


def test_a_driver_killed_in_a_warm_group_s_next_experiment_costs_that_one_attempt(
    service: RunningService,
) -> None:
    wait_until(lambda: service.rows("SELECT 1 FROM worker_groups WHERE state = 'idle'"), 60, "an idle group")
    identifier = service.submit(LONG)
    service.wait_for(identifier, {"running"})
    (attempt,) = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert attempt["warm"] is True
    ranks = service.processes("RayTrainWorker")
    assert len(ranks) == 2
    drivers = service.processes("ray_jobs.experiment")
    for driver in drivers:
        driver.kill()
    wait_until(
        lambda: not any(rank.is_running() for rank in ranks), 60, "ranks that end with it", service.tell
    )
    ended = service.wait_for(identifier, ENDED, 300)
    assert ended["state"] == "succeeded", (ended["message"], service.tell())
    lost, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert (lost["warm"], lost["reason"]) == (True, "job_failed")
    assert made["warm"] is False
    groups = service.rows("SELECT id FROM worker_groups")
    assert groups == [(made["ray_job_id"],)], "the lost group is forgotten"


def test_a_rank_that_stands_still_beside_a_living_sampler_is_ended_and_its_board_freed(
    service: RunningService,
) -> None:
    """Its peer waits for it in a collective; the sampler goes on to speak, and counts for nothing."""
    identifier = service.submit(LONG)
    windows = "SELECT 1 FROM windows WHERE experiment_id = ? AND phase = 'training'"
    wait_until(lambda: service.rows(windows, identifier), 240, "a training window", service.tell)
    ranks = service.processes("RayTrainWorker")
    stopped = max(ranks, key=lambda process: process.create_time())
    stopped.suspend()
    wait_until(
        lambda: service.get(f"/v1/experiments/{identifier}")["attempt"] == 2,
        240,
        "another attempt",
        service.tell,
    )
    wait_until(lambda: not any(rank.is_running() for rank in ranks), 60, "boards that are free", service.tell)
    ended = service.wait_for(identifier, ENDED, 300)
    assert ended["state"] == "succeeded", (ended["message"], service.tell())
    silent, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert (silent["reason"], made["reason"]) == ("silence_deadline", None)
    heard = "SELECT count(*) FROM events WHERE experiment_id = ? AND attempt = 1 AND source LIKE 'sampler-%'"
    assert service.rows(heard, identifier)[0][0] > 3


def test_ranks_that_live_and_wait_for_one_at_a_disk_that_hangs_are_ended_and_say_where_they_were(
    service: RunningService,
) -> None:
    """A pipe that nobody reads lies where one rank writes its checkpoint; every process beats all the while."""
    resources = {"checkpoint_interval_s": 1e-3, "progress_deadline_s": 60}
    step, stuck = 1_000, 11_000
    identifier = service.submit(longer(stuck + step, step, name="a disk that hangs", resources=resources))
    (run,) = service.get(f"/v1/experiments/{identifier}/runs")["items"]
    head, *_ = service.processes("raylet")
    folder = Path(head.environ()[CHECKPOINT_FOLDER]) / "ghostwatt-checkpoints" / identifier
    pipe = folder / f"{run['id']}.rank-1.{stuck}{TENSORS}{UNFINISHED}"
    # Not before training: what lies there when a run begins anew is removed.
    evaluated = "SELECT 1 FROM windows WHERE experiment_id = ? AND phase = 'evaluation'"
    wait_until(lambda: service.rows(evaluated, identifier), 240, "an evaluation", service.tell)
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    ranks = service.processes("RayTrainWorker")
    wait_until(
        lambda: service.get(f"/v1/experiments/{identifier}")["attempt"] == 2,
        300,
        "another attempt",
        service.tell,
    )
    pipe.unlink(missing_ok=True)
    wait_until(lambda: not any(rank.is_running() for rank in ranks), 60, "boards that are free", service.tell)
    ended = service.wait_for(identifier, ENDED, 300)
    assert ended["state"] == "succeeded", (ended["message"], service.tell())
    still, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert (still["reason"], made["reason"]) == ("no_progress", None), still["message"]
    assert f"rank 1 in tensor, round 1: saving step {stuck:,}" in still["message"]
    next_one = stuck // step
    assert (
        f"rank 0 in tensor, round 1: the wait for all ranks before training window {next_one}"
        in still["message"]
    )


def test_ranks_that_wait_for_room_on_their_disk_give_signs_all_the_same(service: RunningService) -> None:
    """In mid-run and at the end, for longer than they may be silent; nothing but signs reaches the service."""
    measurement = SHORT["measurement"] | {"minimum_window_s": 10.0}  # or it is over before the disk is full
    identifier = service.submit(SHORT | {"name": "no room", "measurement": measurement})
    service.wait_for(identifier, {"running"})
    ranks = service.processes("RayTrainWorker")
    assert len(ranks) == 2
    for rank in ranks:
        # A write beyond the limit fails as one on a full disk does; Python ignores the signal.
        rank.rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
    signs = "SELECT count(*) FROM events WHERE experiment_id = ? AND source = 'pulse-straight'"
    wait_until(lambda: service.rows(signs, identifier)[0][0] > SILENCE_S / SIGN_S, 240, "signs", service.tell)
    for rank in ranks:
        rank.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    ended = service.wait_for(identifier, ENDED, 300)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1), (ended["message"], service.tell())


def test_nothing_of_it_is_left(service: RunningService, tmp_path: Path) -> None:
    """Every process that still runs is the head's, the idle group's or the service's own."""
    identifier = service.submit(SHORT)
    assert service.wait_for(identifier, ENDED)["state"] == "succeeded"
    assert len(service.processes("RayTrainWorker")) == 2
    assert len(service.processes("SamplerActor")) == 1
