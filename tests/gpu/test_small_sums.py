"""Sums over all ranks by the fused exchange: right, alike on every rank to the bit, eager and in a graph."""

import pytest
import torch

from phantom_core.layer_costs import MOST_FUSED_BYTES
from tests.distributed import run_ranks
from tests.gpu.running import BOARDS, MOST_RANKS, gpu_ranks

pytestmark = pytest.mark.skipif(MOST_RANKS < 2, reason=f"needs 2 GPUs, there are {BOARDS}")
SHAPES = ((256, 16), (37, 5), (1,), (513, 1_000), (1_024, 1_024), (4_099, 1_024))
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
ranks_here = pytest.mark.parametrize(
    "p", [pytest.param(p, marks=pytest.mark.skipif(p > MOST_RANKS, reason=f"needs {p} GPUs")) for p in (2, 4)]
)


def sums() -> list[tuple[str, int, bool, bool, bool]]:
    told = []
    with gpu_ranks() as (ranks, device):
        ranks.fuse_ghosts(device)
        for dtype in DTYPES:
            for shape in SHAPES:
                own = torch.randn(shape, device=device, dtype=torch.float64).add_(ranks.rank).to(dtype)
                parts = ranks.from_all_ranks(own)
                wide = torch.float64 if dtype == torch.float64 else torch.float32
                expected = torch.zeros(shape, device=device, dtype=wide)
                for part in parts:
                    expected += part.to(wide)
                with ranks.counting() as traffic:
                    eager = own.clone()
                    ranks.all_reduce(eager).wait()
                fused = "all_reduce" in traffic.fused_calls
                replayed = torch.zeros_like(own)
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize(device)
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    replayed.copy_(own)
                    ranks.all_reduce(replayed).wait()
                for _ in range(5):
                    graph.replay()
                torch.cuda.synchronize(device)
                same = all(torch.equal(eager, each) for each in ranks.from_all_ranks(eager))
                right = torch.equal(eager, expected.to(dtype)) and torch.equal(replayed, eager)
                size_bytes = own.numel() * own.element_size()
                told.append((f"{dtype} {shape}", size_bytes, fused, right or not fused, same))
                del graph
        ranks.agree("end", device)
    return told


@ranks_here
def test_small_sums_are_right_and_alike_on_all_ranks(p: int) -> None:
    for rank in run_ranks(p, sums):
        for what, size_bytes, fused, right, same in rank:
            assert fused == (size_bytes <= p * MOST_FUSED_BYTES), what
            assert right, what
            assert same, what
