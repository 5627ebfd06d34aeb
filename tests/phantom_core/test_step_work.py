"""A step in order has the FLOPs, bytes and collectives that the cost formulas count without an order."""

from collections import Counter

import pytest

from phantom_core.cost import arm_cost
from phantom_core.layer_costs import bytes_sent
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    FeaturePlacement,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    StopAtSteps,
    TensorArm,
    TrainingSpec,
)
from phantom_core.step_work import step_work, update_bytes_per_parameter
from phantom_core.task_shapes import TaskShape

SHAPE = TaskShape(features=48, outputs=5, loss="mean_squared_error")
ARMS: list[Arm] = [
    DenseArm(name="dense"),
    TensorArm(name="gather", form="gather", world_size=4),
    TensorArm(name="column row", world_size=4),
    TensorArm(name="alone", world_size=1),
    PhantomArm(name="phantom", ghosts=3, world_size=4),
    PhantomArm(name="phantom of two", ghosts=3, world_size=2),
    TensorArm(name="dtensor", implementation="dtensor", world_size=4),
    BlockDiagonalArm(name="block", world_size=4),
    LowRankArm(name="low", rank=6, world_size=4),
]


def planned(arm: Arm, depth: int = 4, **training: object) -> PlannedArm:
    recipe = TrainingSpec.model_validate(
        {"batch_size": 24, "optimizer": "sgd", "stop": StopAtSteps(steps=1)} | training
    )
    return PlannedArm(
        arm=arm, model=ModelSpec(width=64, depth=depth, bias=False, dtype="bfloat16"), training=recipe
    )


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("placement", ["whole", "split"])
@pytest.mark.parametrize("anew", [False, True], ids=["kept", "checkpointed"])
def test_work_in_order_adds_up_to_the_formulas(
    arm: Arm, depth: int, placement: FeaturePlacement, anew: bool
) -> None:
    each = planned(arm, depth, activation_checkpointing=anew)
    work, cost = step_work(each, SHAPE, placement), arm_cost(each, SHAPE, placement)
    assert work.flops == cost.step_flops_per_rank
    calls = Counter(transfer.kind for transfer in work.transfers)
    assert calls == {collective.kind: collective.calls for collective in cost.collectives if collective.calls}
    for collective in cost.collectives:
        sent = sum(
            bytes_sent(transfer.kind, transfer.elements, work.element_bytes, work.world_size)
            for transfer in work.transfers
            if transfer.kind == collective.kind
        )
        assert sent == collective.bytes_sent


def test_ghosts_travel_beside_the_local_gemms_and_tensors_forward_sums_alone() -> None:
    phantom = step_work(planned(ARMS[4]), SHAPE, "split")
    hidden = [
        each for each in phantom.segments if each.transfer is not None and each.transfer.kind != "all_reduce"
    ]
    assert all(each.gemms for each in hidden)
    assert sum(each.count for each in hidden) == 2 * 4
    tensor = step_work(planned(ARMS[2]), SHAPE, "split")
    alone = [each for each in tensor.segments if each.transfer is not None and not each.gemms]
    # One all-reduce for each pair of layers forward, and the output layer's.
    assert sum(each.count for each in alone) == 2 + 1
    dtensor = step_work(planned(TensorArm(name="d", implementation="dtensor", world_size=4)), SHAPE, "split")
    assert not any(each.gemms for each in dtensor.segments if each.transfer is not None)
    assert not any(each.gemms for each in alone)


def test_an_update_touches_what_its_optimizer_keeps() -> None:
    sgd = TrainingSpec(optimizer="sgd", stop=StopAtSteps(steps=1))
    momentum = TrainingSpec(optimizer="sgd", momentum=0.9, stop=StopAtSteps(steps=1))
    adamw = TrainingSpec(optimizer="adamw", stop=StopAtSteps(steps=1))
    assert update_bytes_per_parameter(sgd, "float32") == 3 * 4
    assert update_bytes_per_parameter(momentum, "float32") == 5 * 4
    assert update_bytes_per_parameter(adamw, "float64") == 7 * 8
    assert update_bytes_per_parameter(sgd, "bfloat16") == (2 + 4) + (4 + 2)


def test_less_memory_traffic_than_the_weights_and_the_update_need_is_impossible() -> None:
    work = step_work(planned(BlockDiagonalArm(name="block", world_size=4)), SHAPE, "split")
    assert work.least_memory_bytes > work.update_bytes + 3 * 2 * work.parameters
