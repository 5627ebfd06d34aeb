"""A rank's board is metered by who made it and by UUID."""

from types import SimpleNamespace

import pytest
import torch

from phantom_core.meters.choose import MeterRequest
from ray_jobs.devices import meter_request

UUID = "c4ff74a1-0000-1000-80ac-4a1f1e7d1d3a"


@pytest.mark.parametrize(("hip", "kind"), [(None, "cuda"), ("6.4.43482", "rocm")])
def test_a_board_is_asked_for_by_its_uuid_through_its_maker_s_library(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, kind: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    request = meter_request(torch.device("cuda", 3), rank=1, scope="module")
    assert (request.kind, request.uuid, request.scope) == (kind, UUID, "module")
    assert request.from_outside(7).scope == "module", "the sampler's power is of what the energy is of"


def test_a_processor_is_asked_for_by_the_rank_that_uses_it() -> None:
    request = meter_request(torch.device("cpu"), rank=1)
    assert request == MeterRequest("cpu", rank=1)
