"""Experiments, runs and validations on a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from client.figures import number, quantity
from client.models import Experiment, Run, Validation

STATE_STYLES = {
    "queued": "cyan",
    "leased": "cyan",
    "starting": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "lost": "red",
    "diverged": "yellow",
    "cancelled": "yellow",
    "skipped": "dim",
}


def experiments_table(experiments: Sequence[Experiment]) -> Table:
    """Experiments, one a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("id", "name", "state", "runs", "submitted (UTC)"):
        table.add_column(title)
    for experiment in experiments:
        ended, total = run_counts(experiment)
        table.add_row(
            experiment.id,
            Text(experiment.name),
            Text(_state_and_phase(experiment), STATE_STYLES.get(experiment.state, "")),
            f"{ended}/{total}",
            f"{experiment.submitted_at:%Y-%m-%d %H:%M:%S}",
        )
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """Runs, one a line; rounds are counted from 1 for people, from 0 in the API."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("round", "arm", "state"):
        table.add_column(title)
    for title in ("steps", "loss", "J to target", "J per step", "s per step"):
        table.add_column(title, justify="right")
    table.add_column("steps made by")
    table.add_column("method and flags")
    for run in runs:
        loss = run.non_finite.get("final_evaluation_loss") or number(run.final_evaluation_loss)
        table.add_row(
            str(run.round + 1),
            Text(run.arm),
            Text(run.state + (f": {run.reason}" if run.reason else ""), STATE_STYLES.get(run.state, "")),
            "-" if run.steps is None else f"{run.steps:,}",
            loss,
            quantity("energy_to_target_mj", run.energy_to_target_mj),
            quantity("energy_per_step_mj", run.energy_per_step_mj),
            number(run.seconds_per_step),
            _made_by(run),
            Text(", ".join(part for part in (run.method, *run.flags) if part)),
        )
    return table


def _made_by(run: Run) -> str:
    """How the run's steps ran and what carried their exchanges."""
    parts = (run.step_mode, "compiled" if run.compiled else None, run.exchange)
    return ", ".join(part for part in parts if part)


def validation_table(validation: Validation) -> RenderableType:
    """What a spec would need, arm by arm, and what is wrong with it."""
    parts: list[RenderableType] = [
        *(Text(f"error: {problem.field}: {problem.message}", "red") for problem in validation.problems),
        *(Text(f"warning: {warning.field}: {warning.message}", "yellow") for warning in validation.warnings),
    ]
    if validation.arms:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("arm")
        for title in ("ranks", "width", "weights", "FLOPs per step", "MB sent per step", "MB per rank"):
            table.add_column(title, justify="right")
        for arm in validation.arms:
            name = f"{arm.arm} (control)" if arm.control_of else arm.arm
            table.add_row(
                Text(f"{name} (baseline)" if arm.arm == validation.baseline else name),
                str(arm.world_size),
                f"{arm.width:,}",
                f"{arm.parameters:,}",
                f"{arm.flops_per_step:.3g}",
                number(arm.bytes_sent_per_step / 1e6),
                number(arm.memory_per_rank_bytes / 1e6),
            )
        parts.append(table)
        parts.append(
            Text(
                f"{validation.runs} runs ({len(validation.arms)} arms x {validation.rounds} rounds) on "
                f"{validation.ranks} ranks; training takes at most {validation.longest_s:,.0f} s"
            )
        )
    return Group(*parts)


def _state_and_phase(experiment: Experiment) -> str:
    seconds = experiment.phase.elapsed_s
    if seconds is None or experiment.phase.name == "runs":
        return experiment.state
    return f"{experiment.state} ({experiment.phase.name.replace('_', '-')}, {seconds:.0f} s)"


def run_counts(experiment: Experiment) -> tuple[int, int]:
    """Runs that have ended, and all runs."""
    total = sum(experiment.runs.values())
    return total - experiment.runs.get("queued", 0) - experiment.runs.get("running", 0), total
