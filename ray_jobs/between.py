"""What one experiment leaves behind in its ranks' processes, and how the next one is kept from it."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def leaving_no_trace(device: torch.device) -> Iterator[None]:
    """Puts back on exit what is the process's and not an experiment's.

    Flags of precision and determinism, default dtype, thread counts, random state, environment variables; and on a
    board its cached memory and the peak that was counted. Process groups are `ranks.Ranks`' own to close.

    Args:
        device: Where this rank computes.
    """
    flags, threads, variables = _flags(), torch.get_num_threads(), dict(os.environ)
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    random_state = torch.random.get_rng_state()
    try:
        yield
    finally:
        # Graphs, buffers and communicators are held by cycles too, and must be gone before the memory is counted.
        gc.collect()
        for backend, name, value in flags:
            setattr(backend, name, value)
        # The one switch that older (`allow_tf32`) and newer (`fp32_precision`) flags all follow.
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.use_deterministic_algorithms(deterministic)
        torch.random.set_rng_state(random_state)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)


def _flags() -> list[tuple[object, str, object]]:
    """Backends' switches with their values, apart from the precision of float32 products."""
    names: dict[object, tuple[str, ...]] = {
        torch.backends.cuda.matmul: (
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
        ),
        torch.backends.cudnn: ("allow_tf32", "enabled", "benchmark", "deterministic"),
    }
    return [
        (backend, name, getattr(backend, name)) for backend, switches in names.items() for name in switches
    ]
