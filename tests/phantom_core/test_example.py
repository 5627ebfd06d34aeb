"""The example for a script of one's own runs as its first lines say."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "phantom_torchrun.py"


def test_the_torchrun_example_trains_both_layouts_and_phantom_sends_less() -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "tests.leaving_ranks"),
            *(str(EXAMPLE), "--width", "64", "--ghosts", "4", "--batch", "32", "--steps", "40"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"OMP_NUM_THREADS": "1", "PATH": "", "PYTHONPATH": str(EXAMPLE.parents[1])},
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.strip()]
    assert len(lines) == 2, run.stdout
    phantom, tensor = (
        {"sent": int(sent.replace(",", "")), "first": float(first), "last": float(last)}
        for line in lines
        for sent, first, last in re.findall(r"([\d,]+) bytes sent .* loss ([\d.]+) -> ([\d.]+)", line)
    )
    # Forward and backward of two layers in float32, and the all-reduce of one output. Nobody asks for the
    # gradient
    # of the first layer's input; a compressor needs it all the same.
    assert phantom["sent"] == 4 * 32 * 4 * 4 + 32 * 4
    assert tensor["sent"] == 3 * 32 * 32 * 4 + 32 * 4
    assert phantom["last"] < phantom["first"] / 2
    assert tensor["last"] < tensor["first"] / 2
