"""A wall clock that a test steps under real processes: a service's, and PostgreSQL's, which all services go by."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class SteppedClock:
    """The clock of every process that has `environment`."""

    library: Path
    file: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which a process has this clock."""
        return {"LD_PRELOAD": str(self.library), "STEPPED_BY": str(self.file)}

    def step(self, seconds: float) -> None:
        """Sets by how much it is off, for all processes at once."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes that are started meanwhile have this clock."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def stepped_clock() -> Iterator[SteppedClock]:
    """Compiles it, in a folder that PostgreSQL's own user may read.

    Without a compiler it skips the test that asked, or fails it where CI is set.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        message = "no C compiler (cc), so no clock can be stepped"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with tempfile.TemporaryDirectory(prefix="ghostwatt-clock-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        library, file = folder / "stepped_clock.so", folder / "stepped"
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE), "-lm"], check=True, timeout=120)
        file.write_bytes(struct.pack("d", 0.0))
        yield SteppedClock(library, file)
