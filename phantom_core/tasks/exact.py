"""Random numbers and products that come out bit-equal on every machine.

Matrix products round differently in every BLAS, and normal deviates depend on the C library's `exp`. Here
all random numbers lie on a binary grid (multiples of 2**-14) and come from integer arithmetic alone. A
float64 product of such numbers has no rounding at all as long as every partial sum stays under 2**53 grid
steps, so no order of summation can change it.
"""

import math

import numpy as np
import numpy.typing as npt

from phantom_core.plan import derived_seed

FloatTable = npt.NDArray[np.float64]

GRID = 2.0**14
"""Grid steps per unit."""

_BYTES = np.uint32(0x00FF00FF)
_CENTRE = 4 * 255 / 2
_STD = math.sqrt(4 * (256**2 - 1) / 12)


class Deviates:
    """A stream of nearly normal deviates of mean 0 and variance 1: each the sum of four random bytes.

    (Irwin-Hall distribution of order 4: excess kurtosis -0.3, 1,021 values, none beyond 3.46.) Only the raw
    stream of PCG64 is drawn from, which NumPy guarantees never to change.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._bits = np.random.PCG64(derived_seed(seed, purpose))

    def draw(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """The next rows x columns deviates, row by row; an odd number of them discards one more."""
        count = rows * columns
        words = self._bits.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]
        sums = words & _BYTES
        words >>= np.uint32(8)
        words &= _BYTES
        sums += words
        np.right_shift(sums, np.uint32(16), out=words)
        sums += words
        sums &= np.uint32(0xFFFF)
        values = sums.astype(np.float32)
        values -= np.float32(_CENTRE)
        values *= np.float32(1 / _STD)
        return values.reshape(rows, columns)


def on_grid(values: npt.NDArray[np.floating]) -> FloatTable:
    """Rounds to multiples of 1 / GRID, as float64."""
    return np.rint(values.astype(np.float64) * GRID) / GRID


def moments(values: FloatTable) -> tuple[FloatTable, FloatTable]:
    """Mean and variance of every column of grid values (rows, columns); sums are exact integers."""
    steps = np.rint(values * GRID).astype(np.int64)
    rows = len(steps)
    mean = steps.sum(axis=0) / rows
    # Centred on an integer near the mean first: squares stay small enough for exact int64 sums.
    centred = steps - np.rint(mean).astype(np.int64)
    offset = centred.sum(axis=0) / rows
    variance = (centred * centred).sum(axis=0) / rows - offset * offset
    return mean / GRID, variance / GRID**2
