"""A run that is cut off goes on from what its ranks saved, to the bit where it would have come without."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.plan import PlannedArm
from phantom_core.protocol import AssignedRun, Carried, DeviceInfo, Payload, RunFinished, Window
from phantom_core.spec import MeasurementSpec, ModelSpec, PhantomArm, StopAtSteps, TrainingSpec
from phantom_core.tasks import load_task
from ray_jobs import checkpoints, sealed_files
from ray_jobs.arm_run import ArmRun
from ray_jobs.checkpoints import KEPT, LEFT_BEHIND_S, Checkpoints, Reached, clear_out, identity_of
from ray_jobs.ranks import Team
from ray_jobs.sealed_files import SEAL, TENSORS, UNFINISHED, Seal
from ray_jobs.spent import Spent
from ray_jobs.window_clock import WindowClock
from tests.distributed import run_ranks
from tests.ray_jobs.test_arm_run import TASK, HundredWatts

STEPS, INTERVAL = 40, 5
ALWAYS_S = 1e-9
"""So short an interval that every window is followed by a checkpoint."""


class Killed(BaseException):
    """Ends a run as the death of its processes would: nothing is told any more, nothing cleared away."""


@dataclass
class Told:
    """What one attempt said on one rank, and what it left on the disk."""

    payloads: list[Payload] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    @property
    def training(self) -> list[Window]:
        windows = [payload for payload in self.payloads if isinstance(payload, Window)]
        return [window for window in windows if window.phase == "training"]

    @property
    def evaluations(self) -> list[int]:
        windows = [payload for payload in self.payloads if isinstance(payload, Window)]
        return [window.index for window in windows if window.phase == "evaluation"]

    @property
    def finished(self) -> RunFinished:
        (finished,) = (payload for payload in self.payloads if isinstance(payload, RunFinished))
        return finished


PLANNED = PlannedArm(
    arm=PhantomArm(name="phantom", world_size=2, ghosts=1),
    model=ModelSpec(width=8, depth=2),
    training=TrainingSpec(
        batch_size=16, optimizer="adamw", evaluation_interval=INTERVAL, stop=StopAtSteps(steps=STEPS)
    ),
)


def attempt(
    number: int, killed_after: int | None, *, seed: int = 3, interval_s: float | None = ALWAYS_S
) -> Told:
    """One attempt on this rank; killed at the end of its n-th training window, before that is told or saved."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    team = Team(rank=rank, size=2, compute=Communicator(group), control=group)
    told = Told()

    def emit(payload: Payload) -> None:
        if isinstance(payload, Window) and payload.phase == "training" and len(told.training) == killed_after:
            raise Killed
        told.payloads.append(payload)

    assigned = AssignedRun(run_id="run-1", attempt=number, round=0, position=0, arm="phantom", seed=seed)
    meter = HundredWatts(rank, True, 0.0)
    run = ArmRun(
        assigned,
        PLANNED,
        MeasurementSpec(minimum_window_s=0.0, warmup_steps=1),
        load_task(TASK),
        team=team,
        clock=WindowClock(meter, agree=team.agree, synchronize=lambda: None, emit=emit, charged=True),
        reads_meter=True,
        device=torch.device("cpu"),
        checkpoints=Checkpoints(
            "exp-1",
            assigned,
            identity_of(assigned, PLANNED, [meter.device], "rows"),
            team=team,
            interval_s=interval_s,
        ),
        emit=emit,
    )
    try:
        run.make()
    except Killed:
        assert killed_after is not None
    team.agree(True)  # every rank has removed what it had
    told.files = sorted(
        each.name for each in Path(tempfile.gettempdir()).glob("ghostwatt-checkpoints/exp-1/*")
    )
    team.agree(True)
    return told


def latest_of_rank_1(ending: str) -> Path:
    folder = Path(tempfile.gettempdir()) / "ghostwatt-checkpoints" / "exp-1"
    return max(folder.glob(f"*.rank-1.*{ending}"), key=lambda file: int(file.name.split(".")[-2]))


def lose(ending: str) -> None:
    latest_of_rank_1(ending).unlink()


def cut(ending: str) -> None:
    """The end is missing."""
    file = latest_of_rank_1(ending)
    os.truncate(file, file.stat().st_size - 1)


def flip(ending: str, share: float) -> None:
    """One bit in it is another, at that share of its length."""
    flip_in(latest_of_rank_1(ending), share)


def swap_in_the_step_before(ending: str) -> None:
    latest = latest_of_rank_1(ending)
    step = int(latest.name.split(".")[-2])
    before = latest.with_name(latest.name.replace(f".{step}.", f".{step - INTERVAL}."))
    shutil.copy(before, latest)


def leave_unfinished(ending: str) -> None:
    """As a rank does that is killed while it writes."""
    file = latest_of_rank_1(ending)
    file.rename(file.with_name(file.name + UNFINISHED))
    if ending == TENSORS:
        lose(SEAL)


DAMAGES: dict[str, Callable[[], None]] = {
    "tensors lost": partial(lose, TENSORS),
    "seal lost": partial(lose, SEAL),
    "tensors cut": partial(cut, TENSORS),
    "seal cut": partial(cut, SEAL),
    "seal's digest flipped": partial(flip, SEAL, 0.0),
    "seal flipped": partial(flip, SEAL, 0.5),
    "tensors' first byte flipped": partial(flip, TENSORS, 0.0),
    "tensors flipped": partial(flip, TENSORS, 0.5),
    "tensors' last byte flipped": partial(flip, TENSORS, 1.0),
    "tensors of another step": partial(swap_in_the_step_before, TENSORS),
    "seal of another step": partial(swap_in_the_step_before, SEAL),
    "tensors unfinished": partial(leave_unfinished, TENSORS),
    "seal unfinished": partial(leave_unfinished, SEAL),
}
"""What may befall the latest step on rank 1: it is found out there, and both ranks go on from the step before."""


Story = dict[str, list[Told]]


def all_stories(base: str) -> Story:
    stories: dict[str, Callable[[], list[Told]]] = {
        "whole": lambda: [attempt(1, None, interval_s=None)],
        "resumed": lambda: [attempt(1, 5), attempt(2, None)],
        "twice": lambda: [attempt(1, 3), attempt(2, 2), attempt(3, None)],
        "at once": lambda: [attempt(1, 3), attempt(2, 0), attempt(3, None)],
        **{name: partial(_damaged, damage) for name, damage in DAMAGES.items()},
        "before the first": lambda: [attempt(1, 0), attempt(2, None)],
        "another seed": lambda: [attempt(1, 5), attempt(2, None, seed=4)],
        "not wanted": lambda: [attempt(1, 5, interval_s=None), attempt(2, None, interval_s=None)],
    }
    made = {}
    for name, story in stories.items():
        host = Path(base) / name.replace(" ", "-").replace("'", "")
        host.mkdir(exist_ok=True)  # one for both ranks
        tempfile.tempdir = str(host)
        made[name] = story()
    return made


def _damaged(damage: Callable[[], None]) -> list[Told]:
    first = attempt(1, 5)
    if dist.get_rank() == 1:
        damage()
    return [first, attempt(2, None)]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """By rank."""
    ranks: list[Story] = run_ranks(2, all_stories, str(tmp_path_factory.mktemp("hosts")), deadline_s=240)
    return ranks


@pytest.mark.parametrize(
    ("name", "carried"),
    [
        ("resumed", [(1, 5)]),
        ("twice", [(1, 3), (2, 5)]),
        ("at once", [(1, 3)]),
        *((name, [(1, 4)]) for name in DAMAGES),
    ],
)
def test_a_run_goes_on_from_the_latest_step_that_all_its_ranks_have(
    stories: list[Story], name: str, carried: list[tuple[int, int]]
) -> None:
    whole, last = stories[0]["whole"][0].finished, stories[0][name][-1]
    told = last.finished
    assert told.carried == tuple(
        Carried(attempt=number, windows=windows, steps=windows * INTERVAL) for number, windows in carried
    )
    number, reached = carried[-1]
    assert told.message is not None
    assert f"went on at step {reached * INTERVAL:,} from what attempt {number} had saved" in told.message
    assert [window.index for window in last.training] == list(range(reached, STEPS // INTERVAL))
    assert last.evaluations == list(range(reached + 1, STEPS // INTERVAL + 1))
    assert told.steps == whole.steps == STEPS
    assert (told.final_train_loss, told.final_evaluation_loss) == (
        whole.final_train_loss,
        whole.final_evaluation_loss,
    )


@pytest.mark.parametrize("name", ["resumed", "twice", "tensors flipped"])
def test_time_and_energy_are_those_of_all_windows_that_count(stories: list[Story], name: str) -> None:
    """100 W on each of two boards, whichever attempt a window is of."""
    *earlier, last = stories[0][name]
    first, seconds = 0, sum(window.duration_s for window in last.training)
    for each in last.finished.carried:
        made = earlier[each.attempt - 1].training
        seconds += sum(window.duration_s for window in made if first <= window.index < each.windows)
        first = each.windows
    assert last.finished.training_s == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["before the first", "another seed", "not wanted"])
def test_without_anything_to_go_on_from_it_begins_anew(stories: list[Story], name: str) -> None:
    for rank in stories:
        last = rank[name][-1]
        assert [window.index for window in last.training] == list(range(STEPS // INTERVAL))
    assert stories[0][name][-1].finished.carried == ()


def test_each_rank_keeps_the_last_steps_and_nothing_once_the_run_has_ended(stories: list[Story]) -> None:
    for rank in stories:
        killed, made = rank["resumed"]
        assert killed.files == sorted(
            f"run-1.rank-{each}.{step}{ending}"
            for each in (0, 1)
            for step in (20, 25)[-KEPT:]
            for ending in (TENSORS, SEAL)
        )
        assert made.files == rank["not wanted"][0].files == []


def test_one_step_is_read_whole_and_no_more_unless_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = run_alone()
    for step in (7, 8):
        made.save(replace(reached_nothing(), step=step))
    read: list[str] = []

    def reading(name: Path, seal: Seal) -> dict[str, Any]:
        read.append(name.name)
        return sealed_files.read(name, seal)

    monkeypatch.setattr(
        checkpoints, "sealed_files", SimpleNamespace(**vars(sealed_files) | {"read": reading})
    )
    found = run_alone().latest()
    assert found is not None
    assert (found.step, read) == (8, ["run-1.rank-0.8"])
    flip_in(next(tmp_path.glob("*/*/*.8.pt")))
    found = run_alone().latest()
    assert found is not None
    assert (found.step, read[1:]) == (7, ["run-1.rank-0.8", "run-1.rank-0.7"])


def test_everything_of_an_ended_run_goes_with_it_half_written_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = run_alone()
    made.save(reached_nothing())
    folder = tmp_path / "ghostwatt-checkpoints" / "exp-1"
    (folder / f"run-1.rank-0.9{TENSORS}{UNFINISHED}").write_bytes(b"half")
    made.forget()
    assert not folder.exists()


def test_what_can_not_be_gone_on_from_takes_no_place_of_what_is_saved_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "ghostwatt-checkpoints" / "exp-1"
    other = run_alone("other boards")
    for step in (800, 900):
        other.save(reached_nothing(step))
    (folder / f"run-1.rank-0.950{UNFINISHED}").write_bytes(b"half, of an earlier version")
    (folder / "run-1.rank-0.tmp").write_bytes(b"a stranger's")
    made = run_alone()
    assert made.latest() is None
    for step in (100, 200):
        made.save(reached_nothing(step))
    found = run_alone().latest()
    assert found is not None
    assert found.step == 200
    assert {file.name for file in folder.glob("*.pt*")} == {"run-1.rank-0.100.pt", "run-1.rank-0.200.pt"}
    assert not (folder / f"run-1.rank-0.950{UNFINISHED}").exists()


def test_a_step_that_was_cut_off_takes_no_place_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = run_alone()
    made.save(reached_nothing(850))
    folder = tmp_path / "ghostwatt-checkpoints" / "exp-1"
    (folder / f"run-1.rank-0.900{TENSORS}{UNFINISHED}").write_bytes(b"half")
    again = run_alone()
    found = again.latest()
    assert found is not None
    assert found.step == 850
    again.save(reached_nothing(870))
    assert {file.name for file in folder.glob("*.pt*")} == {"run-1.rank-0.850.pt", "run-1.rank-0.870.pt"}


@pytest.mark.parametrize("body", [b"\xff\xfe", b"no JSON", b'{"told": [], "size": 1, "digest": ""}'])
def test_a_seal_of_another_version_is_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_alone().save(reached_nothing())
    (seal,) = (tmp_path / "ghostwatt-checkpoints" / "exp-1").glob("*.seal")
    seal.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert run_alone().latest() is None


def test_a_full_disk_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ghostwatt-checkpoints").write_text("a file where a folder should be")
    made = run_alone()
    made.save(reached_nothing())
    assert "step 7 could not be saved" in caplog.text


def test_what_never_went_on_is_removed_after_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = run_alone()
    made.save(reached_nothing())
    file, _ = tmp_path.glob("ghostwatt-checkpoints/*/*")
    clear_out(file.stat().st_mtime + LEFT_BEHIND_S - 60)
    assert file.exists()
    clear_out(file.stat().st_mtime + LEFT_BEHIND_S + 60)
    assert list(tmp_path.glob("ghostwatt-checkpoints/*")) == []


def test_other_boards_rows_recipes_and_seeds_are_other_runs() -> None:
    run = AssignedRun(run_id="run-1", attempt=1, round=0, position=0, arm="phantom", seed=3)
    board = HundredWatts(0, True, 0.0).device
    other = DeviceInfo(**board.model_dump() | {"uuid": "GPU-9"})
    slower = replace_rate(PLANNED)
    told = [
        identity_of(run, PLANNED, [board], "rows"),
        identity_of(run, PLANNED, [other], "rows"),
        identity_of(run, PLANNED, [board], "other rows"),
        identity_of(run, slower, [board], "rows"),
        identity_of(run.model_copy(update={"seed": 4}), PLANNED, [board], "rows"),
    ]
    assert len(set(told)) == len(told)
    again = run.model_copy(update={"attempt": 2})
    assert identity_of(again, PLANNED, [board], "rows") == told[0]


def replace_rate(planned: PlannedArm) -> PlannedArm:
    return planned.model_copy(update={"training": planned.training.model_copy(update={"learning_rate": 0.5})})


def flip_in(file: Path, share: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    file.write_bytes(content)


class Alone:
    """A team of one that asks nobody."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def from_first(self, value: Any) -> Any:
        return value


def run_alone(identity: str = "the same") -> Checkpoints:
    run = AssignedRun(run_id="run-1", attempt=1, round=0, position=0, arm="phantom", seed=3)
    alone: Any = Alone()
    return Checkpoints("exp-1", run, identity, team=alone, interval_s=1.0)


def reached_nothing(step: int = 7) -> Reached:
    return Reached(step, Spent(), Spent(), None, None, (), {"step": step, "tensors": {}})
