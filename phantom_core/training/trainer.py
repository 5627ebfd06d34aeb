"""Trains one arm on one rank: builds it, warms it up, runs steps without a word to the host, evaluates."""

import functools
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator, Traffic
from phantom_core.ffn import FFN, build_ffn, settings_of, torch_dtype
from phantom_core.plan import PlannedArm
from phantom_core.protocol import StepMode
from phantom_core.spec import TensorArm
from phantom_core.tasks import Dataset
from phantom_core.training.batches import Batch, DeviceRows, RowOrder
from phantom_core.training.device import WorkDevice
from phantom_core.training.exchange import ExchangeUsed, exchange_used
from phantom_core.training.graphs import Capture, capture
from phantom_core.training.losses import loss_dtype, loss_gradient, loss_of, terms
from phantom_core.training.optimizers import WeightUpdate
from phantom_core.training.schedules import learning_rate
from phantom_core.training.steps import StepTables

_LEAST_EVALUATION_ROWS = 1_024
_STEPS_BEFORE_CAPTURE = 3


@dataclass
class _Parts:
    """What lives on the device."""

    model: FFN
    update: WeightUpdate
    batch: Batch
    tables: StepTables
    validation: DeviceRows
    graph: torch.cuda.CUDAGraph | None = None


class Trainer:
    """One arm's training on one rank; a context manager.

    All ranks of the arm make the same calls in the same order, and first agree on arm, recipe, data and seed: one
    small all-gather. On CUDA, work is enqueued on a stream apart
    from the default one: `run` returns before its steps are done, and `torch.cuda.synchronize()` waits for
    them.

    Args:
        planned: The arm with its model and recipe.
        dataset: The task's rows; where its features are split, a rank keeps its own columns only.
        group: The arm's ranks; None is the default group, or one rank alone.
        device: Where this rank computes.
        seed: Of weights and batches.
        graph: Whether steps may run in a CUDA graph.
        build: Makes the model; called as `build_ffn` is.
        update: Makes the optimizer; called as `WeightUpdate` is. Benchmarks leave parts of it out.

    Raises:
        RanksDisagreeError: Ranks were given another arm, recipe, seed or other data; on every rank.
        BatchSizeError: The batch is larger than the data.
        LayoutError: Sizes can't be split over the ranks.
        torch.OutOfMemoryError: The device is too small for weights and data.
    """

    def __init__(
        self,
        planned: PlannedArm,
        dataset: Dataset,
        *,
        group: dist.ProcessGroup | Communicator | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        graph: bool = True,
        build: Callable[..., FFN] = build_ffn,
        update: Callable[..., WeightUpdate] = WeightUpdate,
    ) -> None:
        ranks = group if isinstance(group, Communicator) else Communicator(group)
        if ranks.world_size > 1:
            # Before anything that could end one rank's constructor and leave the others waiting for it.
            told = _told(planned, dataset, seed, graph)
            ranks.agree(f"the trainer of arm {planned.name!r}", torch.device(device), **told)
        order = RowOrder(len(dataset.train_features), planned.training.batch_size, seed)
        self._work = WorkDevice(device, planned.model.tf32)
        self._shape, self._placement = dataset.shape, dataset.placement
        self._evaluation_rows = max(order.batch_size, _LEAST_EVALUATION_ROWS)
        self._graph_allowed = graph
        self._mode_reason: str | None = "the trainer was not prepared"
        with self._work.working(), ranks.agreed():
            model = build(planned, dataset.shape, dataset.placement, ranks, self._work.device, seed)
            self._ranks = model.communicator
            weights = update(model, planned.training, self._work.device)
            self._parts: _Parts | None = self._on_device(planned, dataset, order, model, weights)
        self.enqueued = 0
        """Pieces of work given to the device so far: steps, warm-up's too, and parts of evaluations. Any thread may ask
        at any time; on CUDA it runs ahead of what is done, but not by more than the device takes."""
        self.warm_step_s: float | None = None
        """Seconds of a warm-up step, the first left out, in which much is done only once; None without two."""
        self.parameters_total: int = model.parameter_count()
        """Trainable numbers over all ranks, counted on the built model."""
        self.compiled = isinstance(planned.arm, TensorArm) and planned.arm.compiled
        """Whether torch.compile compiles the hidden layers."""
        # A compiled backward pass hands over all gradients at its end.
        self._updates_beside = planned.training.update == "overlapped" and not self.compiled
        self._planned = planned
        self._traffic: Traffic | None = None

    @property
    def steps_done(self) -> int:
        """Optimizer steps enqueued so far, warm-up not counted."""
        return self._open.tables.step

    @property
    def step_mode(self) -> StepMode:
        """Whether steps run in a CUDA graph."""
        return "eager" if self._open.graph is None else "graph"

    @property
    def step_mode_reason(self) -> str | None:
        """Why steps don't run in a graph; None if they do."""
        return self._mode_reason

    @property
    def bytes_sent_per_step(self) -> int | None:
        """Bytes that this rank sends in a step, counted in the first warm-up step; None without one."""
        return None if self._traffic is None else self._traffic.total_bytes_sent

    @property
    def exchange(self) -> ExchangeUsed:
        """What carries a step's exchanges."""
        return exchange_used(self._planned, self._shape, self._placement, self._ranks, self._traffic)

    def prepare(self, warmup_steps: int = 0) -> None:
        """Warms up, captures the step if that is possible, and leaves training where it was, to the bit.

        Where a graph is captured at least 3 steps are made, whatever is asked. If any rank of the arm can't
        capture, none of them replays: all go on eagerly, and `step_mode_reason` says why. Losses that were
        not taken before are dropped.

        Args:
            warmup_steps: Steps made on weights that are restored afterwards.

        Raises:
            torch.OutOfMemoryError: The device is too small for a step; `close` the trainer.
        """
        parts, stream = self._open, self._work.stream
        with self._work.working():
            step, saved = parts.tables.step, parts.update.snapshot()
            if stream is None or not self._graph_allowed:
                why = "CUDA graphs need a CUDA device" if stream is None else "no graph was asked for"
                self._warm_up(warmup_steps)
                attempt = Capture(None, why)
            else:
                self._warm_up(max(warmup_steps, _STEPS_BEFORE_CAPTURE))
                attempt = self._agreed(capture(self._enqueue_step, stream))
            if attempt.graph is None:
                # What a failed capture left in the gradients has no memory behind it any more.
                parts.update.zero_grad()
            parts.update.restore(saved)
            parts.tables.seek(step)
        parts.graph, self._mode_reason = attempt.graph, attempt.reason
        self._work.synchronize()

    def run(self, steps: int) -> None:
        """Enqueues training steps; on CUDA it doesn't wait for them.

        Args:
            steps: How many.

        Raises:
            torch.OutOfMemoryError: The device is too small for a step; `close` the trainer.
        """
        tables, graph = self._open.tables, self._open.graph
        enqueue = self._enqueue_step if graph is None else graph.replay
        with self._work.working():
            for _ in range(steps):
                tables.start()
                enqueue()
                tables.advance()
                self.enqueued += 1

    def losses(self) -> torch.Tensor:
        """Training losses of the steps since the last call, rank 0's on every rank; waits for the steps.

        Returns:
            (steps,) on the CPU, oldest first.
        """
        with self._work.working():
            losses = self._open.tables.take_losses()
            return self._of_first_rank(losses).cpu() if len(losses) else losses.cpu()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss on the evaluation rows with the weights as they are, rank 0's on every rank."""
        model, rows, chunk = self._open.model, self._open.validation, self._evaluation_rows
        with self._work.working():
            total = torch.zeros(1, dtype=torch.float64, device=self._work.device)
            for start in range(0, len(rows), chunk):
                outputs = model(rows.features[start : start + chunk])
                total += loss_of(self._shape, outputs, rows.targets[start : start + chunk], "sum")
                self.enqueued += 1
            return float(self._of_first_rank(total)) / terms(self._shape, len(rows))

    def peak_memory_bytes(self) -> int | None:
        """Most device memory that tensors took at once since the trainer was built; None on the CPU."""
        return self._work.peak_bytes()

    def state_dict(self) -> dict[str, Any]:
        """This rank's training state on the host: steps done, weights, optimizer state."""
        with self._work.working():
            return {"step": self._open.tables.step, "tensors": self._open.update.snapshot()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of the same arm, seed and rank; a captured graph stays valid.

        Raises:
            ValueError: The state is of another model or optimizer.
        """
        with self._work.working():
            self._open.update.restore(state["tensors"])
            self._open.tables.seek(int(state["step"]))

    def close(self) -> None:
        """Frees the graph and everything on the device; safe to call twice, and after an error."""
        if self._parts is None:
            return
        self._work.synchronize()
        graph, self._parts = self._parts.graph, None
        if graph is not None:
            graph.reset()
        self._work.free_caches()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _on_device(
        self, planned: PlannedArm, dataset: Dataset, order: RowOrder, model: FFN, update: WeightUpdate
    ) -> _Parts:
        dtype = torch_dtype(planned.model.dtype)
        rows = functools.partial(
            DeviceRows,
            placement=dataset.placement,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            device=self._work.device,
            dtype=dtype,
            loss_dtype=loss_dtype(dtype),
        )
        return _Parts(
            model=model,
            update=update,
            batch=Batch(rows(dataset.train_features, dataset.train_targets), order.batch_size),
            tables=StepTables(
                order,
                functools.partial(learning_rate, planned.training),
                device=self._work.device,
                rate_dtype=update.rate.dtype,
                loss_dtype=loss_dtype(dtype),
            ),
            validation=rows(dataset.validation_features, dataset.validation_targets),
        )

    def _enqueue_step(self) -> None:
        """One step, entirely on the device: what a graph captures. What the network doesn't wait for runs beside it."""
        parts, batch = self._open, self._open.batch
        parts.update.zero_grad()
        rows = parts.tables.rows()
        batch.gather_features(rows)
        with self._work.beside():
            parts.tables.look_up_rate(parts.update.rate)
            batch.gather_targets(rows)
        outputs = parts.model(batch.features)
        self._work.join()
        gradient, loss = loss_gradient(self._shape, outputs, batch.targets)
        with self._work.beside():
            parts.tables.finish(loss())
        updating = parts.update.beside_backward(self._ranks) if self._updates_beside else nullcontext()
        with self._ranks.weight_gradients_beside(self._work.device), updating:
            torch.autograd.backward(outputs, gradient)
        parts.update.step()
        self._work.join()

    def _warm_up(self, steps: int) -> None:
        tables, began_s = self._open.tables, 0.0
        for number in range(steps):
            tables.start()
            with self._open.model.counting() as traffic:
                self._enqueue_step()
            tables.advance()
            self.enqueued += 1
            if number == 0:
                self._traffic = traffic
                self._work.synchronize()
                began_s = time.monotonic()
        if steps > 1:
            self._work.synchronize()
            self.warm_step_s = (time.monotonic() - began_s) / (steps - 1)

    def _agreed(self, attempt: Capture) -> Capture:
        """The attempt, unless another rank's failed: an arm's ranks replay together or not at all."""
        captured = torch.tensor([attempt.graph is not None], dtype=torch.int32, device=self._work.device)
        failed = [rank for rank, ok in enumerate(self._ranks.from_all_ranks(captured)) if not ok]
        if not failed or attempt.graph is None:
            return attempt
        attempt.graph.reset()
        return Capture(None, f"the step can't be captured on rank {', '.join(map(str, failed))} of the arm")

    def _of_first_rank(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._ranks.from_all_ranks(tensor)[0]

    @property
    def _open(self) -> _Parts:
        assert self._parts is not None, "the trainer was closed"
        return self._parts


def _told(planned: PlannedArm, dataset: Dataset, seed: int, graph: bool) -> dict[str, object]:
    """All that the ranks of an arm must be given alike."""
    return {
        **settings_of(planned, dataset.shape, dataset.placement, seed),
        "graph": graph,
        "training_rows": len(dataset.train_features),
        "validation_rows": len(dataset.validation_features),
        "data_digest": dataset.digest(),
    }
