"""A device profile with round numbers, for tests of predictions."""

from phantom_core.profile import Curve, DeviceProfile, GemmFit, LinkCurve, Powers


def round_profile(**changes: object) -> DeviceProfile:
    """1 TFLOP/s, 1 TB/s, links of 10 us + 1 us per 1 MB over two ranks; 100 W at rest, 500 W in GEMMs."""
    profile = DeviceProfile(
        name="round",
        card="none",
        cards=2,
        driver=None,
        torch="2",
        date="2026-01-01",
        command="none",
        in_graph=True,
        gemms=(
            GemmFit(
                arithmetic="float32",
                thin=False,
                overhead_s=1e-6,
                s_per_flop=1e-12,
                s_per_byte=0.0,
                shapes=3,
                median_error=0.0,
                worst_error=0.0,
            ),
        ),
        links=tuple(
            LinkCurve(kind=kind, transport=transport, world_size=2, points=((0, 1e-5), (1_000_000, 1.1e-5)))
            for kind in ("all_gather", "reduce_scatter", "all_reduce")
            for transport in ("nccl", "fused")
        ),
        elementwise=Curve(points=((0, 1e-6), (1_000_000, 2e-6))),
        update_bytes_per_s=1e12,
        eager_launch_s=1e-5,
        powers=Powers(
            method="nvml.counter",
            idle_w=80.0,
            active_w=100.0,
            gemm_w=500.0,
            gemm_flops_per_s=1e12,
            memory_w=300.0,
            memory_bytes_per_s=1e12,
            communication_w=200.0,
            communication_bytes_per_s=1e9,
        ),
    )
    return profile.model_copy(update=changes)
