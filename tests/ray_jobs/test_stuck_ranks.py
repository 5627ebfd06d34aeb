"""Ranks of which one never comes to where the others wait, while the threads of all go on: it is found who is where."""

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest
import torch.distributed as dist

from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.plan import make_plan
from phantom_core.protocol import AssignedRun, Assignment, Window
from phantom_core.spec import ExperimentSpec
from phantom_core.training import Trainer
from ray_jobs.bench import Bench
from ray_jobs.headway import Headway
from ray_jobs.pulse import Pulse
from ray_jobs.spool import Spool
from tests.distributed import RankFailedError, run_ranks
from tests.ray_jobs.short_experiments import SHORT
from tests.ray_jobs.test_alarm import join, leave

BEAT_S, SIGN_S, LIMIT_S, GRACE_S = 0.05, 0.1, 2.0, 1.0
STEP_S = 0.1
PARTS = 30
"""Of each step window, so that it takes longer than the limit."""


def assignment() -> Assignment:
    changes = {
        "training": {
            "batch_size": 64,
            "evaluation_interval": PARTS,
            "stop": {"kind": "steps", "steps": PARTS},
        },
        "measurement": {"rounds": 1, "warmup_steps": 6, "minimum_window_s": 0, "idle_baseline_s": 0},
    }
    run = AssignedRun(run_id="run-1", attempt=1, round=0, position=0, arm="tensor", seed=3)
    plan = make_plan(ExperimentSpec.model_validate(SHORT | changes))
    return Assignment(experiment_id="exp-1", attempt=1, plan=plan, runs=(run,))


def make_runs(folder: str, prepare: Callable[[], Any]) -> None:
    """As a rank of the job does, with a pulse that is quick; two of three ranks are the arm's."""
    tempfile.tempdir = folder
    told, headway = Path(folder, "told"), Headway()
    with ExitStack() as stack:
        ranks = stack.enter_context(join())
        spool = stack.enter_context(Spool(Path(folder), f"rank-{ranks.rank}", "exp-1", 1))
        meter = stack.enter_context(open_meter(MeterRequest("cpu", uuid=f"rank-{ranks.rank}", host="host")))
        bench = Bench(assignment(), ranks, spool, meter, headway)
        stack.enter_context(
            Pulse(
                ranks.store(),
                ranks.rank,
                ranks.world_size,
                lambda: None,
                headway=headway,
                tell_still=told.write_text,
                limit_s=LIMIT_S,
                beat_s=BEAT_S,
                sign_s=SIGN_S,
                grace_s=GRACE_S,
            )
        )
        stack.enter_context(prepare())
        bench.make_all_runs()
    leave()


def never(*_: object, **__: object) -> NoReturn:
    while True:
        threading.Event().wait()


@contextmanager
def on_rank_1(patch: Any) -> Any:
    with patch if dist.get_rank() == 1 else ExitStack():
        yield


def leaves_out_a_step() -> Any:
    return on_rank_1(mock.patch.object(Trainer, "run", never))


def leaves_out_an_evaluation() -> Any:
    return on_rank_1(mock.patch.object(Trainer, "evaluate", never))


def hangs_at_its_disk_after_a_window() -> Any:
    emit = Spool.emit

    def emitting(self: Spool, payload: Any, **run: Any) -> object:
        if isinstance(payload, Window) and payload.phase == "training":
            never()
        return emit(self, payload, **run)

    return on_rank_1(mock.patch.object(Spool, "emit", emitting))


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (leaves_out_a_step, ["ranks 0, 1 in tensor, round 1: training window 0"]),
        (leaves_out_an_evaluation, ["in tensor, round 1: evaluation window 0"]),
        (
            hangs_at_its_disk_after_a_window,
            [
                "rank 0 in tensor, round 1: the agreement of all ranks on energy and loss",
                "rank 1 in tensor, round 1: the storing of training window 0",
            ],
        ),
    ],
)
def test_ranks_that_wait_for_one_that_never_comes_say_where_each_is_and_end(
    tmp_path: Path, fault: Callable[[], Any], where: list[str]
) -> None:
    with pytest.raises(RankFailedError, match="rank 0 died without a word"):
        run_ranks(3, make_runs, str(tmp_path), fault)
    told = (tmp_path / "told").read_text()
    assert told.startswith("no rank has got on for ")
    for each in where:
        assert each in told
    assert "rank 2 in tensor, round 1: the wait for all ranks after waiting window 0" in told


@contextmanager
def slow() -> Any:
    """Each step takes a while, and so does the evaluation, of which nothing is seen from outside."""
    step, evaluate = Trainer._enqueue_step, Trainer.evaluate

    def stepping(self: Trainer) -> None:
        time.sleep(STEP_S)
        step(self)

    def evaluating(self: Trainer) -> float:
        time.sleep(1.5 * LIMIT_S)
        return evaluate(self)

    with (
        mock.patch.object(Trainer, "_enqueue_step", stepping),
        mock.patch.object(Trainer, "evaluate", evaluating),
    ):
        yield


def test_a_window_and_an_evaluation_that_take_longer_than_the_limit_are_left_alone(tmp_path: Path) -> None:
    assert PARTS * STEP_S > LIMIT_S
    run_ranks(3, make_runs, str(tmp_path), slow)
    assert not (tmp_path / "told").exists()
