"""Ids: ordered by time, safe everywhere, never equal."""

import re

import pytest

from services.ids import EXPERIMENT_ID, experiment_id, experiment_of, run_id


def test_later_ids_sort_later() -> None:
    moments = [0, 1, 2**31, 1_700_000_000_000, 1_700_000_000_001, 2**47]
    ids = [experiment_id(unix_ms=moment) for moment in moments]
    assert ids == sorted(ids)


def test_the_time_is_written_as_a_ulid_s() -> None:
    example_of_its_definition = experiment_id(unix_ms=1_469_918_176_385)
    assert example_of_its_definition.startswith("exp-01aryz6s41")


def test_ids_of_one_millisecond_differ() -> None:
    assert len({experiment_id(unix_ms=5) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize("make", [experiment_id, lambda: run_id(experiment_id(), 999, 159)])
def test_ids_are_safe_in_urls_file_names_and_ray(make: object) -> None:
    assert callable(make)
    made = make()
    assert re.fullmatch(r"[a-z0-9-]{1,64}", made)


def test_an_id_is_recognised_and_a_run_knows_its_experiment() -> None:
    made = experiment_id()
    assert EXPERIMENT_ID.match(made)
    assert experiment_of(run_id(made, 3, 2)) == made


def test_run_ids_are_distinct_for_every_round_and_arm() -> None:
    made = experiment_id()
    assert len({run_id(made, number, arm) for number in range(1_000) for arm in range(0, 160, 7)}) == 23_000
