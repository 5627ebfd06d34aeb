"""Counts the collectives that code outside of `collectives` starts: torch's functional ones, as DTensor uses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from phantom_core.layer_costs import Collective

_KINDS: dict[str, tuple[Collective, bool]] = {
    "_c10d_functional::all_gather_into_tensor": ("all_gather", True),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", False),
    "_c10d_functional::all_reduce": ("all_reduce", False),
    "_c10d_functional::all_reduce_": ("all_reduce", False),
}
"""Which collective an operator is, and whether the whole tensor is its result instead of its argument."""


class FunctionalCollectives(TorchDispatchMode):
    """While it is entered, tells of every functional collective that this thread's work starts.

    Args:
        count: Takes the kind, the numbers in the whole tensor, and bytes of each.
    """

    def __init__(self, count: Callable[[Collective, int, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operator, and counts it if it is a collective."""
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # first the DTensor turns it into what this rank does
        result = func(*args, **(kwargs or {}))
        known = _KINDS.get(func.name().split(".")[0])
        if known is not None:
            kind, gathers = known
            whole: torch.Tensor = result if gathers else args[0]
            self._count(kind, whole.numel(), whole.element_size())
        return result
