"""calibrate, layers and attribution from end to end on two gloo ranks, at tiny sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_rate import MEMORY_BURST
from phantom_core.profile import load_profile

ROOT = Path(__file__).parent.parent.parent


def torchrun(*arguments: str, leaves: bool = True) -> str:
    """Runs a script on two ranks without a GPU; its output.

    Args:
        arguments: Its module's name and arguments.
        leaves: Whether its ranks must leave their groups; DTensor's caches keep their own.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    if leaves:
        command += ["tests.leaving_ranks", "-m"]
    finished = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a calibration of this machine."""
    folder = tmp_path_factory.mktemp("results")
    torchrun(
        *("benchmarks.calibrate", "--tiny"),
        *("--out", str(folder / "calibrate.json"), "--profile", str(folder / "profile.json")),
    )
    return folder


def rows_of(path: Path, measured: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(path.read_text())["rows"] if row["measured"] == measured]


def test_a_calibration_gives_a_profile_of_what_was_measured(calibrated: Path) -> None:
    profile = load_profile(calibrated / "profile.json")
    assert not profile.in_graph
    assert profile.powers.method == "estimate"
    assert profile.transports == {"gloo"}
    assert {(link.kind, link.world_size) for link in profile.links} == {
        (kind, 2) for kind in ("all_gather", "reduce_scatter", "all_reduce")
    }
    (setting,) = rows_of(calibrated / "calibrate.json", "setting")
    assert setting["backend"] == "gloo"


def test_layers_measures_every_arm_and_predicts_beside_it(calibrated: Path) -> None:
    out = calibrated / "layers.json"
    progress = torchrun(
        *("benchmarks.layers", "--tiny", "--rounds", "3", "--window-s", "0.02"),
        # All but the compiled one: compiling takes longer than everything else together.
        *("--arms", "tensor gather", "DTensor", "phantom", "phantom over NCCL", "block-diagonal", "low-rank"),
        *("--out", str(out), "--profile", str(calibrated / "profile.json")),
        leaves=False,
    )
    rows = {(row["p"], row["arm"]): row for row in rows_of(out, "arm")}
    assert {arm for p, arm in rows if p == 2} >= {
        "tensor column/row",
        "tensor gather",
        "DTensor",
        "phantom",
        "phantom over NCCL",
        "block-diagonal",
        "low-rank",
    }
    assert (1, "dense") in rows
    ceilings = {row["load"]: row for row in rows_of(out, "setting")[-1]["ceilings"]}
    assert ceilings[MEMORY_BURST]["bytes_per_s"] > 0
    for (p, arm), row in rows.items():
        assert len(row["rounds"]) == 3
        assert row["energy_method"] == "estimate"
        assert row["prediction"]["ms_per_step"] > 0
        assert "estimate from profile" in row["prediction"]["label"]
        assert f"p={p}: {arm}: " in progress
        if p == 2 and arm != "tensor column/row":
            assert row["energy_ratio"]["low"] <= row["energy_ratio"]["ratio"] <= row["energy_ratio"]["high"]
    assert rows[2, "DTensor"]["silent"] == {"reason": "DTensor's own collectives can't be left out"}
    silent = {arm for (_, arm), row in rows.items() if "exposed_share" in row}
    exchanging = {"tensor column/row", "tensor gather", "phantom", "phantom over NCCL", "low-rank"}
    assert silent == exchanging | {"block-diagonal"}  # which sums its outputs


def test_attribution_names_the_method_of_every_part(calibrated: Path) -> None:
    out = calibrated / "attribution.json"
    torchrun("benchmarks.attribution", "--tiny", "--rounds", "3", "--window-s", "0.02", "--out", str(out))
    for row in rows_of(out, "attribution"):
        assert set(row["parts"]) == {"communication", "optimizer", "activations", "GEMMs"}
        assert all(part["method"].startswith("variants: ") for part in row["parts"].values())
        assert row["timeline"] == {"reason": "kernels are seen on GPUs only"}
