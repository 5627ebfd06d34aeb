"""The stub itself: what a missing compiler means, and that its boards follow their scripts."""

import shutil
from pathlib import Path

import pytest

from tests.nvml_stub.harness import (
    UNINITIALIZED,
    Failure,
    StubBoard,
    StubScript,
    build_stub,
)


def test_without_a_compiler_tests_are_skipped_and_in_ci_they_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no C compiler"):
        build_stub(tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no C compiler"):
        build_stub(tmp_path)


def test_a_scripts_boards_are_what_the_binding_reads(tmp_path: Path) -> None:
    import pynvml

    board = StubBoard(uuid="GPU-1", power=((0, 100), (10, 300), (10, 50)), counter_mj=7, period_s=0.5)
    failing = StubBoard(uuid="GPU-2", failures=(Failure("nvmlDeviceGetName", 3, (5, 6)),))
    script = StubScript(boards=(board, failing), driver="1.2.3")
    with build_stub(tmp_path).loaded(script, tmp_path / "script") as stub:
        pynvml.nvmlInit()
        assert pynvml.nvmlSystemGetDriverVersion() == "1.2.3"
        one, two = (pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in ("GPU-1", "GPU-2"))
        seen = {}
        for seconds in (0.0, 5.4, 10.0, 20.0):
            stub.clock.set(seconds)
            seen[seconds] = pynvml.nvmlDeviceGetTotalEnergyConsumption(one)
        assert seen == {0.0: 7, 5.4: 7 + 5 * 150_000, 10.0: 7 + 2_000_000, 20.0: 7 + 2_500_000}
        stub.clock.set(5.5)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetName(two)
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError) as closed:
            pynvml.nvmlDeviceGetCount()
        assert closed.value.value == UNINITIALIZED


def test_a_script_that_leaves_nvml_open_is_found_out(tmp_path: Path) -> None:
    import pynvml

    stub = build_stub(tmp_path)
    with (
        pytest.raises(AssertionError, match="left open 1 times"),
        stub.loaded(StubScript(), tmp_path / "script"),
    ):
        pynvml.nvmlInit()
