"""What of a parameter lies on this rank: a DTensor's local tensor, and any other tensor itself."""

import torch


@torch.no_grad()
def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's numbers of a weight or gradient, in the memory that they are in.

    Asked by name, since loading DTensor's module takes a second that arms without it need not wait.

    Args:
        tensor: A plain tensor, or a DTensor in its final placement.

    Returns:
        The tensor itself, detached, or its local part.
    """
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor.detach()
    local: torch.Tensor = to_local()
    return local.detach()
