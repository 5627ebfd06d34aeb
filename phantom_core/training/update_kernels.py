"""Triton kernels of the weight update: bfloat16 gradient in, float32 master and bfloat16 weight out, in one pass.

torch's fused optimizers want gradient and master in one number format, so a bfloat16 model's update takes three passes
(gradient to float32, update, master to bfloat16) and 24 bytes a weight with SGD; this takes 12. Imported only where
CUDA and Triton are there. The arithmetic is that of torch.optim.SGD and torch.optim.AdamW.
"""

import triton
import triton.language as tl

BLOCK = 1_024
"""Weights per program."""


@triton.jit
def sgd(
    weight,
    master,
    gradient,
    velocity,
    rate,
    numel,
    momentum,
    decay,
    has_momentum: tl.constexpr,
    block: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Master -= rate (gradient + decay master), with momentum's velocity in between; weight = master, rounded."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = at < numel
    value = tl.load(master + at, mask=mask)
    change = tl.load(gradient + at, mask=mask).to(tl.float32) + decay * value
    if has_momentum:
        change = momentum * tl.load(velocity + at, mask=mask) + change
        tl.store(velocity + at, change, mask=mask)
    value = value - tl.load(rate) * change
    tl.store(master + at, value, mask=mask)
    tl.store(weight + at, value.to(tl.bfloat16), mask=mask)


@triton.jit
def adamw(
    weight,
    master,
    gradient,
    first_moment,
    second_moment,
    rate,
    steps,
    numel,
    decay,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    log_beta1: tl.constexpr,
    log_beta2: tl.constexpr,
    eps: tl.constexpr,
    block: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """AdamW's step number `steps`, counted from 1; weight = master, rounded."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = at < numel
    # In double: 1 - 0.999 keeps four digits in float32.
    count = tl.load(steps).to(tl.float64)
    correction1 = (1.0 - tl.exp(count * log_beta1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(count * log_beta2)).to(tl.float32)
    step_rate = tl.load(rate)
    slope = tl.load(gradient + at, mask=mask).to(tl.float32)
    value = tl.load(master + at, mask=mask)
    value = value - step_rate * decay * value
    first = beta1 * tl.load(first_moment + at, mask=mask) + (1.0 - beta1) * slope
    second = beta2 * tl.load(second_moment + at, mask=mask) + (1.0 - beta2) * slope * slope
    spread = tl.sqrt(second) / tl.sqrt(correction2) + eps
    value = value - step_rate / correction1 * first / spread
    tl.store(first_moment + at, first, mask=mask)
    tl.store(second_moment + at, second, mask=mask)
    tl.store(master + at, value, mask=mask)
    tl.store(weight + at, value.to(tl.bfloat16), mask=mask)
