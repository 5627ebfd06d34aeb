"""What the sampler costs training: step time with it and without, in turn, for `benchmarks/meters.py`.

The steps are a job's own: a `Trainer`, in a CUDA graph on a board. The sampler is a job's too, in a process of its
own: power at 10 Hz, states at 1 Hz, each batch to a spool on disk. Only the spool's delivery is left out.
"""

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from benchmarks.paired import paired_ratio
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.sampling import PowerSampler, Sample
from phantom_core.plan import PlannedArm
from phantom_core.spec import DenseArm, ModelSpec, StopAtSteps, TeacherTask, TrainingSpec
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from ray_jobs.spool import Spool

RATE_HZ = 10.0


@dataclass(frozen=True)
class Load:
    """Training steps of one dense arm."""

    run: Callable[[int], None]
    """Makes so many steps and waits for them."""
    mode: str
    """Whether they run in a CUDA graph."""
    width: int
    """Neurons per layer, n."""
    batch_size: int
    """Rows per step."""


@contextmanager
def training_load(width: int, batch_size: int, depth: int = 8) -> Iterator[Load]:
    """Steps of a dense arm of that width, on a board if there is one."""
    on_board = torch.cuda.is_available()
    planned = PlannedArm(
        arm=DenseArm(name="dense"),
        model=ModelSpec(width=width, depth=depth, dtype="bfloat16" if on_board else "float32"),
        training=TrainingSpec(
            batch_size=batch_size, optimizer="sgd", learning_rate=1e-6, stop=StopAtSteps(steps=1)
        ),
    )
    dataset = load_task(TeacherTask(train_rows=max(4_096, batch_size), validation_rows=64))
    with Trainer(planned, dataset, device="cuda" if on_board else "cpu") as trainer:
        trainer.prepare(warmup_steps=3)

        def run(steps: int) -> None:
            trainer.run(steps)
            trainer.losses()

        yield Load(run, trainer.step_mode, width, batch_size)


def sampler_cost(uuid: str, load: Load, pairs: int, block_s: float) -> Iterator[dict[str, Any]]:
    """Time per step in blocks with the sampler running and without, in turn.

    Which comes first is drawn by lot, as often the one as the other, so that a drift of the clocks cancels in the
    median. One more pair before them warms the board up and counts for nothing.

    Args:
        uuid: The board.
        load: What is slowed down, if anything is.
        pairs: Pairs of blocks.
        block_s: Seconds of a block, about.

    Yields:
        The row so far, after every pair.
    """
    sampled_first = random.sample([number % 2 == 0 for number in range(pairs)], pairs)
    with (
        tempfile.TemporaryDirectory(prefix="ghostwatt-sampler-") as folder,
        _sampler(uuid, folder) as sampler,
    ):
        steps = _steps_of(load, block_s)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for first in [True, *sampled_first]:
            for sampled in (first, not first):
                if sampled:
                    sampler.begin()
                start_s = time.perf_counter()
                load.run(steps)
                seconds[sampled].append(time.perf_counter() - start_s)
                if sampled:
                    sampler.end()
            with_it, without = seconds[True][1:], seconds[False][1:]
            if not with_it:
                continue
            change = paired_ratio(with_it, without)
            ends = (change.low, change.high)
            yield {
                "measured": "sampler",
                "rate_hz": RATE_HZ,
                "pairs_of_blocks": change.pairs,
                "block_s": block_s,
                "steps_per_block": steps,
                "step_mode": load.mode,
                "width": load.width,
                "batch_size": load.batch_size,
                "batches_spooled": sum(
                    len(path.read_bytes().splitlines()) for path in Path(folder).glob("*.events")
                ),
                "block_s_with": with_it,
                "block_s_without": without,
                "step_time_change_percent": 100 * (change.ratio - 1),
                "interval_95_percent": [None if end is None else 100 * (end - 1) for end in ends],
            }


def _steps_of(load: Load, block_s: float) -> int:
    load.run(3)
    steps = 1
    while True:
        start_s = time.perf_counter()
        load.run(steps)
        taken_s = time.perf_counter() - start_s
        if taken_s >= min(0.2, block_s / 2):
            return max(1, round(steps * block_s / taken_s))
        steps *= 2


class _Turns:
    """Starts and stops the sampler in the other process, and waits until it has."""

    def __init__(self, go: Event, pause: Event, runs: Event) -> None:
        self._go, self._pause, self._runs = go, pause, runs

    def begin(self) -> None:
        self._pause.clear()
        self._go.set()
        self._runs.wait(30)

    def end(self) -> None:
        self._go.clear()
        self._pause.set()
        while self._runs.is_set():
            time.sleep(0.001)


@contextmanager
def _sampler(uuid: str, folder: str) -> Iterator[_Turns]:
    context = multiprocessing.get_context("spawn")
    go, pause, over, runs, ready = (context.Event() for _ in range(5))
    child = context.Process(target=sample_in_turns, args=(uuid, folder, go, pause, over, runs, ready))
    child.start()
    try:
        if not ready.wait(120):
            raise SystemExit("the sampler's process did not come up within 120 s")
        yield _Turns(go, pause, runs)
    finally:
        over.set()
        pause.set()
        go.set()
        child.join(60)


def sample_in_turns(
    uuid: str, folder: str, go: Event, pause: Event, over: Event, runs: Event, ready: Event
) -> None:
    """The sampler's process: samples whenever it is told to."""
    with (
        open_meter(MeterRequest("cuda", uuid=uuid, power_only=True)) as meter,
        Spool(Path(folder), "sampler", "exp-benchmark", 1) as spool,
    ):

        def keep(sample: Sample) -> None:
            spool.emit(sample)

        ready.set()
        while go.wait() and not over.is_set():
            sampler = PowerSampler([meter], RATE_HZ, keep, host=meter.device.host)
            runs.set()
            ended = sampler.run(pause)
            runs.clear()
            if ended.reason:
                raise SystemExit(f"the sampler failed: {ended.reason}")
