import gc
import math
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import phantom_core.training.steps as steps_module
import phantom_core.training.trainer as trainer_module
from phantom_core.collectives import Communicator
from phantom_core.ffn import FFN, build_ffn
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    DenseArm,
    DigitsTask,
    ModelSpec,
    Schedule,
    StopAtSteps,
    TeacherTask,
    TrainingSpec,
)
from phantom_core.tasks import Dataset, load_task
from phantom_core.training import BatchSizeError, RowOrder, Trainer, learning_rate, schedule_factor
from phantom_core.training.losses import loss_of
from phantom_core.training.optimizers import WeightUpdate
from phantom_core.training.precision import float32_products

TEACHER = TeacherTask(
    features=12,
    outputs=3,
    latents=8,
    teacher_width=8,
    train_rows=100,
    validation_rows=37,
    feature_placement="whole",
)
RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw"},
    "adamw decay": {"optimizer": "adamw", "weight_decay": 0.1},
}
SCHEDULE = Schedule(kind="cosine", warmup_steps=4, decay_steps=10, final_fraction=0.1)


def plan(*, dtype: str = "float32", width: int = 16, **training: Any) -> PlannedArm:
    settings = {"batch_size": 16, "learning_rate": 0.01, "stop": StopAtSteps(steps=10)} | training
    return PlannedArm(
        arm=DenseArm(name="dense"),
        model=ModelSpec(width=width, depth=2, dtype=dtype),
        training=TrainingSpec(**settings),
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads gain nothing on models this small, and wait for each other where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def teacher() -> Dataset:
    return load_task(TEACHER)


def bits(tensor: torch.Tensor) -> list[bytes]:
    return [value.numpy().tobytes() for value in tensor]


# Batches


def test_an_epoch_has_every_row_at_most_once_and_leaves_out_fewer_than_one_batch() -> None:
    order = RowOrder(rows=103, batch_size=10, seed=0)
    assert order.steps_per_epoch == 10
    for epoch in range(3):
        rows = order.batches(epoch * 10, 10).flatten().tolist()
        assert len(set(rows)) == 100
        assert set(rows) <= set(range(103))


def test_epochs_are_shuffled_apart_so_that_no_row_is_left_out_for_ever() -> None:
    order = RowOrder(rows=103, batch_size=10, seed=0)
    epochs = [order.batches(epoch * 10, 10) for epoch in range(20)]
    assert not torch.equal(epochs[0], epochs[1])
    assert set(torch.stack(epochs).flatten().tolist()) == set(range(103))


def test_batches_depend_on_the_seed_and_the_step_alone() -> None:
    order = RowOrder(rows=64, batch_size=10, seed=5)
    everything = order.batches(0, 40)
    again = RowOrder(rows=64, batch_size=10, seed=5)
    for first, count in ((33, 7), (0, 1), (5, 20), (39, 1)):
        assert torch.equal(again.batches(first, count), everything[first : first + count])
    assert not torch.equal(RowOrder(rows=64, batch_size=10, seed=6).batches(0, 40), everything)


def test_a_batch_may_be_all_rows_but_not_more() -> None:
    assert sorted(RowOrder(8, 8, seed=0).batches(3, 1)[0].tolist()) == list(range(8))
    with pytest.raises(BatchSizeError, match="batch_size = 9 is more than the task's 8 training rows"):
        RowOrder(8, 9, seed=0)


def test_a_trainer_refuses_a_batch_larger_than_its_data(teacher: Dataset) -> None:
    with pytest.raises(BatchSizeError):
        Trainer(plan(batch_size=101), teacher)


# Schedules


@pytest.mark.parametrize("warmup_steps", [0, 1, 5])
@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
def test_schedules_are_those_of_torch(kind: Any, warmup_steps: int) -> None:
    peak, decay_steps, final = 0.3, 20, 0.1
    training = plan(
        learning_rate=peak,
        schedule=Schedule(
            kind=kind, warmup_steps=warmup_steps, decay_steps=decay_steps, final_fraction=final
        ),
    ).training
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = torch.optim.lr_scheduler
    after: torch.optim.lr_scheduler.LRScheduler
    match kind:
        case "constant":
            after = scheduler.ConstantLR(optimizer, factor=1.0)
        case "cosine":
            after = scheduler.CosineAnnealingLR(optimizer, decay_steps, eta_min=final * peak)
        case _:
            after = scheduler.LinearLR(optimizer, 1.0, final, total_iters=decay_steps)
    reference: torch.optim.lr_scheduler.LRScheduler = after
    if warmup_steps:
        rise = scheduler.LinearLR(optimizer, 1 / warmup_steps, 1.0, total_iters=max(1, warmup_steps - 1))
        reference = scheduler.SequentialLR(optimizer, [rise, after], milestones=[warmup_steps])
    for step in range(warmup_steps + decay_steps):
        assert learning_rate(training, step) == pytest.approx(reference.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        reference.step()


def test_a_decay_stays_at_its_final_fraction() -> None:
    for kind in ("cosine", "linear"):
        schedule = Schedule(kind=kind, decay_steps=10, final_fraction=0.2)
        assert schedule_factor(schedule, 10) == schedule_factor(schedule, 10_000) == pytest.approx(0.2)


# Steps


def reference_losses(planned: PlannedArm, dataset: Dataset, steps: int, seed: int) -> list[float]:
    """The same training as a plain loop over torch's own parts."""
    training = planned.training
    model = build_ffn(planned, dataset.shape, "whole", None, "cpu", seed)
    optimizer: torch.optim.Optimizer
    if training.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=1.0,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            foreach=False,
        )
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=1.0, weight_decay=training.weight_decay, foreach=False
        )
    dtype = next(model.parameters()).dtype
    features = torch.tensor(dataset.train_features, dtype=dtype)
    targets = torch.tensor(dataset.train_targets)
    if targets.is_floating_point():
        targets = targets.to(dtype)
    order = RowOrder(len(features), training.batch_size, seed)
    losses = []
    for step in range(steps):
        rows = order.batches(step, 1)[0].long()
        optimizer.param_groups[0]["lr"] = learning_rate(training, step)
        optimizer.zero_grad()
        loss = loss_of(dataset.shape, model(features[rows]), targets[rows])
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_trainer_follows_a_plain_training_loop(
    teacher: Dataset, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "_MOST_STEPS", 7)  # so that the tables are refilled on the way
    planned = plan(dtype="float64", schedule=SCHEDULE, **RECIPES[recipe])
    with Trainer(planned, teacher, seed=3) as trainer:
        trainer.prepare(2)
        trainer.run(30)
        losses = trainer.losses()
    np.testing.assert_allclose(losses.numpy(), reference_losses(planned, teacher, 30, 3), rtol=1e-10)


def test_classes_are_trained_on_cross_entropy_as_in_a_plain_loop() -> None:
    digits = load_task(DigitsTask())
    planned = plan(dtype="float64", batch_size=64)
    with Trainer(planned, digits) as trainer:
        trainer.run(10)
        losses = trainer.losses()
    assert losses[0] == pytest.approx(math.log(10), abs=0.7)
    np.testing.assert_allclose(losses.numpy(), reference_losses(planned, digits, 10, 0), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_warming_up_leaves_the_trajectory_unchanged_to_the_bit(
    teacher: Dataset, recipe: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "_MOST_STEPS", 7)
    planned = plan(dtype=dtype, schedule=SCHEDULE, **RECIPES[recipe])
    runs = []
    for warmup_steps in (0, 1, 9):
        with Trainer(planned, teacher) as trainer:
            trainer.prepare(warmup_steps)
            assert trainer.steps_done == 0
            before = trainer.evaluate()
            trainer.run(20)
            runs.append((before, bits(trainer.losses()), trainer.evaluate()))
    assert runs[0] == runs[1] == runs[2]


def test_preparing_in_mid_training_leaves_the_trajectory_unchanged_to_the_bit(teacher: Dataset) -> None:
    runs = []
    for warmup_steps in (None, 5):
        with Trainer(plan(), teacher) as trainer:
            trainer.run(5)
            trainer.losses()
            if warmup_steps:
                trainer.prepare(warmup_steps)
            trainer.run(5)
            runs.append(bits(trainer.losses()))
    assert runs[0] == runs[1]


def test_the_seed_decides_weights_and_batches(teacher: Dataset) -> None:
    losses = []
    for seed in (0, 0, 1):
        with Trainer(plan(), teacher, seed=seed) as trainer:
            trainer.run(5)
            losses.append(bits(trainer.losses()))
    assert losses[0] == losses[1] != losses[2]


def test_losses_are_those_since_the_last_call_in_order(
    teacher: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer(plan(), teacher) as trainer:
        trainer.run(40)
        whole = trainer.losses()
    monkeypatch.setattr(steps_module, "_MOST_STEPS", 7)
    with Trainer(plan(), teacher) as trainer:
        assert len(trainer.losses()) == 0
        parts = []
        for steps in (3, 4, 0, 1, 20, 12):
            trainer.run(steps)
            parts.append(trainer.losses())
            assert len(parts[-1]) == steps
    assert bits(torch.cat(parts)) == bits(whole)


def test_evaluating_changes_nothing(teacher: Dataset) -> None:
    losses = []
    for evaluate in (False, True):
        with Trainer(plan(), teacher) as trainer:
            for _ in range(5):
                trainer.run(2)
                if evaluate:
                    assert trainer.evaluate() == trainer.evaluate()
            losses.append(bits(trainer.losses()))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("task", [TEACHER, DigitsTask()], ids=lambda task: task.kind)
def test_an_evaluation_is_the_mean_over_all_evaluation_rows(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        trainer_module, "_LEAST_EVALUATION_ROWS", 1
    )  # chunks of one batch, the last one short
    dataset = load_task(task)
    planned = plan(dtype="float64")
    model = build_ffn(planned, dataset.shape, "whole", None, "cpu", 0)
    outputs = model(torch.tensor(dataset.validation_features, dtype=torch.float64))
    targets = torch.tensor(dataset.validation_targets)
    if targets.is_floating_point():
        targets = targets.double()
    with Trainer(planned, dataset) as trainer:
        assert trainer.evaluate() == pytest.approx(loss_of(dataset.shape, outputs, targets).item(), rel=1e-12)


def test_a_learning_rate_far_too_high_gives_non_finite_losses_and_no_error(teacher: Dataset) -> None:
    with Trainer(plan(optimizer="sgd", learning_rate=1_000.0), teacher) as trainer:
        trainer.prepare(30)
        trainer.run(1)
        assert torch.isfinite(trainer.losses()).all()
        trainer.run(30)
        assert not torch.isfinite(trainer.losses()).all()
        assert not math.isfinite(trainer.evaluate())


def test_digits_are_learned() -> None:
    digits = load_task(DigitsTask())
    models: list[FFN] = []

    def build(*args: Any) -> FFN:
        models.append(build_ffn(*args))
        return models[0]

    with Trainer(plan(width=128, batch_size=128, learning_rate=3e-3), digits, build=build) as trainer:
        trainer.run(150)
        assert trainer.evaluate() < 0.2
        with torch.no_grad():
            predicted = models[0](torch.tensor(digits.validation_features)).argmax(dim=1).numpy()
    assert (predicted == digits.validation_targets).mean() > 0.95


def test_a_teacher_is_learned_better_than_by_predicting_the_mean() -> None:
    dataset = load_task(TEACHER.model_copy(update={"train_rows": 4_000, "validation_rows": 500}))
    with Trainer(plan(width=64, batch_size=128), dataset) as trainer:
        trainer.run(200)
        assert trainer.evaluate() < 0.4


# Updates


class OneWeight(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=dtype))
        self.unused = nn.Parameter(torch.ones(1, dtype=dtype))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_updates_too_small_for_bfloat16_add_up_in_its_master_weights(optimizer: str) -> None:
    model = OneWeight(torch.bfloat16)
    update = WeightUpdate(model, plan(optimizer=optimizer).training, torch.device("cpu"))
    update.rate.fill_(1e-3)  # half of what would move a bfloat16 of 1 at all
    for _ in range(20):
        update.zero_grad()
        model.weight.grad = torch.ones_like(model.weight)
        update.step()
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == pytest.approx(0.98, abs=2e-3)
    assert model.unused.item() == 1


class ScaledFirst(nn.Linear):
    """The scale's gradient comes after the weight's."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.scale * x)


class Tied(nn.Module):
    """Layers whose gradients come one by one: two share a weight, one has a weight that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = ScaledFirst(), nn.Linear(3, 3), OneWeight(torch.float32)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return self.third.weight * made


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_shared_weight_and_a_layer_without_all_gradients_are_updated_once(recipe: dict[str, Any]) -> None:
    left = []
    for beside in (True, False):
        torch.manual_seed(0)
        model, x = Tied(), torch.randn(5, 3)
        update = WeightUpdate(model, plan(**recipe).training, torch.device("cpu"))
        update.rate.fill_(0.1)
        for _ in range(3):
            update.zero_grad()
            with update.beside_backward(Communicator()) if beside else nullcontext():
                torch.autograd.backward(model(x).square().sum())
            update.step()
        left.append({name: tensor.tolist() for name, tensor in update.tensors().items()})
        assert model.third.unused.item() == 1
    assert left[0] == left[1]


def test_training_state_can_be_saved_and_gone_on_from_to_the_bit(teacher: Dataset) -> None:
    for dtype in ("float32", "bfloat16"):
        planned = plan(dtype=dtype, optimizer="sgd", momentum=0.9, schedule=SCHEDULE)
        with Trainer(planned, teacher, seed=1) as trainer:
            trainer.run(7)
            trainer.losses()
            saved = trainer.state_dict()
            trainer.run(9)
            expected = bits(trainer.losses())
        with Trainer(planned, teacher, seed=1) as fresh:
            fresh.load_state_dict(saved)
            assert fresh.steps_done == 7
            fresh.run(9)
            assert bits(fresh.losses()) == expected
            fresh.load_state_dict(saved)
            fresh.prepare(3)
            fresh.run(9)
            assert bits(fresh.losses()) == expected


def test_a_state_of_another_model_is_refused(teacher: Dataset) -> None:
    with Trainer(plan(width=16), teacher) as trainer:
        saved = trainer.state_dict()
    with Trainer(plan(width=24), teacher) as trainer, pytest.raises(ValueError, match="of another model"):
        trainer.load_state_dict(saved)


# What else a worker asks


def test_a_cpu_runs_eagerly_and_says_why(teacher: Dataset) -> None:
    with Trainer(plan(), teacher) as trainer:
        trainer.prepare(1)
        assert trainer.step_mode == "eager"
        assert trainer.step_mode_reason == "CUDA graphs need a CUDA device"
        assert (trainer.exchange.name, trainer.exchange.reason) == (None, "one rank exchanges nothing")
        assert trainer.peak_memory_bytes() is None
        assert trainer.parameters_total == 12 * 16 + 2 * 16 * 16 + 16 * 3 + 3 * 16 + 3
        assert trainer.bytes_sent_per_step == 0


def test_a_closed_trainer_frees_its_model_and_may_be_closed_again(teacher: Dataset) -> None:
    models = []

    def build(*args: Any) -> FFN:
        model = build_ffn(*args)
        models.append(weakref.ref(model))
        return model

    trainer = Trainer(plan(), teacher, build=build)
    trainer.prepare(1)
    trainer.run(2)
    gc.disable()  # freed by counting references, not when the collector comes round
    try:
        trainer.close()
        assert models[0]() is None
    finally:
        gc.enable()
    trainer.close()
    with pytest.raises(AssertionError, match="closed"):
        trainer.run(1)


def test_a_model_s_precision_is_set_while_it_works_and_given_back_afterwards() -> None:
    matmul = torch.backends.cuda.matmul
    seen: list[str] = []

    class Peeking(FFN):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            seen.append(matmul.fp32_precision)
            return super().forward(features)

    def build(*args: Any) -> FFN:
        model = build_ffn(*args)
        model.__class__ = Peeking
        return model

    before = matmul.fp32_precision
    for tf32, expected in ((True, "tf32"), (False, "ieee")):
        planned = plan()
        planned = planned.model_copy(update={"model": planned.model.model_copy(update={"tf32": tf32})})
        with Trainer(planned, load_task(TEACHER), build=build) as trainer:
            assert matmul.fp32_precision == before
            trainer.run(1)
            assert matmul.fp32_precision == before
            trainer.evaluate()
        assert set(seen) == {expected}
        seen.clear()
    with pytest.raises(ZeroDivisionError), float32_products(True):
        _ = 1 / 0
    assert matmul.fp32_precision == before


def test_work_given_to_the_device_is_counted_and_never_less_than_before(teacher: Dataset) -> None:
    with Trainer(plan(), teacher) as trainer:
        assert (trainer.enqueued, trainer.warm_step_s) == (0, None)
        trainer.prepare(1)
        assert (trainer.enqueued, trainer.warm_step_s) == (1, None), "the first step tells of no other"
        trainer.prepare(3)
        assert trainer.enqueued == 4
        assert trainer.warm_step_s is not None
        assert trainer.warm_step_s > 0
        trainer.run(5)
        assert trainer.enqueued == 9
        trainer.evaluate()
        assert trainer.enqueued > 9
        before = trainer.enqueued
        trainer.load_state_dict(trainer.state_dict())
        assert trainer.enqueued == before
