from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.nvml_stub.harness import LoadedStub, NvmlStub, StubScript, build_stub


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    return build_stub(tmp_path_factory.mktemp("nvml_stub"))


@pytest.fixture
def load(nvml_stub: NvmlStub, tmp_path: Path) -> Iterator[Callable[[StubScript], LoadedStub]]:
    """Puts a script under this process's binding until the test ends."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(nvml_stub.loaded(script, tmp_path / "script"))
