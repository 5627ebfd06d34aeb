"""Trains one arm on one rank: builds it, warms it up, runs steps without a word to the host, evaluates."""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.ffn import FFN, build_ffn, torch_dtype
from phantom_core.plan import PlannedArm
from phantom_core.protocol import StepMode
from phantom_core.tasks import Dataset
from phantom_core.training.batches import Batch, DeviceRows, RowOrder
from phantom_core.training.graphs import Capture, capture
from phantom_core.training.losses import loss_dtype, loss_of, terms
from phantom_core.training.optimizers import WeightUpdate
from phantom_core.training.schedules import learning_rate
from phantom_core.training.steps import StepTables

_LEAST_EVALUATION_ROWS = 1_024
_STEPS_BEFORE_CAPTURE = 3
_MOST_KEPT_TABLES = 1_024


@dataclass
class _Parts:
    """What lives on the device."""

    model: FFN
    update: WeightUpdate
    train: DeviceRows
    validation: DeviceRows
    batch: Batch
    tables: StepTables
    graph: torch.cuda.CUDAGraph | None = None


class Trainer:
    """One arm's training on one rank; a context manager.

    All ranks of the arm make the same calls in the same order. On CUDA, work is enqueued on a stream of the
    trainer's own: `run` returns before its steps are done, and `torch.cuda.synchronize()` waits for them.

    Args:
        planned: The arm with its model and recipe.
        dataset: The task's rows; where its features are split, a rank keeps its own columns only.
        group: The arm's ranks; None is the default group, or one rank alone.
        device: Where this rank computes.
        seed: Of weights and batches.
        graph: Whether steps may run in a CUDA graph.
        build: Makes the model; called as `build_ffn` is.

    Raises:
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
    ) -> None:
        training = planned.training
        self._shape = dataset.shape
        self._device = _indexed(torch.device(device))
        self._stream = _work_stream(self._device) if self._device.type == "cuda" else None
        self._graph_allowed = graph
        self._step = 0
        self._table_start = 0
        self._losses_read = 0
        self._kept_losses: deque[torch.Tensor] = deque(maxlen=_MOST_KEPT_TABLES)
        self._mode_reason: str | None = "the trainer was not prepared"
        order = RowOrder(len(dataset.train_features), training.batch_size, seed)
        self._memory_before = self._start_memory_count()
        with self._on_stream():
            model = build(planned, dataset.shape, dataset.placement, group, self._device, seed)
            self._ranks = model.communicator
            dtype = torch_dtype(planned.model.dtype)
            rows = functools.partial(
                DeviceRows,
                placement=dataset.placement,
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                device=self._device,
                dtype=dtype,
                loss_dtype=loss_dtype(dtype),
            )
            train = rows(dataset.train_features, dataset.train_targets)
            update = WeightUpdate(model, training, self._device)
            self._parts: _Parts | None = _Parts(
                model=model,
                update=update,
                train=train,
                validation=rows(dataset.validation_features, dataset.validation_targets),
                batch=Batch(train, training.batch_size),
                tables=StepTables(
                    order,
                    functools.partial(learning_rate, training),
                    device=self._device,
                    rate_dtype=update.rate.dtype,
                    loss_dtype=loss_dtype(dtype),
                ),
            )
            self._seek(0)
        self._evaluation_rows = max(training.batch_size, _LEAST_EVALUATION_ROWS)
        self.parameters_total: int = model.parameter_count()
        """Trainable numbers over all ranks, counted on the built model."""
        self.bytes_sent_per_step: int | None = None
        """Bytes that this rank sends in a step, counted in the first warm-up step; None without one."""

    @property
    def steps_done(self) -> int:
        """Optimizer steps enqueued so far, warm-up not counted."""
        return self._step

    @property
    def step_mode(self) -> StepMode:
        """Whether steps run in a CUDA graph."""
        return "eager" if self._open.graph is None else "graph"

    @property
    def step_mode_reason(self) -> str | None:
        """Why steps don't run in a graph; None if they do."""
        return None if self._open.graph is not None else self._mode_reason

    def prepare(self, warmup_steps: int = 0) -> None:
        """Warms up, captures the step if that is possible, and leaves training where it was, to the bit.

        Where a graph is captured at least 3 steps are made, whatever is asked. If any rank of the arm can't
        capture, none of them replays: all go on eagerly, and `step_mode_reason` says why.

        Args:
            warmup_steps: Steps made on weights that are restored afterwards.

        Raises:
            torch.OutOfMemoryError: The device is too small for a step; `close` the trainer.
        """
        parts, step = self._open, self._step
        obstacle = self._obstacle()
        least = _STEPS_BEFORE_CAPTURE if obstacle is None else 0
        with self._on_stream():
            saved = parts.update.snapshot()
            for number in range(max(warmup_steps, least)):
                self._refill_if_used_up()
                with self._ranks.counting() as traffic:
                    self._enqueue_step()
                self._step += 1
                if number == 0:
                    self.bytes_sent_per_step = traffic.total_bytes_sent
            attempt = (
                self._agreed(capture(self._enqueue_step, self._own_stream)) if obstacle is None else None
            )
            # What autograd left belongs to the captured step, or to a pool that is gone.
            if attempt is None or attempt.graph is None:
                parts.update.zero_grad()
            parts.update.restore(saved)
            self._step = step
            self._seek(step)
        parts.graph = attempt.graph if attempt else None
        self._mode_reason = attempt.reason if attempt else obstacle
        self._synchronize()

    def run(self, steps: int) -> None:
        """Enqueues training steps; on CUDA it doesn't wait for them.

        Args:
            steps: How many.

        Raises:
            torch.OutOfMemoryError: The device is too small for a step; `close` the trainer.
        """
        graph = self._open.graph
        enqueue = self._enqueue_step if graph is None else graph.replay
        with self._on_stream():
            for _ in range(steps):
                self._refill_if_used_up()
                enqueue()
                self._step += 1

    def losses(self) -> torch.Tensor:
        """Training losses of the steps since the last call, rank 0's on every rank; waits for the steps.

        Returns:
            (steps,) on the CPU, oldest first; of more than a thousand tables of steps only the latest.
        """
        position = self._step - self._table_start
        with self._on_stream():
            latest = self._open.tables.losses(self._losses_read, position)
            losses = torch.cat([*self._kept_losses, latest])
            self._kept_losses.clear()
            self._losses_read = position
            return self._of_first_rank(losses).cpu() if len(losses) else losses.cpu()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss on the evaluation rows with the weights as they are, rank 0's on every rank."""
        parts, chunk = self._open, self._evaluation_rows
        features, targets = parts.validation.features, parts.validation.targets
        with self._on_stream():
            total = torch.zeros(1, dtype=torch.float64, device=self._device)
            for start in range(0, len(features), chunk):
                outputs = parts.model(features[start : start + chunk])
                total += loss_of(self._shape, outputs, targets[start : start + chunk], "sum")
            return float(self._of_first_rank(total)) / terms(self._shape, len(features))

    def peak_memory_bytes(self) -> int | None:
        """Most device memory that tensors took at once since the trainer was built; None on the CPU."""
        if self._memory_before is None:
            return None
        return torch.cuda.max_memory_allocated(self._device) - self._memory_before

    def state_dict(self) -> dict[str, Any]:
        """This rank's training state on the host: steps done, weights, optimizer state."""
        with self._on_stream():
            return {"step": self._step, "tensors": self._open.update.snapshot()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of the same arm, seed and rank; graphs stay valid.

        Raises:
            ValueError: The state is of another model.
        """
        with self._on_stream():
            self._open.update.restore(state["tensors"])
            self._step = int(state["step"])
            self._seek(self._step)

    def close(self) -> None:
        """Frees the graph and everything on the device; safe to call twice, and after an error."""
        if self._parts is None:
            return
        self._synchronize()
        graph, self._parts = self._parts.graph, None
        self._kept_losses.clear()
        if graph is not None:
            graph.reset()
        if self._stream is not None:
            # cuBLAS's workspaces would count as the first arm's memory only; the next one is to make its own.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _enqueue_step(self) -> None:
        """One step, entirely on the device: what a graph captures."""
        parts = self._open
        index = parts.tables.look_up(parts.update.rate)
        parts.batch.gather(index)
        parts.update.zero_grad()
        loss = loss_of(self._shape, parts.model(parts.batch.features), parts.batch.targets)
        torch.autograd.backward(loss)
        parts.update.step()
        parts.tables.finish(loss)

    def _refill_if_used_up(self) -> None:
        tables = self._open.tables
        if self._step - self._table_start == tables.capacity:
            self._kept_losses.append(tables.losses(self._losses_read, tables.capacity))
            self._fill(self._step)

    def _seek(self, step: int) -> None:
        self._kept_losses.clear()
        self._fill(step)

    def _fill(self, step: int) -> None:
        self._open.tables.fill(step)
        self._table_start = step
        self._losses_read = 0

    def _obstacle(self) -> str | None:
        if self._device.type != "cuda":
            return "CUDA graphs need a CUDA device"
        return None if self._graph_allowed else "steps were asked to run without a graph"

    def _agreed(self, attempt: Capture) -> Capture:
        """The attempt, unless another rank's failed: an arm's ranks replay together or not at all."""
        captured = torch.tensor([attempt.graph is not None], dtype=torch.int32, device=self._device)
        failed = [rank for rank, ok in enumerate(self._ranks.from_all_ranks(captured)) if not ok]
        if not failed or attempt.graph is None:
            return attempt
        attempt.graph.reset()
        return Capture(None, f"the step can't be captured on rank {', '.join(map(str, failed))} of the arm")

    def _of_first_rank(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._ranks.from_all_ranks(tensor)[0]

    def _start_memory_count(self) -> int | None:
        if self._stream is None:
            return None
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    @property
    def _own_stream(self) -> torch.cuda.Stream:
        assert self._stream is not None, "only CUDA devices have streams"
        return self._stream

    @property
    def _open(self) -> _Parts:
        assert self._parts is not None, "the trainer was closed"
        return self._parts


@functools.cache
def _work_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all trainers on a device: cuBLAS keeps a workspace for every stream that it was ever used on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _indexed(device: torch.device) -> torch.device:
    """The device with its number, which torch leaves out of `cuda`."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
