"""Phantom parallelism in a training script of one's own, beside tensor parallelism of the same width.

    torchrun --nproc-per-node 2 examples/phantom_torchrun.py
    torchrun --nproc-per-node 4 examples/phantom_torchrun.py --width 4096 --ghosts 64

Runs on GPUs (NCCL) where each rank can have one, on CPUs (gloo) otherwise. The layers are used as any torch
module: they take and return this rank's shard (b, n / p), so activations go between them as they are; the
last one returns all outputs on every rank, so every rank computes the same loss and nothing else is
exchanged.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn

from phantom_core.collectives import Communicator
from phantom_core.layouts import PhantomLinear, TensorGatherLinear, TensorRowLinear


def main() -> None:
    """Trains both layouts on the same data and prints what each sent and reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256, help="neurons per layer, n")
    parser.add_argument("--ghosts", type=int, default=16, help="numbers that a rank sends per row, k")
    parser.add_argument("--batch", type=int, default=128, help="rows per step, b")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    options = parser.parse_args()
    device = join_ranks()
    try:
        for name in ("phantom", "tensor"):
            train(name, options, device)
    finally:
        # The last references to the group go with it, or its threads outlive this. What torch imports with the first
        # step of an optimizer can leave a cycle through the models.
        gc.collect()
        dist.destroy_process_group()


def join_ranks() -> torch.device:
    """Joins the process group that torchrun describes; returns this rank's device."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() < local_ranks:
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def train(name: str, options: argparse.Namespace, device: torch.device) -> None:
    """Trains a layout; rank 0 prints its size, its traffic and its loss."""
    n = options.width
    # Layers that share a communicator are counted together.
    ranks = Communicator()
    torch.manual_seed(0)  # ranks still draw different weights: each layer mixes its rank in
    hidden = [
        PhantomLinear(n, n, ghosts=options.ghosts, group=ranks, device=device)
        if name == "phantom"
        else TensorGatherLinear(n, n, group=ranks, device=device)
        for _ in range(2)
    ]
    output = TensorRowLinear(n, 1, group=ranks, device=device)
    model = nn.Sequential(hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), output)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # The same rows on every rank, of which each takes its own columns.
    rows = torch.randn(options.batch, n, generator=torch.Generator().manual_seed(1)).to(device)
    targets = rows.square().mean(1, keepdim=True).sub(1).mul(5)
    own_columns = rows.chunk(ranks.world_size, 1)[ranks.rank]
    losses = []
    for _ in range(options.steps):
        with ranks.counting() as traffic:
            loss = nn.functional.mse_loss(model(own_columns), targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    here = sum(parameter.numel() for parameter in model.parameters())
    if ranks.rank == 0:
        print(
            f"{name:8} {ranks.world_size} ranks on {device.type}: {here:,} weights and "
            f"{traffic.total_bytes_sent:,} bytes sent a step on each; loss {float(losses[0]):.3f} -> "
            f"{float(losses[-1]):.3f}"
        )


if __name__ == "__main__":
    main()
