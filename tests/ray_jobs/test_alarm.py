"""A rank that fails in the middle of a step frees its peers at once, and the group goes on to the next arm."""

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from phantom_core.collectives import PeerGoneError
from phantom_core.plan import PlannedArm
from phantom_core.spec import ModelSpec, PhantomArm, StopAtSteps, TeacherTask, TensorArm, TrainingSpec
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from ray_jobs.alarm import Alarm
from ray_jobs.ranks import Ranks, meet
from tests.distributed import MEETING, from_first, run_ranks

TASK = TeacherTask(features=8, outputs=2, latents=4, teacher_width=8, train_rows=64, validation_rows=32)


@dataclass(frozen=True)
class Told:
    error: str | None
    waited_s: float
    losses_after: list[float]


def join() -> Ranks:
    """Leaves the test's group for one made as the job makes it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = meet(rank, "127.0.0.1", from_first, MEETING)
    dist.destroy_process_group()
    return Ranks(
        rank=rank,
        world_size=size,
        store=store,
        device=torch.device("cpu"),
        sizes={2, size},
        longest_wait_s=60,
        alarm_host="127.0.0.1",
    )


def leave() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def train(ranks: Ranks, arm: Any, steps: int, fail_after: int | None = None) -> list[float]:
    team = ranks.team(2)
    assert team is not None
    planned = PlannedArm(
        arm=arm,
        model=ModelSpec(width=8, depth=2),
        training=TrainingSpec(batch_size=16, stop=StopAtSteps(steps=steps)),
    )
    with Trainer(planned, load_task(TASK), group=team.compute, device="cpu") as trainer:
        for step in range(steps):
            if step == fail_after:
                raise ValueError("the memory of rank 1 has a hole")
            trainer.run(1)
        return trainer.losses().tolist()


ARMS = [PhantomArm(name="p", world_size=2, ghosts=1), TensorArm(name="t", world_size=2)]


def fail_and_go_on() -> list[Told]:
    told = []
    with join() as ranks:
        for arm in ARMS:
            error, start = None, time.monotonic()
            try:
                if ranks.rank < 2:
                    train(ranks, arm, 50, fail_after=3 if ranks.rank == 1 else None)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
                ranks.raise_alarm(2, caught)
            ranks.everyone.agree(True)
            waited_s = time.monotonic() - start
            ranks.renew(2)
            told.append(Told(error, waited_s, train(ranks, arm, 5) if ranks.rank < 2 else []))
    leave()
    return told


def test_a_rank_that_fails_inside_a_step_frees_its_peers_and_the_next_arm_trains() -> None:
    for first, second, outside in zip(*run_ranks(3, fail_and_go_on, deadline_s=200), strict=True):
        assert second.error == "ValueError: the memory of rank 1 has a hole"
        assert first.error.startswith(
            "PeerGoneError: rank 0 waits in vain: rank 1 failed: ValueError: the me"
        )
        assert outside.error is None
        # Long before a collective's time-out of ten minutes, and the test's own of one.
        assert max(told.waited_s for told in (first, second, outside)) < 50
        assert first.losses_after == second.losses_after
        assert len(first.losses_after) == 5


def go_on_uselessly() -> str:
    with join() as ranks:
        team = ranks.everyone
        ranks.raise_alarm(team.size, RuntimeError("no more"))
        ranks.everyone.agree(True)
        while True:  # whoever starts a collective after the alarm is told so as well
            try:
                team.compute.all_reduce(torch.ones(2)).wait()
            except PeerGoneError as error:
                told = str(error)
                break
        ranks.everyone.agree(True)
    leave()
    return told


def test_a_collective_that_begins_after_the_alarm_is_refused() -> None:
    for told in run_ranks(2, go_on_uselessly):
        assert "waits in vain: rank" in told
        assert told.endswith("RuntimeError: no more")


class Ear:
    """A store in which one key is there at once."""

    def __init__(self, said: bytes) -> None:
        self.said: bytes | None = said

    def set(self, key: str, value: str) -> None:
        raise AssertionError(f"{key} = {value}")

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        if self.said is None:
            time.sleep(timeout.total_seconds())
            raise dist.DistStoreError("nothing came")

    def get(self, key: str) -> bytes:
        said, self.said = self.said, None
        assert said is not None
        return said


@pytest.mark.parametrize("stuck", [True, False])
def test_a_process_that_stays_in_a_collective_ends_after_its_grace(stuck: bool) -> None:
    ended, heard = threading.Event(), threading.Event()
    ear: Any = Ear(b"2 rank 1 failed")
    alarm = Alarm(ear, ear, lambda why: heard.set(), grace_s=15.0, end_process=ended.set)
    try:
        assert heard.wait(60)
        if not stuck:
            alarm.reset()
        assert ended.wait(120.0 if stuck else 18.0) == stuck
    finally:
        alarm.close()
