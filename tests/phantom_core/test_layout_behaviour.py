"""What the layers promise beside their arithmetic: shapes, errors, freezing, copies, seeds, agreement."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import CollectiveError, Communicator, RanksDisagreeError
from phantom_core.ffn import build_ffn
from phantom_core.layouts import (
    BlockDiagonalLinear,
    DenseLinear,
    LayoutError,
    LowRankLinear,
    PhantomLinear,
    SplitLinear,
    TensorColumnLinear,
    TensorGatherLinear,
    TensorRowLinear,
)
from phantom_core.layouts.dtensor import DTensorLinear
from phantom_core.layouts.local_part import local_part
from phantom_core.spec import PhantomArm, TensorArm
from tests.distributed import run_ranks
from tests.phantom_core.arms import planned

BUILDERS: dict[str, Any] = {
    "gather": TensorGatherLinear,
    "column": TensorColumnLinear,
    "row": TensorRowLinear,
    "row_scatter": partial(TensorRowLinear, scatter_output=True),
    "phantom": partial(PhantomLinear, ghosts=2),
    "block_diagonal": BlockDiagonalLinear,
    "low_rank": partial(LowRankLinear, rank=4),
}
N_IN, N_OUT = 12, 18
FORMATS = "layers compute in torch.float32, torch.float64, torch.bfloat16: use one of them"


def part(whole: torch.Tensor, placement: str) -> torch.Tensor:
    """This rank's part of (..., features), or all of it."""
    return whole.chunk(dist.get_world_size(), -1)[dist.get_rank()] if placement == "shard" else whole


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def on_ranks() -> None:
    """All that needs several ranks, in one group of three."""
    torch.manual_seed(4)
    layers = {name: build(N_IN, N_OUT, dtype=torch.float64) for name, build in BUILDERS.items()}
    for name, layer in layers.items():
        check_rectangular_and_leading_dimensions(name, layer)
        check_odd_strides(layer)
        check_frozen(layer)
        check_copy(layer)
        check_state_round_trip(name, layer)
        check_wrong_input(layer)
    check_independent_weights(layers)
    check_disagreement()
    check_subgroup()


def check_rectangular_and_leading_dimensions(name: str, layer: SplitLinear) -> None:
    whole = drawn(2, 3, N_IN)
    expected = torch.nn.functional.linear(whole, layer.dense_equivalent(), layer.dense_bias())
    for x, z in ((whole, expected), (whole[0], expected[0]), (whole[0, 0], expected[0, 0])):
        torch.testing.assert_close(layer(part(x, layer.input_placement)), part(z, layer.output_placement))
    assert layer.dense_equivalent().shape == (N_OUT, N_IN), name


def check_odd_strides(layer: SplitLinear) -> None:
    """Column-major inputs and broadcast gradients give what contiguous ones give."""
    x = part(drawn(5, N_IN), layer.input_placement).contiguous()
    results = []
    for variant in (x, x.t().contiguous().t()):
        leaf = variant.clone(memory_format=torch.preserve_format).requires_grad_()
        layer.zero_grad()
        torch.autograd.backward(layer(leaf).sum())  # the gradient of a sum is one number, expanded
        results.append([leaf.grad, *(parameter.grad for parameter in layer.parameters())])
    for plain, odd in zip(*results, strict=True):
        torch.testing.assert_close(odd, plain)


def check_frozen(layer: SplitLinear) -> None:
    """An input or a parameter that needs no gradient gets none, the others the same as before."""
    x = part(drawn(5, N_IN), layer.input_placement)
    layer.zero_grad()
    torch.autograd.backward(layer(x).square().sum())
    expected = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert None not in expected.values()
    for frozen in expected:
        layer.zero_grad()
        layer.get_parameter(frozen).requires_grad_(False)
        torch.autograd.backward(layer(x.clone().requires_grad_()).square().sum())
        for name, parameter in layer.named_parameters():
            if name == frozen:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, expected[name])
        layer.get_parameter(frozen).requires_grad_(True)


def check_copy(layer: SplitLinear) -> None:
    x = part(drawn(5, N_IN), layer.input_placement)
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), layer(x))
    assert copied.communicator is layer.communicator


def check_state_round_trip(name: str, layer: SplitLinear) -> None:
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    x = part(drawn(5, N_IN), layer.input_placement)
    before = layer(x).detach()
    layer.reset_parameters()
    assert not torch.equal(layer(x), before), name
    layer.load_state_dict(state)
    assert torch.equal(layer(x), before), name


def check_wrong_input(layer: SplitLinear) -> None:
    with pytest.raises(LayoutError, match=r"the input's shape is \(5, 7\).* takes \d+ numbers"):
        layer(drawn(5, 7))


def check_independent_weights(layers: dict[str, SplitLinear]) -> None:
    """Ranks with one global seed still draw different parts; biases begin at 0."""
    for name, layer in layers.items():
        for parameter_name, parameter in layer.named_parameters():
            parts = layer.communicator.from_all_ranks(parameter)
            if parameter_name == "bias":
                assert not any(other.any() for other in parts)
            else:
                assert not torch.equal(parts[0], parts[1]), (name, parameter_name)
                assert not torch.equal(parts[1], parts[2]), (name, parameter_name)


def check_disagreement() -> None:
    """Told alike on every rank: in what, and what each was told; also where layers share a communicator."""
    rank = dist.get_rank()
    told = "ranks disagree on a PhantomLinear: "
    for group in (None, Communicator()):
        with pytest.raises(
            RanksDisagreeError, match=f"{told}ghosts = 1 on rank 0, 2 on rank 1, 3 on rank 2; give"
        ):
            PhantomLinear(12, 12, ghosts=1 + rank, group=group)
        with pytest.raises(
            RanksDisagreeError, match=f"{told}bias = False on rank 0, True on ranks 1, 2; give"
        ):
            PhantomLinear(12, 12, ghosts=1, bias=rank > 0, group=group)
        with pytest.raises(RanksDisagreeError, match=f"{told}out_features = 24 on rank 0, 12 on ranks 1, 2"):
            PhantomLinear(12, 12 if rank else 24, ghosts=1, group=group)
        with pytest.raises(
            RanksDisagreeError, match=r"dtype = torch.float32 on rank 0, torch.float64 on ranks"
        ):
            TensorGatherLinear(12, 12, dtype=torch.float64 if rank else torch.float32, group=group)
        # One rank's settings would be refused, the others' not.
        with pytest.raises(RanksDisagreeError, match="ghosts = 1 on rank 0, 100 on ranks 1, 2"):
            PhantomLinear(12, 12, ghosts=100 if rank else 1, group=group)
        with pytest.raises(RanksDisagreeError, match="device = cpu on rank 0, none that it can use"):
            PhantomLinear(12, 12, ghosts=1, device="mps" if rank else "cpu", group=group)
        with pytest.raises(
            RanksDisagreeError, match="a TensorGatherLinear on rank 0, a TensorRowLinear on ranks"
        ):
            (TensorRowLinear if rank else TensorGatherLinear)(12, 12, group=group)
    # Whoever has made them agree is believed.
    shared = Communicator()
    with shared.agreed():
        PhantomLinear(12, 12, ghosts=1 + rank, group=shared)
    assert not shared.has_agreed


def check_first_input(build: Any, group: Any) -> None:
    """The first input's rows and number format are compared, later ones are the caller's."""
    rank = dist.get_rank()
    layer = build(N_IN, N_OUT, group=group)
    own = N_IN if layer.input_placement == "full" else N_IN // layer.world_size
    told = f"ranks disagree on the first input of a {type(layer).__name__}: "
    for _ in range(2):  # what was refused is asked again
        with pytest.raises(
            RanksDisagreeError, match=rf"{told}shape = \(4, {own}\) on ranks 0, 1, \(5, {own}\) on rank 2"
        ):
            layer(torch.ones(5 if rank == 2 else 4, own))
    with pytest.raises(
        RanksDisagreeError, match=r"input_dtype = torch\.float32 on rank 0, torch\.float64 on ranks 1, 2"
    ):
        layer(torch.ones(4, own, dtype=torch.float64 if rank else torch.float32))
    with pytest.raises(RanksDisagreeError, match=rf"shape = \(4, {own}\) on ranks 0, 1, \(4, 99\) on rank 2"):
        layer(torch.ones(4, 99 if rank == 2 else own))
    with layer.communicator.counting() as traffic:
        layer(torch.ones(4, own))
    assert traffic.calls.keys() <= {"all_gather", "reduce_scatter", "all_reduce"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "agree", never)
        layer(torch.ones(7, own))
        copy.deepcopy(layer)(torch.ones(3, own))


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("ranks agreed once more")


def disagree_on_inputs() -> None:
    for build in BUILDERS.values():
        check_first_input(build, None)
    check_first_input(BUILDERS["phantom"], Communicator())
    ffn_on_other_rows()


def ffn_on_other_rows() -> None:
    """A network's first layer asks for all of them."""
    for arm in (PhantomArm(name="p", world_size=3, ghosts=1), TensorArm(name="t", world_size=3)):
        plan, shape = planned(arm, dtype="float32")
        ffn = build_ffn(plan, shape, "whole")
        with pytest.raises(RanksDisagreeError, match="the first input of a TensorColumnLinear: shape = "):
            ffn(torch.ones(4 + dist.get_rank(), shape.features))
        ffn(torch.ones(4, shape.features))


def test_inputs_that_differ_between_ranks_end_all_of_them() -> None:
    run_ranks(3, disagree_on_inputs)


def check_subgroup() -> None:
    """Two ranks of three split a layer; the third is told that it has no part in it."""
    pair = dist.new_group([0, 2])
    rank = dist.get_rank()
    if rank == 1:
        with pytest.raises(CollectiveError, match="rank 1 of 3 is no member"):
            PhantomLinear(8, 8, 1, group=pair)
        return
    layer = PhantomLinear(8, 8, 1, group=pair, dtype=torch.float64)
    assert (layer.world_size, layer.rank) == (2, rank // 2)
    x = drawn(3, 8)
    own = layer(x.chunk(2, 1)[layer.rank])
    expected = torch.nn.functional.linear(x, layer.dense_equivalent())
    torch.testing.assert_close(own, expected.chunk(2, 1)[layer.rank])


def test_layers_keep_their_promises_on_three_ranks() -> None:
    run_ranks(3, on_ranks)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_layer_without_torch_distributed_is_the_dense_layer(name: str) -> None:
    layer = BUILDERS[name](N_IN, N_OUT, dtype=torch.float64)
    assert layer.world_size == 1
    x = drawn(5, N_IN)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.dense_equivalent(), layer.bias))
    with layer.communicator.counting() as traffic:
        torch.autograd.backward(layer(x.requires_grad_()).sum())
    assert traffic.calls == {}


def test_a_phantom_layer_on_one_rank_has_no_ghost_weights() -> None:
    layer = PhantomLinear(8, 8, ghosts=2)
    assert layer.compressor is None
    assert layer.decompressors is None
    assert sum(parameter.numel() for parameter in layer.parameters()) == 8 * 8 + 8


@pytest.mark.parametrize("build", [*BUILDERS.values(), DenseLinear])
def test_a_layer_without_bias_has_none(build: Any) -> None:
    layer = build(N_IN, N_OUT, bias=False)
    assert layer.bias is None
    assert layer.dense_bias() is None
    assert layer(torch.zeros(2, N_IN)).abs().max() == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PhantomLinear(8, 8, ghosts=8), "ghosts = 8; each of 1 ranks has 8 of 8 inputs .* 1 to 7"),
        (lambda: PhantomLinear(8, 8, ghosts=0), "ghosts = 0"),
        (lambda: LowRankLinear(8, 4, rank=5), "rank = 5; a 4 x 8 weight has a rank of 1 to 4"),
        (lambda: LowRankLinear(8, 4, rank=0), "rank = 0"),
        (lambda: DenseLinear(0, 4), "in_features = 0"),
        (lambda: DenseLinear(4, -1), "out_features = -1"),
        (lambda: DenseLinear(4, 4, dtype=torch.int64), f"dtype = torch.int64; {FORMATS}"),
        (
            lambda: PhantomLinear(8, 8, 2, dtype=torch.float8_e4m3fn),
            f"dtype = torch.float8_e4m3fn; {FORMATS}",
        ),
        (lambda: PhantomLinear(8, 8, 2, dtype=torch.float16), f"dtype = torch.float16; {FORMATS}"),
        (lambda: PhantomLinear(8, 8, 2, device="mps"), "device = mps; layers compute on cpu and cuda"),
        (
            lambda: PhantomLinear(8, 8, 2, device="nowhere"),
            "device = nowhere; layers compute on cpu and cuda",
        ),
        (lambda: PhantomLinear(8, 8, 2, device="cuda:99"), "device = cuda:99, but t"),
    ],
)
def test_impossible_arguments_are_refused_by_name_and_value(build: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        build()


def refuse_indivisible() -> None:
    for build in (TensorGatherLinear, BlockDiagonalLinear):
        with pytest.raises(LayoutError, match="in_features = 9 can't be split over 2 ranks; use 8 or 10"):
            build(9, 8)
    with pytest.raises(LayoutError, match="out_features = 1 can't be split over 2 ranks; use 2"):
        TensorColumnLinear(9, 1)
    with pytest.raises(LayoutError, match="the group has 2 ranks"):
        DenseLinear(8, 8)
    TensorColumnLinear(9, 8)
    TensorRowLinear(8, 9)


def test_sizes_that_do_not_divide_are_refused_with_the_nearest_that_do() -> None:
    run_ranks(2, refuse_indivisible)


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    run_ranks(2, differentiate_twice)


def differentiate_twice() -> None:
    for build in BUILDERS.values():
        layer = build(8, 8, dtype=torch.float64)
        x = part(drawn(3, 8), layer.input_placement).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            torch.autograd.backward(gradient.sum())


def test_an_input_of_another_number_format_is_refused_with_both_named() -> None:
    layer = PhantomLinear(8, 8, ghosts=2)
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        with pytest.raises(
            LayoutError, match=rf"the input is {dtype}, but the weights .* x\.to\(torch\.float32\)"
        ):
            layer(torch.ones(2, 8, dtype=dtype))
    layer.double()
    assert layer(torch.ones(2, 8, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(LayoutError, match=r"the input is torch\.float32, but .* are torch\.float64"):
        layer(torch.ones(2, 8))


def test_layers_compute_in_their_own_number_format_under_autocast() -> None:
    for p in (1, 2):
        run_ranks(p, compute_under_autocast)


def compute_under_autocast() -> None:
    builders = {**BUILDERS, "dtensor": partial(DTensorLinear, style="gather")}
    for name, build in builders.items():
        layer = build(8, 8)
        x = part(drawn(3, 8).float(), layer.input_placement).contiguous()

        def gradients(
            given: torch.Tensor, autocast: bool, layer: SplitLinear = layer
        ) -> list[torch.Tensor | None]:
            layer.zero_grad()
            leaf = given.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                z = layer(leaf)
                assert z.dtype == torch.float32
                torch.autograd.backward(z.square().sum())
            return [z.detach(), leaf.grad, *(parameter.grad for parameter in layer.parameters())]

        for plain, under in zip(gradients(x, False), gradients(x, True), strict=True):
            assert plain is not None
            assert under is not None
            if name != "dtensor":  # whose backward pass is torch's
                assert torch.equal(local_part(plain), local_part(under)), name
        half = x.bfloat16()
        with torch.autocast("cpu", torch.bfloat16):  # what a torch layer before it hands over
            assert torch.equal(layer(half), layer(half.float())), name
            with pytest.raises(LayoutError, match=r"the input is torch\.int64"):
                layer(x.long())


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.filterwarnings("ignore")  # the compiler looks at things that warn
def test_a_layer_compiles_in_one_piece(name: str) -> None:
    torch.compiler.reset()
    layer = BUILDERS[name](N_IN, N_OUT)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = drawn(3, N_IN).float()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            z: torch.Tensor = compiled(x)  # type: ignore[no-untyped-call]
            torch.testing.assert_close(z, layer(x))


def test_weights_follow_the_global_seed_without_a_generator() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return PhantomLinear(8, 8, ghosts=2).local.detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_layer_can_be_built_on_the_meta_device_and_given_memory_later() -> None:
    layer = PhantomLinear(8, 8, ghosts=2, device="meta")
    layer.to_empty(device="cpu").reset_parameters()
    assert layer(torch.ones(2, 8)).isfinite().all()


def test_a_communicator_alone_is_one_rank() -> None:
    communicator = Communicator()
    assert (communicator.rank, communicator.world_size) == (0, 1)
    communicator.agree("anything")
