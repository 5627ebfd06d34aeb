"""How many rounds are made: all that were planned, or as many as the comparison needs (`rounds: auto`)."""

from phantom_core.precision import Enough, enough_rounds, rounds_used_up
from phantom_core.protocol import AssignedRun, Assignment


class Rounds:
    """The runs so far, those of earlier starts of the job among them, and whether they suffice."""

    def __init__(self, assignment: Assignment) -> None:
        """Args: what is to be made, and what was made before."""
        plan = assignment.plan
        self._measurement = plan.spec.measurement
        self._baseline = plan.baseline
        self._figures: dict[str, dict[int, float]] = {planned.name: {} for planned in plan.arms}
        for made in assignment.made:
            self._note(made.arm, made.round, made.figure)
        runs = assignment.runs
        self._firsts = {
            run.run_id
            for number, run in enumerate(runs)
            if number == 0 or runs[number - 1].round != run.round
        }

    def begins_with(self, run: AssignedRun) -> bool:
        """Whether the run is the first of its round in this assignment, so that it is time to decide."""
        return self._measurement.rounds == "auto" and run.run_id in self._firsts

    def note(self, run: AssignedRun, figure_mj: float | None) -> None:
        """A run was made.

        Args:
            run: Which.
            figure_mj: What the comparison rests on, in millijoules; None if it gives no half of a pair.
        """
        self._note(run.arm, run.round, figure_mj)

    def enough(self, rounds_made: int) -> Enough | None:
        """Why no further round is needed; None if one is."""
        return enough_rounds(self._measurement, rounds_made, self._figures, self._baseline)

    def used_up(self) -> str | None:
        """What is to be said when every round that may be made was made; None if nothing is."""
        return rounds_used_up(self._measurement, self._figures, self._baseline)

    def _note(self, arm: str, number: int, figure_mj: float | None) -> None:
        if figure_mj is not None and arm in self._figures:
            self._figures[arm][number] = figure_mj
