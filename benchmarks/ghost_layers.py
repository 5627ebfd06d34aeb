"""Microseconds that ghosts add to a layer's chain of kernels, overlapped against direct, inside CUDA graphs.

    torchrun --nproc-per-node 4 -m benchmarks.ghost_layers [--sweep] [--out ghost_layers.json]

A chain is what the next layer waits for: GEMMs, exchange and ReLU, without weights' gradients. `local` is the chain
without ghosts. `--sweep` also tries other shapes of the direct kernels.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional

import phantom_core.direct_exchange as direct_exchange
from benchmarks.ghost_exchange import captured, timed_us
from benchmarks.record import record
from phantom_core.collectives import Communicator
from phantom_core.layouts.ghost_transport import start_gather, start_reduce

SIZES = ((4096, 64, 256), (8192, 64, 256), (8192, 64, 1024), (16384, 64, 1024))
"""(n, k, b)."""
SWEPT = ((4, 4, 128), (4, 3, 256), (8, 4, 128), (2, 4, 128), (4, 5, 64))
"""Warps, stages and depth; the first are in use."""
ROUNDS = 9


def main() -> None:
    """Runs on one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("ghost_layers.json"))
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ranks = Communicator()
    said = ranks.fuse_ghosts(device)
    if ranks.direct_exchange is None:
        raise SystemExit(f"no fused exchange here: {said}")
    rows = []
    for size in SIZES:
        for warps, stages, depth in SWEPT if options.sweep else SWEPT[:1]:
            direct_exchange.WARPS, direct_exchange.STAGES, direct_exchange.DEPTH = warps, stages, depth
            how = {"warps": warps, "stages": stages, "depth": depth}
            rows.append(how | measure(ranks, *size, device))
            if ranks.rank == 0:
                shown = (f"{k}={v:.1f}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items())
                print(" ".join(shown), flush=True)
    if ranks.rank == 0:
        record(options.out, rows, device)
    dist.destroy_process_group()


def measure(ranks: Communicator, n: int, k: int, b: int, device: torch.device) -> dict[str, object]:
    """One size."""
    p, m = ranks.world_size, n // ranks.world_size
    exchange = ranks.direct_exchange
    assert exchange is not None, "asked for by `main`"
    row: dict[str, object] = {"n": n, "k": k, "b": b, "p": p}
    if not exchange.carries(b, k, torch.bfloat16):
        return row | {"reason": "more ghosts than go directly"}

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).div_(shape[-1] ** 0.5).bfloat16()

    x, delta, local = drawn(b, m).relu_(), drawn(b, m), drawn(m, m)
    compressor, decompressors = drawn(k, m), drawn(m, (p - 1) * k)

    def forward_overlapped() -> torch.Tensor:
        ghosts = start_gather(ranks, compressor, x)
        z = functional.linear(x, local)
        others = ghosts.finish()
        return torch.relu(torch.addmm(z, others.t(), decompressors.t(), out=z))

    def forward_direct() -> torch.Tensor:
        exchange.send_ghosts(x, compressor)
        z = functional.linear(x, local)
        exchange.receive_ghosts(z, decompressors, relu=True)
        return z

    def backward_overlapped() -> torch.Tensor:
        masked = torch.ops.aten.threshold_backward(delta, x, 0)
        ghosts = start_reduce(ranks, decompressors, masked)
        dx = masked @ local
        h = ghosts.finish()
        return torch.addmm(dx, h.t(), compressor, out=dx)

    def backward_direct() -> torch.Tensor:
        exchange.send_contributions(delta, decompressors)
        dx = delta @ local
        exchange.receive_gradient(dx, compressor, x)
        return dx

    def ghosts_alone() -> None:
        exchange.send_ghosts(x, compressor)
        exchange.receive_ghosts(delta, decompressors, relu=False)

    def gradient_alone() -> None:
        exchange.send_contributions(delta, decompressors)
        exchange.receive_gradient(x, compressor, None)

    sides: dict[str, Callable[[], object]] = {
        "forward_local": lambda: torch.relu(functional.linear(x, local)),
        "forward_overlapped": forward_overlapped,
        "forward_direct": forward_direct,
        "direct_ghosts_alone": ghosts_alone,
        "backward_local": lambda: torch.ops.aten.threshold_backward(delta, x, 0) @ local,
        "backward_overlapped": backward_overlapped,
        "backward_direct": backward_direct,
        "direct_gradient_alone": gradient_alone,
    }
    graphs = {name: captured(side) for name, side in sides.items()}
    times_us: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times_us[name].append(timed_us(graph))
    for name, times in times_us.items():
        row |= {f"{name}_us": statistics.median(times), f"{name}_us_range": [min(times), max(times)]}
    return row


if __name__ == "__main__":
    main()
