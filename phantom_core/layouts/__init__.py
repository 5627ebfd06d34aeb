"""Ways to split a linear layer over ranks, one file each.

Each takes and returns tensors as its `input_placement` and `output_placement` say: this rank's shard (b,
n/p), or the full (b, n). Import them into a torchrun script as they are; `examples/phantom_torchrun.py`
shows it.
"""

from phantom_core.layouts.base import Group, LayoutError, Placement, SplitLinear
from phantom_core.layouts.block_diagonal import BlockDiagonalLinear
from phantom_core.layouts.dense import DenseLinear
from phantom_core.layouts.low_rank import LowRankLinear
from phantom_core.layouts.phantom import PhantomLinear
from phantom_core.layouts.tensor import TensorColumnLinear, TensorGatherLinear, TensorRowLinear

__all__ = [
    "BlockDiagonalLinear",
    "DenseLinear",
    "Group",
    "LayoutError",
    "LowRankLinear",
    "PhantomLinear",
    "Placement",
    "SplitLinear",
    "TensorColumnLinear",
    "TensorGatherLinear",
    "TensorRowLinear",
]
