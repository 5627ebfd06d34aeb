"""The peer of `startup.py`: a TorchTrainer job as anyone would write it, which says when its first step was done.

    python benchmarks/bare_trainer.py FILE

One process group (gloo), two ranks, a small model in DistributedDataParallel; rank 0 writes the time to FILE.
"""

import sys
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch


def train(config: dict[str, Any]) -> None:
    """One optimizer step."""
    model = ray.train.torch.prepare_model(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(10, (64,)))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["file"]).write_text(str(time.time()))


def main() -> None:
    """Runs the job."""
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"file": sys.argv[1]},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
    ).fit()


if __name__ == "__main__":
    main()
