"""Microseconds of a ghost exchange: NCCL's collectives against the fused kernel, in one run, inside CUDA graphs.

    torchrun --nproc-per-node 4 -m benchmarks.ghost_exchange [--out benchmarks/results/ghost_exchange.json]

Both sides first have to give the right sums. Then each is captured 50 times in a graph, and the graphs are replayed
in turn, round by round; the table shows the median over rounds with its range.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.record import record
from phantom_core.ghost_exchange import SymmetricExchange, choose_exchange
from phantom_core.layouts.ghost_transport import ghost_sources

SIZES = ((256, 64), (1024, 64), (4096, 64), (256, 16), (1024, 256))
CALLS = 50
ROUNDS = 15


def main() -> None:
    """Runs on one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ghost_exchange.json")
    out = parser.parse_args().out
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    choice = choose_exchange(dist.group.WORLD, device)
    if choice.exchange is None:
        raise SystemExit(f"no fused exchange here: {choice.reason}")
    rows = [measure(choice.exchange, b, k, device) for b, k in SIZES]
    if dist.get_rank() == 0:
        record(out, rows, device)
    dist.destroy_process_group()


def measure(exchange: SymmetricExchange, b: int, k: int, device: torch.device) -> dict[str, object]:
    """One size: checks both directions, times both ways."""
    p, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator(device).manual_seed(rank)
    own = torch.randn(k, b, device=device, generator=generator).to(torch.bfloat16)
    given = torch.randn((p - 1) * k, b, device=device, generator=generator).to(torch.bfloat16)
    gathered, everything = torch.empty_like(given), torch.empty(p * k, b, device=device, dtype=own.dtype)
    summed, nccl_summed = torch.empty_like(own), torch.empty_like(own)
    whole, nccl_whole = own.clone(), own.clone()
    check(exchange, own, given)

    sides: dict[str, Callable[[], object]] = {
        "fused_gather": lambda: exchange.gather(own, gathered),
        "nccl_all_gather": lambda: dist.all_gather_into_tensor(everything, own),
        "fused_reduce": lambda: exchange.reduce(given, summed),
        "nccl_reduce_scatter": lambda: dist.reduce_scatter_tensor(nccl_summed, everything),
        # Sums grow p-fold with every call; that many of them are infinite soon, and as fast.
        "fused_sum": lambda: exchange.sum(whole),
        "nccl_all_reduce": lambda: dist.all_reduce(nccl_whole),
    }
    graphs = {name: captured(side) for name, side in sides.items()}
    times_us: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times_us[name].append(timed_us(graph))
    row: dict[str, object] = {"b": b, "k": k, "p": p, "dtype": "bfloat16"}
    for name, times in times_us.items():
        row |= {f"{name}_us": statistics.median(times), f"{name}_us_range": [min(times), max(times)]}
    if rank == 0:
        print(
            " ".join(
                f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}"
                for key, value in row.items()
            ),
            flush=True,
        )
    return row


def check(exchange: SymmetricExchange, own: torch.Tensor, given: torch.Tensor) -> None:
    """All three kinds against a plain all-gather of everything, on poisoned outputs, more often than halves."""
    p, rank, k = dist.get_world_size(), dist.get_rank(), own.shape[0]
    for repeat in range(5):
        own.add_(repeat)
        parts = [torch.empty_like(own) for _ in range(p)]
        dist.all_gather(parts, own)
        gathered = torch.full_like(given, float("nan"))
        exchange.gather(own, gathered)
        expected = torch.cat([parts[source] for source in ghost_sources(rank, p)])
        if not torch.equal(gathered, expected):
            raise SystemExit(f"rank {rank}: gathered ghosts differ, repeat {repeat}")
        everywhere = own.clone()
        exchange.sum(everywhere)
        if not torch.equal(everywhere, sum(part.float() for part in parts).to(own.dtype)):  # type: ignore[union-attr]
            raise SystemExit(f"rank {rank}: sums over all ranks differ, repeat {repeat}")
        blocks = [torch.empty_like(given) for _ in range(p)]
        dist.all_gather(blocks, given)
        total = torch.zeros(own.shape, device=own.device)
        for sender in range(p):
            if sender != rank:
                place = ghost_sources(sender, p).index(rank)
                total += blocks[sender][place * k : (place + 1) * k].float()
        summed = torch.full_like(own, float("nan"))
        exchange.reduce(given, summed)
        if not torch.equal(summed, total.to(own.dtype)):
            raise SystemExit(f"rank {rank}: summed ghosts differ, repeat {repeat}")


def captured(side: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `CALLS` calls."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            side()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            side()
    return graph


def timed_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds per call, over one replay, after a warm one."""
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1_000 * float(start.elapsed_time(end)) / CALLS


if __name__ == "__main__":
    main()
