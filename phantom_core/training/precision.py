"""Whether float32 matrix products run in full float32 or in TF32: a setting of the whole process, so borrowed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Makes cuBLAS multiply float32 matrices as asked while inside, and as before afterwards.

    TF32 rounds what goes into a product to 10 bits of mantissa, and adds up in float32. A CUDA graph keeps
    the kernels that were chosen when it was captured. On the CPU, and on GPUs older than Ampere, products are
    in full float32 whatever is asked.

    This is the newer of torch's two interfaces, `fp32_precision`; reading the older one, `allow_tf32`, after
    it is an error in torch, so nothing here or elsewhere may.

    Args:
        tf32: Whether TF32 may be used.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
