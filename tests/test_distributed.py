"""The helper that runs tests on several ranks fails fast, tells why, and leaves nothing behind."""

import os
import pickle
import time
import warnings
from unittest import mock

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.distributed import RankFailedError, run_ranks
from tests.running import title


def square_of_rank(offset: int) -> tuple[int, torch.Tensor]:
    total = torch.ones(1)
    dist.all_reduce(total)
    return (dist.get_rank() + offset) ** 2, total


def fail_on_one() -> None:
    if dist.get_rank() == 1:
        raise ZeroDivisionError("rank one divides by nothing")
    dist.barrier()


def fail_on_one_after_all() -> None:
    """Rank 1 has failed, and tells it late; rank 0 has lost it by then, and tells it at once."""
    dist.barrier()  # both are there: else rank 0 may lose the other while it still joins
    pickled = pickle.dumps

    def late(word: object) -> bytes:
        dist.destroy_process_group()
        time.sleep(0.2)
        return pickled(word)

    if dist.get_rank() == 1:
        mock.patch.object(pickle, "dumps", late).start()
    fail_on_one()


def die_on_one() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def warn() -> None:
    warnings.warn("careful", UserWarning, stacklevel=1)


def wait_for_ever() -> None:
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(600)


def ranks_left() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "forkserver" in title(child) and child.children()]


def test_results_come_in_rank_order() -> None:
    results = run_ranks(3, square_of_rank, 2)
    assert [number for number, _ in results] == [4, 9, 16]
    assert all(total.item() == 3 for _, total in results)
    assert not ranks_left()


def test_a_rank_that_raises_ends_all_with_its_traceback() -> None:
    with pytest.raises(RankFailedError, match=r"(?s)rank 1:.*fail_on_one.*rank one divides by nothing"):
        run_ranks(2, fail_on_one)
    assert not ranks_left()


def test_the_rank_that_failed_first_is_told_first_whoever_speaks_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.distributed.CAUSE_GRACE_S", 30)
    with pytest.raises(RankFailedError) as failed:
        run_ranks(2, fail_on_one_after_all)
    first, _, second = str(failed.value).partition("\nrank 0:\n")
    assert first.startswith("rank 1:")
    assert "rank one divides by nothing" in first
    assert "dist.barrier()" in second


def test_a_rank_that_dies_is_told_from_one_that_raises() -> None:
    with pytest.raises(RankFailedError, match="rank 1 died"):
        run_ranks(2, die_on_one)


def test_a_warning_on_a_rank_is_an_error() -> None:
    with pytest.raises(RankFailedError, match="UserWarning: careful"):
        run_ranks(1, warn)


def test_the_deadline_ends_ranks_that_hang() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] are not done"):
        run_ranks(2, wait_for_ever, deadline_s=8)
    assert not ranks_left()
