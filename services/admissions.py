"""Accepted experiments as the rows that are to be written, made before any database is asked.

This is what a caller of `POST /v1/experiments` waits for, so the rows are plain tuples in the columns' order; building
each through SQLAlchemy costs several times as much. `admission_writes` writes them, several experiments' at a time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from phantom_core.plan import Plan, PlannedArm, schedule
from phantom_core.spec import PhantomArm
from services.ids import run_id
from services.states import ExperimentState
from services.views import ArmCostView

EXPERIMENT_COLUMNS = (
    "id",
    "name",
    "state",
    "description",
    "tags",
    "rounds",
    "sample_rate_hz",
    "spec",
    "plan",
    "baseline",
    "priority",
    "submitted_by",
)
"""Of a row in `experiments` as it is accepted; what the moment of writing adds is not among them."""

ARM_COLUMNS = (
    "name",
    "position",
    "strategy",
    "world_size",
    "width",
    "depth",
    "ghosts",
    "dtype",
    "settings",
    "control_of",
    "cost",
)
"""Of a row in `arms`, without its experiment."""

EVENT_COLUMNS = "experiment_id, subject_id, attempt, source, seq, kind, at, received_at, payload"
"""Of a row in `events`: an experiment's first says that it is queued."""
QUEUED_PAYLOAD = json.dumps({"from": None, "to": ExperimentState.QUEUED})
"""What that one says."""


@dataclass(frozen=True)
class KeyClaim:
    """An Idempotency-Key that a submission comes with."""

    caller: str
    """Whose key it is."""
    key: str
    """As it was sent."""
    payload_sha256: bytes
    """Of what was submitted with it."""


@dataclass(frozen=True)
class RunRow:
    """A run that is to be made."""

    id: str
    """Its id."""
    arm: int
    """Position of its arm."""
    round: int
    """From 0."""
    position: int
    """Place in the round's order, from 0."""
    seed: int
    """Of weights and batches."""


@dataclass(frozen=True)
class Admission:
    """An experiment that is about to be written as `queued`, all or nothing."""

    id: str
    """Its id."""
    experiment: tuple[object, ...]
    """Values of `EXPERIMENT_COLUMNS`."""
    tags: tuple[tuple[str, str], ...]
    """Name and value of each."""
    arms: tuple[tuple[object, ...], ...]
    """Values of `ARM_COLUMNS` of each, in order of position."""
    runs: tuple[RunRow, ...]
    """All of them, in the order in which they are made."""
    claim: KeyClaim | None
    """A key that must be this submission's alone."""

    @property
    def rows(self) -> int:
        """How much there is to write."""
        return 2 + len(self.tags) + len(self.arms) + len(self.runs)


def admission_of(
    identifier: str,
    plan: Plan,
    costs: Sequence[ArmCostView],
    spec_json: str,
    *,
    submitted_by: str | None,
    claim: KeyClaim | None,
) -> Admission:
    """The rows of an accepted plan.

    Args:
        identifier: The experiment's id.
        plan: What is to be run.
        costs: What each arm costs by the formulas, in the plan's order.
        spec_json: The plan's spec.
        submitted_by: Id of the API key that asked; None without one.
        claim: A key that must be this submission's alone; None without one.
    """
    spec = plan.spec
    positions = {planned.name: position for position, planned in enumerate(plan.arms)}
    settings = [planned.model_dump_json() for planned in plan.arms]
    return Admission(
        id=identifier,
        experiment=(
            identifier,
            spec.name,
            ExperimentState.QUEUED.value,
            spec.description,
            json.dumps(spec.tags),
            spec.measurement.rounds_planned,
            spec.measurement.sample_rate_hz,
            spec_json,
            _plan_json(plan, settings),
            plan.baseline,
            spec.resources.priority,
            submitted_by,
        ),
        tags=tuple(spec.tags.items()),
        arms=tuple(
            _arm(position, *each)
            for position, each in enumerate(zip(plan.arms, settings, costs, strict=True))
        ),
        runs=tuple(
            RunRow(
                run_id(identifier, run.round, positions[run.arm]),
                positions[run.arm],
                run.round,
                run.position,
                run.seed,
            )
            for run in schedule(plan)
        ),
        claim=claim,
    )


def _plan_json(plan: Plan, settings: Sequence[str]) -> str:
    """A plan without its spec, of arms that are written already: they are most of it."""
    rest = plan.model_dump_json(exclude={"spec", "arms"})
    return f'{{"arms":[{",".join(settings)}],{rest[1:]}'


def _arm(position: int, planned: PlannedArm, settings: str, cost: ArmCostView) -> tuple[object, ...]:
    return (
        planned.name,
        position,
        planned.arm.strategy,
        planned.arm.world_size,
        planned.model.width,
        planned.model.depth,
        planned.arm.ghosts if isinstance(planned.arm, PhantomArm) else None,
        planned.model.number_format,
        settings,
        json.dumps(planned.control_of),
        cost.model_dump_json(),
    )
