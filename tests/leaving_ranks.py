"""Runs a script as `python SCRIPT` or `python -m MODULE` does, then fails if it left threads of gloo behind.

    torchrun ... -m tests.leaving_ranks (SCRIPT | -m MODULE) [ARGUMENTS ...]

Not a test. gloo's threads end with the last reference to their group, which `destroy_process_group` alone needn't
be. One that is still giving a tensor back when the interpreter ends takes the process with it ("terminate called
without an active exception"); seldom, but on any rank.
"""

import gc
import runpy
import sys
from contextlib import suppress
from pathlib import Path

from tests.running import wait_until

TASKS = Path("/proc/self/task")
ENDED_S = 60.0
"""A thread that ended may be listed for a while."""


def threads_of_gloo() -> list[str]:
    """Names of this process' threads that carry out collectives; none where the system does not tell."""
    names = []
    for task in TASKS.glob("*"):
        with suppress(OSError):  # it ended meanwhile
            names.append(task.joinpath("comm").read_text().strip())
    return [name for name in names if "gloo" in name]


def main() -> None:
    """Runs it; fails with the threads' names where there are any."""
    _, what, *rest = sys.argv
    if what == "-m":
        what, *rest = rest
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")
    # What lies in cycles goes now, not at a moment of its own.
    gc.collect()
    wait_until(
        lambda: not threads_of_gloo(),
        ENDED_S,
        f"end of gloo's threads that {what} left behind",
        lambda: ", ".join(threads_of_gloo()),
    )


if __name__ == "__main__":
    main()
