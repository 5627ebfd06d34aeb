"""Finding and ending every process that one of our own started, whatever became of its parents.

Ray's workers and jobs start sessions of their own, rename themselves (which overwrites the environment that
/proc shows) and outlive their parents by seconds. So three marks are used together: descent, the
sessions that the family leads, and a variable in the environment that children inherit. A leader that
adopts orphans (`adopting_orphans`) keeps descent whole as long as it lives.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import psutil

log = logging.getLogger(__name__)

# prctl's PR_SET_CHILD_SUBREAPER is 36. What adopts must also reap, or every ended orphan stays a zombie.
_LAUNCHER = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
except (AttributeError, OSError):
    pass
child = os.fork()
if not child:
    os.execvp(sys.argv[1], sys.argv[1:])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(child, number))
ended = status = 0
while ended != child:
    ended, status = os.wait()
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
"""


def adopting_orphans(command: Sequence[str]) -> list[str]:
    """A command whose launcher adopts and reaps orphaned descendants, where the system can (Linux).

    The launcher passes SIGTERM, SIGINT and SIGHUP on and ends with the command's exit code.

    Args:
        command: Program and arguments.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]


def family(
    leader: psutil.Process | None, variable: str, value: str, sessions: Iterable[int] = ()
) -> set[psutil.Process]:
    """All living processes that belong to a leader, itself included.

    Process and session ids come round again, so no id alone makes a process one of the family: only descent
    from a member, the mark, or being in a session that a member is in. The caller and its session are never
    part of it.

    Args:
        leader: The process that was started, in a session of its own; None if it is gone.
        variable: Name of the environment variable that marks its family.
        value: Its value, unique to this family.
        sessions: Sessions known to be the family's, from a look a moment ago.
    """
    seen = {process.pid: process for process in psutil.process_iter() if not _is_zombie(process)}
    parents = {pid: _parent(process) for pid, process in seen.items()}
    sessions_by_pid = {pid: _session(process) for pid, process in seen.items()}
    members = {pid for pid, process in seen.items() if _marked(process, variable, value)}
    if leader is not None and leader.pid in seen and leader.is_running():
        members.add(leader.pid)
    size = -1
    while len(members) != size:
        size = len(members)
        known = {sessions_by_pid[pid] for pid in members}.union(sessions) - {_own_session(), None}
        members |= {pid for pid in seen if sessions_by_pid[pid] in known or parents[pid] in members}
    return {seen[pid] for pid in members if pid != os.getpid() and seen[pid].is_running()}


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


def sessions_of(processes: Iterable[psutil.Process]) -> frozenset[int]:
    """Ids of the sessions that processes are in, without the caller's own."""
    return frozenset(found for process in processes if (found := _session(process)) is not None) - {
        _own_session()
    }


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _own_session() -> int:
    return os.getsid(0)


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
