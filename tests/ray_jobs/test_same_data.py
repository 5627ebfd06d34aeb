"""Ranks whose data differ, or that have none, end together, and the user is told where which data are."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.protocol import Reason
from phantom_core.spec import FileTask
from phantom_core.tasks import Dataset, TaskError, load_task
from ray_jobs.experiment import _judged
from ray_jobs.ranks import Team
from ray_jobs.same_data import load_same
from tests.distributed import run_ranks

TABLE = "a,b\n" + "".join(f"{number},{number % 7}\n" for number in range(40))
OTHER = TABLE.replace("39,4", "39,5")
FEWER = TABLE.replace("39,4\n", "")


def load_on_this_rank(folders: list[Path | None]) -> tuple[str | None, Exception | None]:
    """Loads as a host with that folder does: its digest, or what was raised."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    everyone = Team(rank, dist.get_world_size(), Communicator(), group)
    folder = folders[rank]

    def load() -> Dataset:
        if folder is None:
            raise OSError("the disk is gone")
        task = FileTask(path="t.csv", features=("a",), target="b", target_kind="regression")
        return load_task(task, [folder])

    try:
        return load_same(load, everyone, f"host-{rank // 2}").digest(), None
    except Exception as error:
        return None, pickle.loads(pickle.dumps(error))  # as Ray hands it on


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path | None]:
    made: dict[str, Path | None] = {"gone": None}
    for name, text in {"usual": TABLE, "copy": TABLE, "other": OTHER, "fewer": FEWER, "empty": None}.items():
        made[name] = folder = tmp_path / name
        folder.mkdir()
        if text is not None:
            (folder / "t.csv").write_text(text)
    return made


def loaded(folders: dict[str, Path | None], *names: str) -> list[tuple[str | None, Exception | None]]:
    return run_ranks(len(names), load_on_this_rank, [folders[name] for name in names])


def judged(told: list[tuple[str | None, Exception | None]]) -> tuple[Reason, str]:
    """What the driver makes of what the ranks raised."""
    error: Any = RuntimeError("workers failed")
    error.worker_failures = {rank: raised for rank, (_, raised) in enumerate(told)}
    return _judged(error)


def test_ranks_with_the_same_data_have_one_digest(folders: dict[str, Path | None]) -> None:
    digests = {digest for digest, _ in loaded(folders, "usual", "copy", "usual")}
    assert len(digests) == 1
    assert None not in digests


@pytest.mark.parametrize(("theirs", "rows"), [("other", "36 + 4"), ("fewer", "35 + 4")])
def test_data_that_differ_between_hosts_are_the_user_s_to_mend_and_every_rank_says_so(
    folders: dict[str, Path | None], theirs: str, rows: str
) -> None:
    told = loaded(folders, "usual", "copy", theirs)
    messages = {str(error) for _, error in told}
    assert all(isinstance(error, TaskError) for _, error in told)
    assert len(messages) == 1
    reason, message = judged(told)
    assert reason is Reason.TASK_ERROR
    assert "host-0 (ranks 0, 1): has " in message
    assert "(36 + 4 rows); host-1 (rank 2): has " in message
    assert f"({rows} rows); put the same file under the data roots of every host" in message


def test_data_that_one_host_lacks_end_all_ranks_with_its_reason(folders: dict[str, Path | None]) -> None:
    told = loaded(folders, "usual", "copy", "empty")
    assert all(isinstance(error, TaskError) for _, error in told)
    reason, message = judged(told)
    assert reason is Reason.TASK_ERROR
    assert "host-1 (rank 2): path 't.csv' is no readable file below" in message
    assert "host-0 (ranks 0, 1): has " in message


def test_data_that_nobody_has_are_told_as_one_rank_tells_it(folders: dict[str, Path | None]) -> None:
    told = loaded(folders, "empty", "empty")
    assert {str(error).startswith("path 't.csv' is no readable file below") for _, error in told} == {True}


def test_a_rank_that_fails_for_a_reason_of_its_own_ends_the_others_and_is_worth_another_try(
    folders: dict[str, Path | None],
) -> None:
    told = loaded(folders, "usual", "gone", "empty")
    assert isinstance(told[1][1], OSError)
    for rank in (0, 2):
        assert str(told[rank][1]) == "rank 1 on host-0 could not load the task's data: the disk is gone"
    assert judged(told)[0] is Reason.WORKER_LOST
