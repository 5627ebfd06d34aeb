"""Several gloo ranks training one arm together."""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import phantom_core.training.steps as steps_module
from phantom_core.collectives import Communicator, RanksDisagreeError
from phantom_core.cost import arm_cost
from phantom_core.ffn import FFN, build_ffn
from phantom_core.layouts import SplitLinear
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    FeaturePlacement,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    Schedule,
    StopAtSteps,
    TeacherTask,
    TensorArm,
    TrainingSpec,
)
from phantom_core.tasks import Dataset, load_task
from phantom_core.training import RowOrder, Trainer, learning_rate
from phantom_core.training.batches import BatchSizeError
from phantom_core.training.losses import loss_of
from phantom_core.training.optimizers import WeightUpdate
from tests.distributed import run_ranks
from tests.phantom_core.arms import dtensor_arms


def task(placement: FeaturePlacement) -> TeacherTask:
    return TeacherTask(
        features=24,
        outputs=3,
        latents=8,
        teacher_width=8,
        train_rows=96,
        validation_rows=41,
        feature_placement=placement,
    )


def arms(p: int) -> dict[str, Arm]:
    return {
        "gather": TensorArm(name="gather", world_size=p, form="gather"),
        "column_row": TensorArm(name="column_row", world_size=p),
        "phantom": PhantomArm(name="phantom", world_size=p, ghosts=2),
        "block_diagonal": BlockDiagonalArm(name="block_diagonal", world_size=p),
        "low_rank": LowRankArm(name="low_rank", world_size=p, rank=4),
    }


def plan(arm: Arm, dtype: str = "float64", **training: Any) -> PlannedArm:
    settings = {
        "batch_size": 16,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "schedule": Schedule(kind="linear", warmup_steps=3, decay_steps=30),
        "stop": StopAtSteps(steps=20),
    }
    return PlannedArm(
        arm=arm,
        model=ModelSpec(width=24, depth=3, dtype=dtype),
        training=TrainingSpec(**(settings | training)),
    )


def dense_bias(layer: SplitLinear) -> torch.Tensor:
    bias = layer.dense_bias()
    assert bias is not None
    return bias


class DenseTwin(torch.nn.Module):
    """The unsplit network with the weights that a split one's ranks hold together."""

    def __init__(self, split: FFN) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(layer.dense_equivalent().detach() for layer in split.layers)
        self.biases = torch.nn.ParameterList(dense_bias(layer).detach() for layer in split.layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.nn.functional.linear(torch.relu(x) if index else x, weight, bias)
        return x


@dataclass(frozen=True)
class Case:
    name: str
    placement: FeaturePlacement
    optimizer: str
    steps: int


@dataclass(frozen=True)
class Told:
    losses: torch.Tensor
    twin_losses: list[float]
    before: float
    twin_before: float
    after: float
    bytes_sent: int | None
    formula_bytes: int


def train_beside_a_dense_twin(p: int, cases: list[Case]) -> dict[Case, Told]:
    steps_module._MOST_STEPS = 7  # this process is the rank's own; tables are refilled on the way
    return {case: one_case(p, case) for case in cases}


def one_case(p: int, case: Case) -> Told:
    dataset = load_task(task(case.placement))
    planned = plan(arms(p)[case.name], optimizer=case.optimizer)
    built: list[FFN] = []

    def build(*args: Any) -> FFN:
        built.append(build_ffn(*args))
        return built[0]

    def on_all_columns(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        arrays = getattr(dataset, f"{part}_features"), getattr(dataset, f"{part}_targets")
        return torch.tensor(arrays[0], dtype=torch.float64), torch.tensor(arrays[1], dtype=torch.float64)

    with Trainer(planned, dataset, seed=2, build=build) as trainer:
        twin = DenseTwin(built[0])
        trainer.prepare(2)
        before = trainer.evaluate()
        trainer.run(case.steps)
        losses = trainer.losses()
        after = trainer.evaluate()
        sent = trainer.bytes_sent_per_step
    features, targets = on_all_columns("validation")
    twin_before = loss_of(dataset.shape, twin(features), targets).item()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(twin.parameters(), momentum=0.9)
        if case.optimizer == "sgd"
        else torch.optim.AdamW(twin.parameters(), weight_decay=0.0)
    )
    features, targets = on_all_columns("train")
    order = RowOrder(len(features), planned.training.batch_size, 2)
    twin_losses = []
    for number in range(case.steps):
        rows = order.batches(number, 1)[0].long()
        optimizer.param_groups[0]["lr"] = learning_rate(planned.training, number)
        optimizer.zero_grad()
        loss = loss_of(dataset.shape, twin(features[rows]), targets[rows])
        torch.autograd.backward(loss)
        optimizer.step()
        twin_losses.append(loss.item())
    cost = arm_cost(planned, dataset.shape, case.placement)
    return Told(losses, twin_losses, before, twin_before, after, sent, cost.bytes_sent_per_rank)


AS_ONE = [
    Case(name, "whole", optimizer, steps=20)
    for name in ("gather", "column_row")
    for optimizer in ("sgd", "adamw")
]
OTHERS = [
    *(Case(name, "split", "adamw", steps=5) for name in ("gather", "column_row")),
    *(Case(name, "whole", "adamw", steps=5) for name in ("phantom", "block_diagonal", "low_rank")),
    *(Case(name, "split", "adamw", steps=5) for name in ("phantom", "block_diagonal", "low_rank")),
]

Ranks = list[dict[Case, Told]]


@pytest.fixture(scope="module")
def two() -> Ranks:
    return run_ranks(2, train_beside_a_dense_twin, 2, AS_ONE + OTHERS)


@pytest.fixture(scope="module")
def three() -> Ranks:
    return run_ranks(3, train_beside_a_dense_twin, 3, AS_ONE)


@pytest.mark.parametrize("case", AS_ONE, ids=str)
def test_tensor_parallel_ranks_train_as_one_unsplit_network_does(
    two: Ranks, three: Ranks, case: Case
) -> None:
    for told in (ranks[case] for ranks in two + three):
        np.testing.assert_allclose(told.losses.numpy(), told.twin_losses, rtol=1e-10)
        assert told.losses[-5:].mean() < told.losses[:5].mean()


@pytest.mark.parametrize("case", AS_ONE + OTHERS, ids=str)
def test_ranks_see_their_columns_of_the_same_rows_and_agree_on_every_loss(two: Ranks, case: Case) -> None:
    for told in (ranks[case] for ranks in two):
        assert told.before == pytest.approx(told.twin_before, rel=1e-10)
        assert told.losses[0].item() == pytest.approx(told.twin_losses[0], rel=1e-10)
    assert torch.equal(two[0][case].losses, two[1][case].losses)
    assert two[0][case].after == two[1][case].after


@pytest.mark.parametrize("case", AS_ONE + OTHERS, ids=str)
def test_the_bytes_that_a_warm_up_step_sends_are_those_of_the_formulas(two: Ranks, case: Case) -> None:
    for told in (ranks[case] for ranks in two):
        assert told.bytes_sent == told.formula_bytes > 0


def losses_and_evaluation(
    planned: PlannedArm, group: Any = None, warmup_steps: int = 0, steps: int = 10
) -> list[float]:
    with Trainer(planned, load_task(task("split")), group=group) as trainer:
        trainer.prepare(warmup_steps)
        trainer.run(steps)
        return [*trainer.losses().tolist(), trainer.evaluate()]


def fewer(dataset: Dataset, part: str, rows: int) -> Dataset:
    """The first rows of a part."""
    features, targets = f"{part}_features", f"{part}_targets"
    return dataclasses.replace(
        dataset, **{features: getattr(dataset, features)[:rows], targets: getattr(dataset, targets)[:rows]}
    )


def on_other_data() -> None:
    """Rank 1 has other data or another recipe; both ranks are told, before either waits for the other."""
    other = dist.get_rank() == 1
    dataset, usual = load_task(task("split")), plan(arms(2)["phantom"])
    changed = dataset.train_targets.copy()
    changed[-1] += 1
    for theirs, told in (
        (fewer(dataset, "validation", 40), "validation_rows = 41 on rank 0, 40 on rank 1; data_digest = "),
        (fewer(dataset, "train", 80), "training_rows = 96 on rank 0, 80 on rank 1; data_digest = "),
        (fewer(dataset, "train", 10), "training_rows = 96 on rank 0, 10 on rank 1"),  # less than a batch
        (
            dataclasses.replace(dataset, train_targets=changed),
            f"data_digest = {dataset.digest()} on rank 0, ",
        ),
        (
            dataclasses.replace(dataset, placement="whole"),
            "feature_placement = split on rank 0, whole on rank 1",
        ),
    ):
        with pytest.raises(RanksDisagreeError, match=f"the trainer of arm 'phantom': {told}"):
            Trainer(usual, theirs if other else dataset)
    for changes, told in (
        ({"learning_rate": 0.02}, "training.learning_rate = 0.01 on rank 0, 0.02 on rank 1"),
        ({"update": "after"}, "training.update = overlapped on rank 0, after on rank 1"),
        ({"batch_size": 97}, "training.batch_size = 16 on rank 0, 97 on rank 1"),
    ):
        with pytest.raises(RanksDisagreeError, match=told):
            Trainer(plan(arms(2)["phantom"], **(changes if other else {})), dataset)
    with pytest.raises(RanksDisagreeError, match="seed = 0 on rank 0, 1 on rank 1"):
        Trainer(usual, dataset, seed=int(other))
    with pytest.raises(BatchSizeError):
        Trainer(plan(arms(2)["phantom"], batch_size=97), dataset)


def test_ranks_with_other_data_or_recipes_are_all_told_in_what_they_differ() -> None:
    run_ranks(2, on_other_data)


def agreements() -> tuple[list[str], int]:
    """What ranks ask each other while an arm is built, trained and evaluated, and how often data were read for it."""
    asked: list[str] = []
    read = 0
    agree, digest = Communicator.agree, hashlib.blake2b

    def asking(self: Communicator, what: str, *args: Any, **settings: object) -> None:
        if not self.has_agreed:
            asked.append(what)
        agree(self, what, *args, **settings)

    def reading(**options: Any) -> Any:
        nonlocal read
        read += 1
        return digest(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "agree", asking)
        patch.setattr(hashlib, "blake2b", reading)
        dataset = load_task(task("split"))
        for name in ("phantom", "column_row"):
            with Trainer(plan(arms(2)[name]), dataset) as trainer:
                trainer.prepare(1)
                trainer.run(2)
                trainer.evaluate()
    return asked, read


def test_a_trainer_s_ranks_agree_once_and_read_a_dataset_once() -> None:
    for asked, read in run_ranks(2, agreements):
        assert asked == ["the trainer of arm 'phantom'", "the trainer of arm 'column_row'"]
        assert read == 1


def exchanges_told() -> list[tuple[str | None, str | None, bool]]:
    told: list[tuple[str | None, str | None, bool]] = []
    for arm in arms(2).values():
        with Trainer(plan(arm), load_task(task("split"))) as trainer:
            trainer.prepare(1)
            told.append((trainer.exchange.name, trainer.exchange.reason, trainer.compiled))
    return told


def test_a_trainer_says_what_carries_its_exchanges_and_why_they_are_not_fused() -> None:
    why = "the fused exchange needs CUDA, this rank computes on cpu"
    for rank in run_ranks(2, exchanges_told):
        assert rank == [("gloo", why, False)] * 5


@dataclass(frozen=True)
class PhantomRuns:
    cold: list[float]
    warm: list[float]
    diverging: list[float]


def phantom_runs() -> PhantomRuns:
    arm = arms(2)["phantom"]
    diverging = plan(arm, "float32", optimizer="sgd", learning_rate=1_000.0)
    return PhantomRuns(
        cold=losses_and_evaluation(plan(arm)),
        warm=losses_and_evaluation(plan(arm), warmup_steps=5),
        diverging=losses_and_evaluation(diverging, steps=40),
    )


def in_a_subgroup() -> list[float] | None:
    group = dist.new_group([1, 2])
    return losses_and_evaluation(plan(arms(2)["phantom"]), group) if dist.get_rank() else None


@pytest.fixture(scope="module")
def phantom() -> list[PhantomRuns]:
    return run_ranks(2, phantom_runs)


def test_ranks_that_warm_up_train_as_if_they_had_not(phantom: list[PhantomRuns]) -> None:
    for runs in phantom:
        assert runs.cold == runs.warm


def test_divergence_is_seen_by_all_ranks_alike(phantom: list[PhantomRuns]) -> None:
    one, other = (runs.diverging for runs in phantom)
    assert not np.isfinite(one).all()
    assert not np.isfinite(one[-1])
    np.testing.assert_array_equal(one, other)


def test_an_arm_smaller_than_the_worker_group_trains_in_a_subgroup_of_it(phantom: list[PhantomRuns]) -> None:
    idle, *busy = run_ranks(3, in_a_subgroup)
    assert idle is None
    assert busy == [runs.cold for runs in phantom]


def kept_and_computed_anew() -> list[tuple[str, list[float], list[float]]]:
    told = []
    for name, arm in arms(2).items():
        runs = [
            losses_and_evaluation(plan(arm, "float32", activation_checkpointing=anew))
            for anew in (False, True)
        ]
        told.append((name, runs[0], runs[1]))
    return told


def test_activations_computed_anew_give_the_same_losses_to_the_bit() -> None:
    for rank in run_ranks(2, kept_and_computed_anew):
        for name, kept, anew in rank:
            assert kept == anew, name
            assert kept[-1] < kept[0], name


def updated_beside_and_after(
    dtype: str, recipe: dict[str, Any]
) -> list[tuple[str, list[float], list[float]]]:
    told = []
    for arm in [*arms(2).values(), *dtensor_arms(2)]:
        runs = [
            losses_and_evaluation(
                plan(arm, dtype, activation_checkpointing=anew, update=when, **recipe), None, 2
            )
            for anew in (False, True)
            for when in ("overlapped", "after")
        ]
        told += [(arm.name, runs[0], runs[1]), (f"{arm.name}, checkpointed", runs[2], runs[3])]
    return told


@pytest.mark.parametrize("recipe", [{"optimizer": "sgd"}, {"optimizer": "adamw"}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_updated_as_their_gradients_come_give_the_same_losses_to_the_bit(
    dtype: str, recipe: dict[str, Any]
) -> None:
    for rank in run_ranks(2, updated_beside_and_after, dtype, recipe):
        for name, beside, after in rank:
            assert np.isfinite(beside).all(), name
            assert beside == after, name


def what_updates_saw() -> list[tuple[str, int, int]]:
    """Weights updated while backward ran, and those that were left to the end."""
    seen: list[tuple[str, int, int]] = []

    class Watching(WeightUpdate):
        def step(self) -> None:
            done = len(self._updated)
            seen.append((name, done, len(self._slots) - done))
            super().step()

    for name in ("overlapped", "after"):
        planned = plan(arms(2)["phantom"], update=name)
        with Trainer(planned, load_task(task("split")), update=Watching) as trainer:
            trainer.run(2)
    return seen


def test_all_weights_are_updated_during_backward_or_none() -> None:
    # Three layers of four parameters between two of two.
    overlapped, after = ("overlapped", 16, 0), ("after", 0, 16)
    for rank in run_ranks(2, what_updates_saw):
        assert rank == [overlapped, overlapped, after, after]
