"""The exchanges of tensor parallelism, as autograd functions; `tensor.py` has the layers.

Gathered and scattered tensors are kept feature-major, (features, b), so that a rank's part is one contiguous
piece and neither exchange copies; the (b, features) tensors that go in and out are views of them.
"""

from typing import Any

import torch

from phantom_core.collectives import Communicator
from phantom_core.layouts.base import backward_of
from phantom_core.layouts.local_linear import Gradients, local_gradients

LEAST_PART = 1 << 33
"""Multiply-adds of a part that is worth a kernel of its own: some 25 us on an H100."""


class GatherForm(torch.autograd.Function):
    """z_j = x W_j^T + bias_j with x gathered; dx by one reduce-scatter, behind which dW_j is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        """Turns x_j (b, n/p) into z_j (b, n_out/p)."""
        own = x.t().contiguous()  # (n/p, b); already so if x came from another such layer
        gathered = own.new_empty(weight.shape[1], x.shape[0])  # (n, b)
        pending = ranks.all_gather(gathered, own)
        if ranks.splits_products and weight.shape[0] * own.numel() >= LEAST_PART:
            start, end = ranks.rank * own.shape[0], (ranks.rank + 1) * own.shape[0]
            z = weight[:, start:end] @ own
            pending.wait()
            for part in (slice(0, start), slice(end, weight.shape[1])):
                if part.start < part.stop:
                    torch.addmm(z, weight[:, part], gathered[part], out=z)
        else:
            pending.wait()
            z = weight @ gathered  # (n_out/p, b)
        if bias is not None:
            z += bias[:, None]
        ctx.save_for_backward(gathered, weight)
        ctx.ranks = ranks
        return z.t()

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> Gradients:
        """Turns delta_j (b, n_out/p) into dx_j (b, n/p), dW_j and dbias_j."""
        gathered, weight = ctx.saved_tensors
        dx_own, pending = None, None
        if ctx.needs_input_grad[0]:
            dx = weight.t() @ delta.t()  # (n, b)
            dx_own = dx.new_empty(dx.shape[0] // ctx.ranks.world_size, dx.shape[1])
            pending = ctx.ranks.reduce_scatter(dx_own, dx)
        with ctx.ranks.beside(weight, delta, gathered):
            d_weight = delta.t() @ gathered.t() if ctx.needs_input_grad[1] else None
            d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        if pending is not None:
            pending.wait()
        return None if dx_own is None else dx_own.t(), d_weight, d_bias, None


class ColumnSplit(torch.autograd.Function):
    """z_j = x W_j^T + bias_j; dx by one all-reduce, behind which dW_j is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        """Turns x (b, n) into z_j (b, n_out/p)."""
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> Gradients:
        """Turns delta_j (b, n_out/p) into dx (b, n), dW_j and dbias_j."""
        x, weight = ctx.saved_tensors
        dx, pending = None, None
        if ctx.needs_input_grad[0]:
            dx = delta @ weight  # (b, n)
            pending = ctx.ranks.all_reduce(dx)
        with ctx.ranks.beside(weight, delta, x):
            d_weight = delta.t() @ x if ctx.needs_input_grad[1] else None
            d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        if pending is not None:
            pending.wait()
        return dx, d_weight, d_bias, None


class RowReduced(torch.autograd.Function):
    """z = sum_j x_j W_j^T + bias on every rank; z's gradient is equal on all ranks and passes unchanged."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        """Turns x_j (b, n/p) into z (b, n_out)."""
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        # The bias enters the sum once, on rank 0, where the GEMM adds it for nothing.
        own_bias = bias if ranks.rank == 0 else None
        if not ranks.splits_products or x.shape[0] // 2 * weight.numel() < LEAST_PART:
            z = torch.nn.functional.linear(x, weight, own_bias)
            ranks.all_reduce(z).wait()
            return z
        z = x.new_empty(x.shape[0], weight.shape[0])
        under_way = []
        for rows, result in zip(x.chunk(2), z.chunk(2), strict=True):
            if own_bias is None:
                torch.mm(rows, weight.t(), out=result)
            else:
                torch.addmm(own_bias, rows, weight.t(), out=result)
            under_way.append(ranks.all_reduce(result))
        for pending in under_way:
            pending.wait()
        return z

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> Gradients:
        """Turns delta (b, n_out), equal on all ranks, into dx_j (b, n/p), dW_j and the replicated dbias."""
        return local_gradients(ctx, delta)


class RowScattered(torch.autograd.Function):
    """z_j = rank j's part of sum_i x_i W_i^T, + bias_j; backward gathers the other parts' gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        """Turns x_j (b, n/p) into z_j (b, n_out/p)."""
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        partial = weight @ x.t()  # (n_out, b)
        z = partial.new_empty(partial.shape[0] // ranks.world_size, partial.shape[1])  # (n_out/p, b)
        ranks.reduce_scatter(z, partial).wait()
        if bias is not None:
            z += bias[:, None]
        return z.t()

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> Gradients:
        """Turns delta_j (b, n_out/p) into dx_j (b, n/p), dW_j and dbias_j."""
        x, weight = ctx.saved_tensors
        own = delta.t().contiguous()  # (n_out/p, b)
        gathered = own.new_empty(weight.shape[0], own.shape[1])  # (n_out, b)
        pending = ctx.ranks.all_gather(gathered, own)
        d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        pending.wait()
        dx = gathered.t() @ weight if ctx.needs_input_grad[0] else None
        with ctx.ranks.beside(weight, gathered, x):
            d_weight = gathered @ x if ctx.needs_input_grad[1] else None
        return dx, d_weight, d_bias, None
