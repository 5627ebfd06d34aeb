"""A rank's device, and how its meter finds it: by the UUID that PyTorch tells, whatever a process may see."""

import torch

from phantom_core.meters.choose import MeterRequest
from phantom_core.spec import GpuScope


def device_of_rank(use_gpu: bool) -> torch.device:
    """The device that Ray gave this rank."""
    if not use_gpu:
        return torch.device("cpu")
    from ray.train.torch import get_device

    device: torch.device = get_device()
    return device


def meter_request(device: torch.device, rank: int, scope: GpuScope = "gpu") -> MeterRequest:
    """The device's meter, as any process of the host can open it.

    Args:
        device: This rank's; `cuda` is what PyTorch calls AMD's boards, too.
        rank: This rank.
        scope: What a board's energy is to cover.
    """
    if device.type != "cuda":
        return MeterRequest(kind="cpu", rank=rank)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return MeterRequest(kind="cuda" if torch.version.hip is None else "rocm", uuid=uuid, scope=scope)
