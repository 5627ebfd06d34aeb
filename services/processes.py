"""Finding and ending every process that one of our own started, whatever became of its parents.

Ray's workers and jobs start sessions of their own, rename themselves (which overwrites the environment that
/proc shows) and outlive their parents by seconds. So three marks are used together: descent, the
session that the first process leads, and a variable in the environment that children inherit.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable

import psutil

log = logging.getLogger(__name__)


def family(leader: psutil.Process | None, session: int, variable: str, value: str) -> set[psutil.Process]:
    """All living processes that belong to a leader, itself included.

    Args:
        leader: The process that was started; None if it is gone.
        session: Id of the session that it led.
        variable: Name of the environment variable that marks its family.
        value: Its value, unique to this family.
    """
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        if _in_session(process, session) or _marked(process, variable, value):
            found.add(process)
    if leader is not None:
        found.add(leader)
    for process in list(found):
        try:
            found.update(process.children(recursive=True))
        except psutil.Error:
            continue
    return {process for process in found if process.is_running() and not _is_zombie(process)}


def end(processes: Iterable[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """Asks processes to end, then ends them.

    Args:
        processes: Which; a process id that has been given to another program since is left alone.
        grace_s: Seconds between asking and ending.

    Returns:
        Those that are still there (not permitted, or stuck in the kernel).
    """
    processes = list(processes)
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        _quietly(process.kill)
    _, alive = psutil.wait_procs(alive, timeout=5)
    return [process for process in alive if not _is_zombie(process)]


def wait_until_gone(processes: Iterable[psutil.Process], deadline_s: float) -> bool:
    """Waits for processes to be gone; whether they are."""
    end_at = time.monotonic() + deadline_s
    left = list(processes)
    while left and time.monotonic() < end_at:
        left = [process for process in left if process.is_running() and not _is_zombie(process)]
        time.sleep(0.05)
    return not left


def _in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except OSError:
        return False


def _marked(process: psutil.Process, variable: str, value: str) -> bool:
    try:
        return process.environ().get(variable) == value
    except (psutil.Error, OSError):
        return False


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except psutil.Error as error:
        log.debug("%s", error)
