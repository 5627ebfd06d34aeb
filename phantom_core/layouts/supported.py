"""Where layers compute and in which number formats, and what is said of any other."""

import torch

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Number formats in which every layout and every exchange computes. float16 is none: without a loss scaled to its
narrow range gradients vanish in it, and neither exchanges nor updates are tested in it."""
DEVICES = ("cpu", "cuda")


def found_device(device: torch.device | str | None) -> torch.device | str:
    """The device that is meant, the default one for None; its name where torch knows none of that name."""
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except RuntimeError:
        return str(device)


def device_problem(device: torch.device | str) -> str | None:
    """Why no layer can live there on this rank, and where one can; None if one can."""
    if isinstance(device, str) or device.type not in (*DEVICES, "meta"):
        return f"device = {device}; layers compute on {' and '.join(DEVICES)}: use one of them"
    if device.type != "cuda":
        return None
    boards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if boards == 0:
        return (
            f'device = {device}, but torch finds no CUDA device here; use device="cpu", or a build of torch for '
            "CUDA and its driver"
        )
    if (device.index or 0) >= boards:
        return f"device = {device}, but there are {boards} CUDA devices here; use cuda:0 to cuda:{boards - 1}"
    return None


def dtype_problem(dtype: torch.dtype) -> str | None:
    """Why no layer's weights can be in a number format, and in which they can; None if they can."""
    if dtype in DTYPES:
        return None
    return f"dtype = {dtype}; layers compute in {', '.join(map(str, DTYPES))}: use one of them"
