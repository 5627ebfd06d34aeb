"""Triton kernels of the weight update: bfloat16 gradient in, float32 master and bfloat16 weight out, in one pass.

torch's fused optimizers want gradient and master in one number format, so a bfloat16 model's update takes three passes
(gradient to float32, update, master to bfloat16) and 24 bytes a weight with SGD; this takes 12. Imported only where
CUDA and Triton are there. The arithmetic is that of torch.optim.SGD and torch.optim.AdamW.

One launch updates all weights of a layer: its tensors come as tuples, weight after weight, and the programs are dealt
out to them in that order.
"""

import triton
import triton.language as tl

BLOCK = 1_024
"""Weights per program."""


@triton.jit
def sgd(
    weights,
    masters,
    gradients,
    velocities,
    numels,
    rate,
    momentum,
    decay,
    has_momentum: tl.constexpr,
    block: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Master -= rate (gradient + decay master), with momentum's velocity in between; weight = master, rounded."""
    program = tl.program_id(0)
    first = 0
    for i in tl.static_range(len(weights)):
        programs = tl.cdiv(numels[i], block)
        if (program >= first) & (program < first + programs):
            at = (program - first).to(tl.int64) * block + tl.arange(0, block)
            mask = at < numels[i]
            value = tl.load(masters[i] + at, mask=mask)
            change = tl.load(gradients[i] + at, mask=mask).to(tl.float32) + decay * value
            if has_momentum:
                change = momentum * tl.load(velocities[i] + at, mask=mask) + change
                tl.store(velocities[i] + at, change, mask=mask)
            value = value - tl.load(rate) * change
            tl.store(masters[i] + at, value, mask=mask)
            tl.store(weights[i] + at, value.to(tl.bfloat16), mask=mask)
        first += programs


@triton.jit
def adamw(
    weights,
    masters,
    gradients,
    first_moments,
    second_moments,
    steps,
    numels,
    rate,
    decay,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    log_beta1: tl.constexpr,
    log_beta2: tl.constexpr,
    eps: tl.constexpr,
    block: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """AdamW's step number `steps`, counted from 1; weight = master, rounded."""
    program = tl.program_id(0)
    first = 0
    for i in tl.static_range(len(weights)):
        programs = tl.cdiv(numels[i], block)
        if (program >= first) & (program < first + programs):
            at = (program - first).to(tl.int64) * block + tl.arange(0, block)
            mask = at < numels[i]
            # In double: 1 - 0.999 keeps four digits in float32.
            count = tl.load(steps[i]).to(tl.float64)
            correction1 = (1.0 - tl.exp(count * log_beta1)).to(tl.float32)
            correction2 = (1.0 - tl.exp(count * log_beta2)).to(tl.float32)
            step_rate = tl.load(rate)
            slope = tl.load(gradients[i] + at, mask=mask).to(tl.float32)
            value = tl.load(masters[i] + at, mask=mask)
            value = value - step_rate * decay * value
            moment1 = beta1 * tl.load(first_moments[i] + at, mask=mask) + (1.0 - beta1) * slope
            moment2 = beta2 * tl.load(second_moments[i] + at, mask=mask) + (1.0 - beta2) * slope * slope
            spread = tl.sqrt(moment2) / tl.sqrt(correction2) + eps
            value = value - step_rate / correction1 * moment1 / spread
            tl.store(first_moments[i] + at, moment1, mask=mask)
            tl.store(second_moments[i] + at, moment2, mask=mask)
            tl.store(masters[i] + at, value, mask=mask)
            tl.store(weights[i] + at, value.to(tl.bfloat16), mask=mask)
        first += programs
