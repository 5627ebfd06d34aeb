"""The runs of one arm by round, each with what it ran on and learned from: the sides of pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantom_core.board_limits import BoardLimits
from services.made_with import MadeWith
from services.states import RunState
from services.tables import Arm, Device, Run


@dataclass(frozen=True)
class Board:
    """What matters of a board to a comparison."""

    key: int
    name: str | None
    limits: BoardLimits


@dataclass(frozen=True)
class Outcome:
    """One run as a side of a pair."""

    run: Run
    boards: frozenset[Board]
    data: str | None = None
    """Digest of the rows that it learned from; None if unknown."""


@dataclass(frozen=True)
class ArmRuns:
    """All runs of one arm."""

    arm: Arm
    by_round: Mapping[int, Outcome]

    @classmethod
    def of(
        cls,
        arm: Arm,
        runs: Sequence[Run],
        devices: Mapping[int, Device],
        made_with: Mapping[int, MadeWith] | None = None,
    ) -> "ArmRuns":
        """The arm's runs among those of an experiment, without those that turned out not to be needed.

        Args:
            arm: The arm.
            runs: All runs of the experiment.
            devices: Its devices by key.
            made_with: What the jobs that made the runs told of data and boards, by key of the run.
        """

        def outcome(run: Run) -> Outcome:
            told = (made_with or {}).get(run.key, MadeWith())
            boards = (devices[key] for key in run.device_keys or () if key in devices)
            return Outcome(
                run,
                frozenset(Board(each.key, each.name, told.limits_of(each)) for each in boards),
                told.data_digest,
            )

        return cls(
            arm,
            {
                run.round: outcome(run)
                for run in runs
                if run.arm_key == arm.key and run.state != RunState.SKIPPED
            },
        )

    @property
    def parameters(self) -> int | None:
        """Weights: counted if a run did, else from the formulas."""
        counted = next(
            (side.run.parameters for side in self.by_round.values() if side.run.parameters is not None),
            None,
        )
        return counted if counted is not None else (self.arm.cost or {}).get("parameters")
