"""The update in one pass against torch's own optimizers on float32 masters."""

import pytest
import torch
from torch import nn

import phantom_core.training.optimizers as optimizers
from phantom_core.spec import StopAtSteps, TrainingSpec
from phantom_core.training.optimizers import WeightUpdate
from tests.gpu.running import BOARDS

pytestmark = pytest.mark.skipif(BOARDS == 0, reason="the kernels need a CUDA device")

RECIPES = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "weight_decay": 0.01},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adamw"},
    {"optimizer": "adamw", "weight_decay": 0.1},
]


def updated(least: int, recipe: dict[str, object], patch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Everything that ten steps leave, on two weights whose sizes fill no block."""
    patch.setattr(optimizers, "LEAST_IN_ONE_PASS", least)
    device = torch.device("cuda", 0)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator).bfloat16()

    weights = nn.ParameterList([nn.Parameter(drawn(37, 531)), nn.Parameter(drawn(129))])
    training = TrainingSpec.model_validate(recipe | {"stop": StopAtSteps(steps=1), "update": "after"})
    update = WeightUpdate(weights, training, device)
    for number in range(10):
        update.rate.fill_(0.001 * (number + 1))
        for weight in weights:
            weight.grad = drawn(*weight.shape)
        update.step()
    return update.tensors()


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_pass_leaves_what_three_leave(recipe: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = updated(1, recipe, monkeypatch), updated(1 << 40, recipe, monkeypatch)
    assert one.keys() == three.keys()
    for name, tensor in one.items():
        if not name.endswith("weight"):
            torch.testing.assert_close(tensor, three[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_are_the_masters_rounded_to_nearest(
    recipe: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = updated(1, recipe, monkeypatch)
    for index in range(2):
        assert torch.equal(left[f"{index}.weight"], left[f"{index}.master"].bfloat16())
