"""What a device and its links reach: GEMMs, collectives, element-wise kernels, the optimizer, and power meanwhile.

Every function is called by all ranks of a team and returns a row of plain numbers, units in the names.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.tick_windows import measured
from benchmarks.timing import repeated, seconds_per_call
from benchmarks.workplace import Workplace
from phantom_core.collectives import Communicator
from phantom_core.layer_costs import Collective, bytes_sent
from phantom_core.plan import PlannedArm
from phantom_core.profile import Arithmetic
from phantom_core.spec import TrainingSpec
from phantom_core.step_work import update_bytes_per_parameter
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer
from phantom_core.training.optimizers import WeightUpdate
from phantom_core.training.precision import float32_products
from ray_jobs.ranks import Team

Row = dict[str, Any]
CACHE_BYTES = 256 * 2**20
"""Operands rotate through as much, so that weights come from memory, as in a step, and not from the cache."""
MOST_COPIES = 16
CALLS = 20
"""Calls in a graph."""


@dataclass(frozen=True)
class Shape:
    """A GEMM (rows, inner) x (inner, columns) as layers make it."""

    rows: int
    columns: int
    inner: int
    form: str
    """`nt` forward (x W^T), `nn` the input's gradient (delta W), `tn` the weight's (delta^T x)."""


def torch_arithmetic(arithmetic: Arithmetic) -> torch.dtype:
    """Number format of an arithmetic's operands."""
    return torch.float32 if arithmetic == "tf32" else getattr(torch, arithmetic)


def gemm(place: Workplace, team: Team, shape: Shape, arithmetic: Arithmetic, seconds: float) -> Row:
    """Times one shape."""
    call = _gemm_call(place.device, shape, arithmetic)
    with float32_products(arithmetic == "tf32"):
        taken_s = seconds_per_call(call, CALLS, place.device, team, seconds)
    sizes = {"rows": shape.rows, "columns": shape.columns, "inner": shape.inner, "form": shape.form}
    return {"measured": "gemm", "arithmetic": arithmetic, **sizes, "seconds": slowest(team, taken_s)}


def _gemm_call(device: torch.device, shape: Shape, arithmetic: Arithmetic) -> Callable[[int], object]:
    dtype = torch_arithmetic(arithmetic)
    rows, columns, inner = shape.rows, shape.columns, shape.inner
    size = dtype.itemsize * (rows * inner + inner * columns + rows * columns)
    limit = MOST_COPIES if device.type == "cuda" else 1
    copies = max(1, min(limit, math.ceil(CACHE_BYTES / size)))

    def operand(*sizes: int) -> torch.Tensor:
        # Power depends on the numbers: zeros would flatter it.
        return torch.randn(sizes, device=device, dtype=torch.float32).to(dtype)

    left = [operand(inner, rows).t() if shape.form == "tn" else operand(rows, inner) for _ in range(copies)]
    right = [
        operand(columns, inner).t() if shape.form == "nt" else operand(inner, columns) for _ in range(copies)
    ]
    out = [torch.empty(rows, columns, device=device, dtype=dtype) for _ in range(copies)]

    def call(number: int) -> None:
        i = number % copies
        torch.mm(left[i], right[i], out=out[i])

    return call


def collective(
    place: Workplace, team: Team, kind: Collective, elements: int, seconds: float, dtype: torch.dtype
) -> Row:
    """Times a collective by the compute group's library, on a whole tensor of so many numbers."""
    ranks, p = Communicator(team.compute.group), team.size  # one that knows of no fused exchange
    whole = torch.randn(elements, device=place.device).to(dtype)
    part = torch.randn(elements // p, device=place.device).to(dtype)
    calls: dict[Collective, Callable[[int], object]] = {
        "all_gather": lambda _: ranks.all_gather(whole, part).wait(),
        "reduce_scatter": lambda _: ranks.reduce_scatter(part, whole).wait(),
        # Sums grow p-fold with every call; that many of them are infinite soon, and as fast.
        "all_reduce": lambda _: ranks.all_reduce(whole).wait(),
    }
    taken_s = seconds_per_call(calls[kind], CALLS, place.device, team, seconds)
    return _link_row(team, kind, place.ranks.backend, elements, dtype, taken_s)


def ghost_exchange(
    place: Workplace, team: Team, kind: Collective, elements: int, seconds: float, dtype: torch.dtype
) -> Row | None:
    """Times the fused exchange on a whole tensor of so many numbers, such as p ranks' ghosts; None where it can't."""
    team.compute.fuse_ghosts(place.device)
    exchange, p = team.compute.ghost_exchange, team.size
    if exchange is None or not exchange.carries(elements // p * dtype.itemsize):
        return None
    own = torch.randn(elements // p, 1, device=place.device).to(dtype)
    others = torch.randn(elements // p * (p - 1), 1, device=place.device).to(dtype)
    whole = torch.randn(elements, device=place.device).to(dtype)
    calls: dict[Collective, Callable[[int], object]] = {
        "all_gather": lambda _: exchange.gather(own, others),
        "reduce_scatter": lambda _: exchange.reduce(others, own),
        "all_reduce": lambda _: exchange.sum(whole),
    }
    taken_s = seconds_per_call(calls[kind], CALLS, place.device, team, seconds)
    return _link_row(team, kind, "fused", elements, dtype, taken_s)


def _link_row(
    team: Team, kind: Collective, transport: str, elements: int, dtype: torch.dtype, taken_s: float
) -> Row:
    return {
        "measured": "collective",
        "kind": kind,
        "transport": transport,
        "world_size": team.size,
        "bytes_sent": bytes_sent(kind, elements, dtype.itemsize, team.size),
        "seconds": slowest(team, taken_s),
    }


def elementwise(place: Workplace, team: Team, elements: int, seconds: float, dtype: torch.dtype) -> Row:
    """Times a ReLU that reads and writes so many numbers each."""
    size = 2 * elements * dtype.itemsize
    copies = max(1, min(MOST_COPIES if place.on_gpu else 1, math.ceil(CACHE_BYTES / size)))
    xs = [torch.randn(elements, device=place.device).to(dtype) for _ in range(copies)]
    ys = [torch.empty_like(x) for x in xs]

    def call(number: int) -> None:
        torch.clamp_min(xs[number % copies], 0, out=ys[number % copies])

    taken_s = seconds_per_call(call, CALLS, place.device, team, seconds)
    return {"measured": "elementwise", "bytes": size, "seconds": slowest(team, taken_s)}


def update(place: Workplace, team: Team, training: TrainingSpec, parameters: int, seconds: float) -> Row:
    """Times the project's own optimizer on bfloat16 weights."""
    side = max(1, math.isqrt(parameters // 8))
    weights = [torch.nn.Parameter(torch.randn(side, side, device=place.device).bfloat16()) for _ in range(8)]
    model = torch.nn.ParameterList(weights)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    step = WeightUpdate(model, training, place.device)
    taken_s = seconds_per_call(lambda _: step.step(), 2, place.device, team, seconds)
    size = 8 * side * side * update_bytes_per_parameter(training, "bfloat16")
    return {
        "measured": "update",
        "optimizer": training.optimizer,
        "bytes": size,
        "seconds": slowest(team, taken_s),
    }


def eager_launch(place: Workplace, team: Team, planned: PlannedArm, dataset: Dataset, steps: int) -> Row:
    """Times eager steps of a network too small to keep a device busy, and tells which that was."""
    with Trainer(planned, dataset, group=team.compute, device=place.device, graph=False) as trainer:
        trainer.prepare(5)
        trainer.run(steps)
        place.synchronize()
        team.agree(True)
        start_s = time.perf_counter()
        trainer.run(steps)
        place.synchronize()
        taken_s = (time.perf_counter() - start_s) / steps
    return {
        "measured": "eager",
        "step_s": slowest(team, taken_s),
        "model": planned.model.model_dump(mode="json"),
        "training": planned.training.model_dump(mode="json"),
        "shape": dataset.shape.model_dump(mode="json"),
    }


@dataclass(frozen=True)
class Load:
    """Something to draw power with."""

    name: str
    call: Callable[[int], object] | None
    """Enqueues the i-th call; None rests."""
    calls: int = CALLS
    """Calls in a graph."""
    amount: float = 0.0
    """FLOPs, bytes moved, or bytes sent by one rank, in a call."""
    unit: str = ""
    """What the amount counts: `flops`, `bytes` or `bytes_sent`."""
    operand_bytes: int = 0
    """Of operands and results in a call that is counted in FLOPs."""


def loads(place: Workplace, team: Team, side: int, copied: int, gathered: int) -> list[Load]:
    """Idle, kernels that do nothing, GEMMs, copies, and all-gathers where there are several ranks.

    Args:
        place: This rank.
        team: All ranks.
        side: Of the GEMM's square operands.
        copied: Bytes of a copy's source.
        gathered: Numbers in a gathered tensor; all-gathers leave random numbers random, sums would not.
    """
    device = place.device
    # float32 where processors have no fast bfloat16.
    arithmetic: Arithmetic = "bfloat16" if place.on_gpu else "float32"
    nothing = torch.zeros(1, device=device)
    source = torch.randn(copied // 4, device=device)
    target = torch.empty_like(source)
    square = Shape(side, side, side, "nt")
    found = [
        Load("idle", None),
        Load("active", lambda _: nothing.add_(1), calls=200),
        Load(
            "gemm",
            _gemm_call(device, square, arithmetic),
            amount=2 * side**3,
            unit="flops",
            operand_bytes=3 * side**2 * torch_arithmetic(arithmetic).itemsize,
        ),
        Load("memory", lambda _: target.copy_(source), amount=2 * 4 * source.numel(), unit="bytes"),
    ]
    if team.size > 1:
        dtype = torch_arithmetic(arithmetic)
        whole = torch.empty(gathered, device=device, dtype=dtype)
        part = torch.randn(gathered // team.size, device=device).to(dtype)
        sent = bytes_sent("all_gather", gathered, dtype.itemsize, team.size)
        ranks = team.compute
        found.append(
            Load(
                "communication",
                lambda _: ranks.all_gather(whole, part).wait(),
                amount=sent,
                unit="bytes_sent",
            )
        )
    return found


def power(place: Workplace, team: Team, load: Load, seconds: float) -> Row:
    """Meters a load for so many seconds on all ranks at once; watts of one device, their mean."""
    if load.call is None:
        window = measured(team, place.meter, place.synchronize, lambda: time.sleep(seconds))
        rates: Row = {}
    else:
        call_s = seconds_per_call(load.call, load.calls, place.device, team, seconds / 4)
        repeats = max(1, math.ceil(seconds / (load.calls * slowest(team, call_s))))
        ready = repeated(load.call, load.calls, place.device)

        def work() -> None:
            for _ in range(repeats):
                ready.repeat()

        window = measured(team, place.meter, place.synchronize, work)
        ready.close()
        calls_per_s = load.calls * repeats / slowest(team, window.duration_s)
        rates = {f"{load.unit}_per_s": load.amount * calls_per_s} if load.unit else {}
        if load.operand_bytes:
            rates["operand_bytes_per_s"] = load.operand_bytes * calls_per_s
    devices = team.gather(window)
    watts = [
        each.energy_mj / each.duration_s / 1_000 for each in devices if each.energy_mj and each.duration_s
    ]
    doubts = [each.uncertainty_mj for each in devices if each.uncertainty_mj is not None]
    return {
        "measured": "power",
        "load": load.name,
        "power_w": sum(watts) / len(watts) if len(watts) == len(devices) else None,
        "power_w_by_device": watts,
        "uncertainty_w": sum(doubts) / len(doubts) / window.duration_s / 1_000 if doubts else None,
        "window_s": window.duration_s,
        "method": window.method,
        "reason": next((each.reason for each in devices if each.energy_mj is None), None),
        **rates,
    }


def slowest(team: Team, seconds: float) -> float:
    """The longest of the ranks' times."""
    return max(team.gather(seconds))
