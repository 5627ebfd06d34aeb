"""Verdicts across experiments: found by what the arm was, where it ran, and what it saved."""

from datetime import timedelta
from typing import Literal

import pytest
from pydantic import ValidationError
from sqlalchemy import update

from services import experiments, findings
from services.database import Database
from services.errors import QueryError
from services.findings import FindingFilter
from services.tables import Comparison, Device, Experiment
from services.views import FindingView
from tests.services.simulated_job import Figures, ran, spec

ARMS = [
    {"strategy": "tensor", "name": "tensor", "world_size": 2},
    {"strategy": "phantom", "name": "phantom", "world_size": 2, "ghosts": 4},
    {"strategy": "block_diagonal", "name": "blocks", "world_size": 2},
]


def saved(database: Database, share: float, **changes: object) -> str:
    """An experiment whose phantom arm saved a share."""
    figures = {
        "phantom": Figures(power_mw=100_000.0 * (1 - share)),
        "blocks": Figures(power_mw=200_000.0),
    }
    return ran(database, spec(arms=ARMS, **changes), figures)


def found(database: Database, **filters: object) -> list[tuple[str, str]]:
    """Experiment and arm of what is found."""
    page = findings.find(database, filters=FindingFilter.model_validate(filters))
    return [(item.experiment_id, item.arm) for item in page.items]


def test_arms_are_found_by_what_they_saved(database: Database) -> None:
    small, large = saved(database, 0.1), saved(database, 0.4)
    assert found(database) == [(large, "phantom"), (large, "blocks"), (small, "phantom"), (small, "blocks")]
    assert found(database, saving_at_least=0.3) == [(large, "phantom")]
    assert found(database, verdicts=["saves"]) == [(large, "phantom"), (small, "phantom")]
    assert found(database, verdicts=["costs_more"], strategy="phantom") == []
    assert found(
        database, verdicts=["no_difference_shown"], metric="seconds_per_step", strategy="phantom"
    ) == [
        (large, "phantom"),
        (small, "phantom"),
    ]


def test_arms_are_found_by_shape_tag_and_board(database: Database) -> None:
    narrow = saved(database, 0.4, tags={"team": "a"})
    wide = saved(database, 0.4, model={"width": 128}, tags={"team": "b"})
    with database.write() as session:
        session.execute(update(Device).where(Device.experiment_id == wide).values(name="NVIDIA H200"))
    phantom = {"strategy": "phantom"}
    assert found(database, **phantom, width_at_least=100) == [(wide, "phantom")]
    assert found(database, **phantom, width_at_most=100) == [(narrow, "phantom")]
    assert found(database, **phantom, world_size=4) == []
    assert found(database, **phantom, dtype="float32", tags={"team": "b"}) == [(wide, "phantom")]
    assert found(database, **phantom, device="h100") == [(narrow, "phantom")]
    assert found(database, **phantom, device="%") == []
    (item,) = findings.find(database, filters=FindingFilter(strategy="phantom", device="H200")).items
    assert (item.devices, item.width, item.ghosts, item.baseline) == (("NVIDIA H200",), 128, 4, "tensor")
    assert item.sentence.startswith("saves 40")


def test_estimates_and_unequal_losses_can_be_left_out(database: Database) -> None:
    identifier = saved(database, 0.4)
    assert found(database, strategy="phantom", measured=True, equal_loss=True) == [(identifier, "phantom")]
    for column in ("estimated", "loss_differs"):
        with database.write() as session:
            session.execute(
                update(Comparison).values({"estimated": False, "loss_differs": False, column: True})
            )
        assert found(database, strategy="phantom") == [(identifier, "phantom")]
        assert found(database, strategy="phantom", measured=True, equal_loss=True) == []


@pytest.mark.parametrize(
    "stop", [{"kind": "steps", "steps": 100}, {"kind": "target_loss", "target_loss": 0.1}]
)
def test_arms_that_ended_at_other_losses_are_at_equal_loss_in_no_metric(
    database: Database, stop: dict[str, object]
) -> None:
    figures = {"phantom": Figures(power_mw=60_000.0, loss=2.0), "tensor": Figures(loss=0.5)}
    training = {"stop": stop | ({"max_steps": 100} if stop["kind"] == "target_loss" else {})}
    identifier = ran(database, spec(arms=ARMS, training=training), figures)
    for metric in ("energy_per_step_mj", "energy_training_mj", "seconds_per_step", "final_evaluation_loss"):
        assert (identifier, "phantom") in found(database, metric=metric), metric
        assert found(database, metric=metric, strategy="phantom", equal_loss=True) == [], metric


def test_what_never_reached_the_target_loss_is_not_at_equal_loss(database: Database) -> None:
    identifier = saved(database, 0.4)
    for metric in findings.AT_TARGET:
        for ratio, answer in ((0.6, [(identifier, "phantom")]), (None, [])):
            with database.write() as session:
                values = {"metric": metric, "ratio": ratio}
                session.execute(update(Comparison).where(Comparison.is_primary).values(values))
            assert found(database, strategy="phantom", equal_loss=True) == answer, (metric, ratio)


def test_arms_are_found_by_the_date_of_their_experiment(database: Database) -> None:
    earlier, later = saved(database, 0.4), saved(database, 0.4)
    with database.write() as session:
        moment = session.get_one(Experiment, later).submitted_at
        session.get_one(Experiment, earlier).submitted_at = moment - timedelta(days=2)
    phantom = {"strategy": "phantom"}
    a_day_before = moment - timedelta(days=1)
    assert found(database, **phantom, submitted_after=a_day_before) == [(later, "phantom")]
    assert found(database, **phantom, submitted_before=a_day_before) == [(earlier, "phantom")]
    assert found(database, **phantom, submitted_after=moment) == [(later, "phantom")], "at or after"
    assert found(database, **phantom, submitted_before=moment) == [(earlier, "phantom")], "and not at"
    between = {"submitted_after": moment - timedelta(days=3), "submitted_before": a_day_before}
    assert found(database, **phantom, **between) == [(earlier, "phantom")]


def test_what_has_not_ended_says_nothing_yet(database: Database) -> None:
    experiments.submit(database, spec())
    assert found(database) == []


@pytest.mark.parametrize("order", ["newest", "largest_saving"])
def test_pages_neither_repeat_nor_skip(
    database: Database, order: Literal["newest", "largest_saving"]
) -> None:
    for share in (0.1, 0.4, 0.4, 0.2):
        saved(database, share)
    whole = findings.find(database, order=order, limit=100).items
    assert len(whole) == 8
    ratios = [item.ratio for item in whole if item.ratio is not None]
    assert (ratios == sorted(ratios)) == (order == "largest_saving")
    seen: list[FindingView] = []
    cursor = None
    while True:
        page = findings.find(database, order=order, cursor=cursor, limit=3)
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert tuple(seen) == whole


def test_a_cursor_belongs_to_its_order(database: Database) -> None:
    saved(database, 0.1)
    cursor = findings.find(database, limit=1).next_cursor
    with pytest.raises(QueryError, match="another question"):
        findings.find(database, order="largest_saving", cursor=cursor)


@pytest.mark.parametrize(
    "filters", [{"saving": 0.3}, {"saving_at_least": 2}, {"verdicts": ["wins"]}, {"width_at_least": 2**40}]
)
def test_what_can_not_be_asked_is_refused(filters: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FindingFilter.model_validate(filters)
