"""Compares predictions with the steps that `layers.py` measured; needs no GPU and measures nothing.

    python -m benchmarks.predictions [--layers FILE] [--profile FILE]

Every measured arm is predicted from the profile as the formulas are now. Every single comparison goes into `--out`,
and the errors into the profile, so that later predictions are shown with them: beside those of other files of steps,
in place of this file's earlier ones.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.layer_rows import small_transport
from benchmarks.quote import of_all_commands, origin
from benchmarks.record import record
from benchmarks.step_arms import Size, StepArm, arms, rows
from phantom_core.cost import arm_cost
from phantom_core.prediction import Prediction, predict
from phantom_core.profile import Compared, DeviceProfile, ProfileError, known_errors, load_profile
from phantom_core.tasks import Dataset

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def main() -> None:
    """Compares, writes both files, prints the errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=Path, default=RESULTS / "layers.json")
    parser.add_argument("--profile", type=Path, default=RESULTS / "profile.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "predictions.json")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    document = json.loads(options.layers.read_text())
    compared = comparisons(document["rows"], profile)
    by_ranks = errors_by_ranks(options.layers.name, compared)
    updated = profile.compared_with(options.layers.name, by_ranks)
    options.profile.write_text(updated.model_dump_json(indent=1) + "\n")
    source = {
        "measured": "source",
        "profile": profile.name,
        "profile_file": options.profile.name,
        "layers": origin(of_all_commands(document)),
        "layers_file": options.layers.name,
    }
    own = [error.model_dump() | {"measured": "error"} for error in known_errors(by_ranks)]
    record(options.out, [source, *compared, *own])
    for error in updated.known_errors:
        print(
            f"p = {error.world_size}: {error.steps} steps in all, ms off by {error.median_time_error:.0%} (median), "
            f"{error.worst_time_error:.0%} at worst"
        )


def comparisons(measured: Sequence[Row], profile: DeviceProfile) -> list[Row]:
    """Each arm that has a measured step and can be predicted, beside its prediction."""
    found = []
    for row in measured:
        if row["measured"] != "arm" or "ms_per_step" not in row:
            continue
        compared: Row = {"measured": "comparison"} | {
            key: row[key] for key in ("n", "depth", "k", "b", "p", "arm", "ms_per_step", "j_per_step")
        }
        try:
            prediction = _prediction(row, profile)
        except ProfileError as error:
            found.append(compared | {"reason": str(error)})
            continue
        ms, joules = 1_000 * prediction.step_s, prediction.energy_j
        found.append(
            compared
            | {
                "predicted_ms_per_step": ms,
                "predicted_j_per_step": joules,
                "time_error": ms / row["ms_per_step"] - 1,
                "energy_error": joules / row["j_per_step"] - 1 if row["j_per_step"] else None,
                "memory_error": _memory_error(row),
            }
        )
    return found


def errors_by_ranks(layers: str, compared: Sequence[Row]) -> list[Compared]:
    """What a file's comparisons say about a profile.

    Args:
        layers: The file's name.
        compared: Its comparisons; those without a prediction say nothing.
    """
    predicted = [row for row in compared if "time_error" in row]
    found = []
    for p in sorted({row["p"] for row in predicted}):
        own = [row for row in predicted if row["p"] == p]
        found.append(
            Compared(
                layers=layers,
                world_size=p,
                time_errors=[row["time_error"] for row in own],
                energy_errors=[row["energy_error"] for row in own if row["energy_error"] is not None],
                memory_errors=[row["memory_error"] for row in own if row["memory_error"] is not None],
            )
        )
    return found


def _memory_error(row: Row) -> float | None:
    peak: int | None = row["peak_memory_bytes"]
    if peak is None:
        return None
    dataset, arm = _rows_and_arm(row)
    return arm_cost(arm.planned, dataset.shape, dataset.placement).memory.peak_bytes / peak - 1


def _prediction(row: Row, profile: DeviceProfile) -> Prediction:
    dataset, arm = _rows_and_arm(row)
    return predict(
        arm.planned,
        dataset.shape,
        dataset.placement,
        profile,
        mode=row["step_mode"],
        small_transport=small_transport(arm, row["transport"]),
    )


def _rows_and_arm(row: Row) -> tuple[Dataset, StepArm]:
    size = Size(row["n"], row["depth"], row["k"], row["b"], row["p"])
    (arm,) = arms(size, row["dtype"], [row["arm"]])
    return rows(size.b), arm


if __name__ == "__main__":
    main()
