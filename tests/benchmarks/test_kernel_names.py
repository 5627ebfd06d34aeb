"""Kernels' names tell which part of a step they are, and a timeline is split so that every instant counts once."""

import pytest

from benchmarks.attribution import kernels_of
from benchmarks.kernel_names import Kernel, part_of, split
from benchmarks.paired import paired_difference

NAMES = {
    "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT": "gemm",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN": "gemm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off": "gemm",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x1_tn_align8>": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>": "gemm",
    "ampere_sgemm_128x64_tn": "gemm",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "gather_ghosts": "communication",
    "reduce_ghosts": "communication",
    "sum_everywhere": "communication",
    "sum_by_shards": "communication",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<2>, at::native::(anonymous namespace)::Copy<float, c10::BFloat16>>": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<2>, at::native::(anonymous namespace)::FusedSgdMathFunctor<float, 2>>": "optimizer",
    "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar)>": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>": "elementwise",
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, int>": "elementwise",
    "Memcpy DtoD (Device -> Device)": "elementwise",
    "Memset (Device)": "elementwise",
    "triton_poi_fused_relu_threshold_backward_0": "elementwise",
    "spin_kernel": "other",
}


@pytest.mark.parametrize(("name", "part"), NAMES.items(), ids=[name[:40] for name in NAMES])
def test_a_name_tells_its_part(name: str, part: str) -> None:
    assert part_of(name) == part


def test_every_instant_of_a_timeline_counts_once() -> None:
    found = split(
        [
            Kernel("nvjet_a", 0, 1_000),
            Kernel("ncclDevKernel_AllReduce", 500, 2_000),  # 500 hidden, 1,500 exposed
            Kernel("multi_tensor_apply_kernel", 3_000, 500),  # after a gap of 500
            Kernel("vectorized_elementwise_kernel", 3_250, 1_000),  # 750 of it on its own
            Kernel("spin", 5_000, 100),  # after a gap of 750
        ]
    )
    assert found.gemm_ms == pytest.approx(1.0)
    assert found.exposed_communication_ms == pytest.approx(1.5)
    assert found.communication_ms == pytest.approx(2.0)
    assert found.optimizer_ms == pytest.approx(0.5)
    assert found.elementwise_ms == pytest.approx(0.75 + 0.1)
    assert found.gaps_ms == pytest.approx(0.5 + 0.75)
    assert found.total_ms == pytest.approx(5.1)
    assert found.kernels == 5
    assert found.unknown == ("spin",)


def test_a_trace_gives_what_ran_on_the_device_alone() -> None:
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "nvjet", "ts": 10.5, "dur": 2},
            {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 20, "dur": 1},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 9},
            {"ph": "M", "name": "process_name"},
        ]
    }
    assert kernels_of(trace) == [Kernel("nvjet", 10.5, 2.0), Kernel("Memset (Device)", 20.0, 1.0)]


def test_a_part_has_an_interval_over_paired_rounds_or_is_unknown() -> None:
    found = paired_difference([10.0, 11.0, 12.0], [7.0, 8.5, 9.0])
    assert found is not None
    assert found["mean"] == pytest.approx(17 / 6)
    assert found["low"] < found["mean"] < found["high"]
    assert paired_difference([10.0, None, 12.0], [7.0, 8.5, 9.0]) is None
    assert paired_difference([10.0, 11.0], [7.0, 8.5]) is None
