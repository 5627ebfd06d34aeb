"""Arms with one switch the other way speak over their team's exchange, and make none of their own."""

import dataclasses
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from benchmarks.step_arms import BASELINE, BASELINE_OVER_NCCL, Size, arms
from benchmarks.step_trainers import communicates, communicator
from phantom_core.collectives import Communicator
from ray_jobs.ranks import Team

SIZE = Size(n=64, depth=2, k=4, b=16, p=2)


@pytest.mark.parametrize("name", ["phantom ghosts beside", "phantom ghosts in line", f"{BASELINE} split"])
def test_a_variant_uses_the_teams_exchange(name: str) -> None:
    team = cast(Team, SimpleNamespace(compute=Communicator()))
    (arm,) = arms(SIZE, "float32", [name])
    ranks = communicator(arm, team, silent=False)
    assert ranks is not team.compute
    assert ranks.ghost_choice is None
    told = ranks.fuse_ghosts(torch.device("cpu"))
    assert ranks.ghost_choice is not None
    assert ranks.ghost_choice is team.compute.ghost_choice
    assert told == team.compute.fuse_ghosts(torch.device("cpu"))


def test_an_arm_communicates_if_its_ranks_send_anything_the_outputs_sum_included() -> None:
    assert all(communicates(arm) for arm in arms(SIZE, "float32"))
    assert {arm.planned.arm.strategy for arm in arms(SIZE, "float32")} >= {"block_diagonal", "phantom"}
    alone = arms(dataclasses.replace(SIZE, p=1), "float32")
    assert not any(communicates(arm) for arm in alone)


@pytest.mark.parametrize("name", ["phantom over NCCL", BASELINE_OVER_NCCL])
def test_what_is_to_go_by_the_library_sets_up_no_exchange(name: str) -> None:
    team = cast(Team, SimpleNamespace(compute=Communicator()))
    (arm,) = arms(SIZE, "float32", [name])
    ranks = communicator(arm, team, silent=False)
    ranks.fuse_ghosts(torch.device("cpu"))
    assert ranks.ghost_exchange is None
    assert team.compute.ghost_choice is None
