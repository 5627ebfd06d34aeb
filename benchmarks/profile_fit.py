"""From the rows that `calibrate.py` measured to the profile that predictions are made from."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize

from phantom_core.profile import (
    THIN,
    Curve,
    DeviceProfile,
    EagerStep,
    GemmFit,
    LinkCurve,
    Powers,
    ProfileError,
)

Row = dict[str, Any]
FEWEST_SHAPES = 3
"""Coefficients of a GEMM's fit; fewer shapes can't determine them."""
_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2}


def fitted_profile(document: dict[str, Any]) -> DeviceProfile:
    """Fits a calibration's rows.

    Args:
        document: As `record` wrote it.

    Raises:
        ProfileError: Rows that every profile needs are missing, so the calibration was cut off too early.
    """
    rows = document["rows"]
    (setting,) = _of(rows, "setting")
    (eager,) = _of(rows, "eager")
    (update,) = _of(rows, "update")
    card = document.get("card", setting["device"])
    return DeviceProfile(
        name=f"{document.get('cards', setting['world_size'])} x {card}, {document['date'][:10]}",
        card=card,
        cards=document.get("cards", setting["world_size"]),
        driver=document.get("driver"),
        torch=document["torch"],
        date=document["date"],
        command=document["command"],
        in_graph=setting["in_graph"],
        gemms=tuple(_gemm_fits(_of(rows, "gemm"))),
        links=tuple(_link_curves([row for row in rows if row["measured"] == "collective"])),
        elementwise=Curve(points=_points(_of(rows, "elementwise"), "bytes")),
        update_bytes_per_s=update["bytes"] / update["seconds"],
        eager=_eager_step(eager),
        powers=_powers(_of(rows, "power"), setting.get("power_limit_w")),
    )


def _of(rows: Sequence[Row], measured: str) -> list[Row]:
    found = [row for row in rows if row["measured"] == measured]
    if not found:
        raise ProfileError(f"no row is measured = {measured!r}: the calibration was cut off; run it again")
    return found


def _eager_step(row: Row) -> EagerStep:
    missing = [name for name in ("model", "training", "shape") if name not in row]
    if missing:
        raise ProfileError(
            f"the eager row has no {', '.join(missing)}: it doesn't tell how many launches it took; calibrate again"
        )
    return EagerStep(
        seconds=row["step_s"],
        model=row["model"],
        training=row["training"],
        shape=row["shape"],
        note=row.get("note"),
    )


def _gemm_fits(rows: Sequence[Row]) -> list[GemmFit]:
    fits = []
    for arithmetic in dict.fromkeys(row["arithmetic"] for row in rows):
        own = [row for row in rows if row["arithmetic"] == arithmetic]
        for thin in (False, True):
            like = [row for row in own if (min(row["rows"], row["columns"], row["inner"]) < THIN) is thin]
            if len(like) >= FEWEST_SHAPES:
                fits.append(_gemm_fit(like, thin))
    return fits


def _gemm_fit(rows: Sequence[Row], thin: bool) -> GemmFit:
    """Coefficients >= 0 that make the sum of squared relative errors least."""
    arithmetic = rows[0]["arithmetic"]
    seconds = np.array([row["seconds"] for row in rows])
    sizes = np.array([(row["rows"], row["columns"], row["inner"]) for row in rows], dtype=np.float64)
    m, n, k = sizes.T
    flops = 2 * m * n * k
    moved = _BYTES[arithmetic] * (m * k + k * n + m * n)
    features = np.stack([np.ones_like(flops), flops, moved], axis=1) / seconds[:, None]
    # Columns of one size, which the solver needs: FLOPs are 1e12 where the overhead is 1.
    scale = features.max(axis=0)
    coefficients = scipy.optimize.nnls(features / scale, np.ones_like(seconds))[0] / scale
    errors = np.abs(features @ coefficients - 1)
    return GemmFit(
        arithmetic=arithmetic,
        thin=thin,
        overhead_s=float(coefficients[0]),
        s_per_flop=float(coefficients[1]),
        s_per_byte=float(coefficients[2]),
        shapes=len(rows),
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


def _link_curves(rows: Sequence[Row]) -> list[LinkCurve]:
    keys = dict.fromkeys((row["kind"], row["transport"], row["world_size"]) for row in rows)
    return [
        LinkCurve(
            kind=kind,
            transport=transport,
            world_size=size,
            points=_points(
                [row for row in rows if (row["kind"], row["transport"], row["world_size"]) == key],
                "bytes_sent",
            ),
        )
        for key in keys
        for kind, transport, size in [key]
    ]


def _points(rows: Sequence[Row], size: str) -> tuple[tuple[int, float], ...]:
    by_size: dict[int, list[float]] = {}
    for row in rows:
        by_size.setdefault(row[size], []).append(row["seconds"])
    return tuple((each, statistics.median(by_size[each])) for each in sorted(by_size))


def _powers(rows: Sequence[Row], limit_w: float | None) -> Powers:
    loads = {row["load"]: row for row in rows}
    unknown = [name for name, row in loads.items() if row["power_w"] is None]
    missing = [name for name in ("idle", "active", "gemm", "memory") if name not in loads] + unknown
    if missing:
        reasons = {loads[name]["reason"] for name in unknown}
        raise ProfileError(
            f"no power of {', '.join(missing)} {reasons or ''}: calibrate where energy can be read"
        )
    communication = loads.get("communication", {})
    return Powers(
        method=loads["gemm"]["method"],
        idle_w=loads["idle"]["power_w"],
        active_w=loads["active"]["power_w"],
        gemm_w=loads["gemm"]["power_w"],
        gemm_flops_per_s=loads["gemm"]["flops_per_s"],
        gemm_bytes_per_s=loads["gemm"].get("operand_bytes_per_s", 0.0),
        memory_w=loads["memory"]["power_w"],
        memory_bytes_per_s=loads["memory"]["bytes_per_s"],
        communication_w=communication.get("power_w"),
        communication_bytes_per_s=communication.get("bytes_sent_per_s"),
        limit_w=limit_w,
    )
