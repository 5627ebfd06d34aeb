"""Which experiment the demo runs: one for GPUs where the cluster has them, else one for two CPU cores."""

from collections.abc import Callable
from importlib import resources

from phantom_core.spec import ExperimentSpec, load_spec

GPU_RANKS = (4, 2)
"""GPUs that the demo splits its network over, the most first."""


def cpu_demo() -> ExperimentSpec:
    """The packaged experiment for two CPU cores."""
    return load_spec(_packaged("demo.yaml"))


def gpu_demo(ranks: int) -> ExperimentSpec:
    """The packaged experiment for GPUs, every arm split over that many."""
    spec = load_spec(_packaged("demo_gpu.yaml"))
    arms = [arm.model_copy(update={"world_size": ranks}) for arm in spec.arms]
    return ExperimentSpec.model_validate(
        spec.model_dump(mode="json") | {"arms": [arm.model_dump(mode="json") for arm in arms]}
    )


def choose_demo(fits: Callable[[ExperimentSpec], bool]) -> ExperimentSpec:
    """The largest demo that the cluster can run.

    Args:
        fits: Whether the service says that the cluster can run a spec.
    """
    for ranks in GPU_RANKS:
        spec = gpu_demo(ranks)
        if fits(spec):
            return spec
    return cpu_demo()


def _packaged(name: str) -> str:
    return resources.files("client").joinpath(name).read_text()
