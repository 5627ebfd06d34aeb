"""What can go wrong between a client and the service, and the exit code that a script sees for it.

GhostwattError
├── ServiceUnreachable   nothing answers at the address, or not in time
├── ServiceFailed        the service answered 5xx, or something that isn't Ghostwatt
├── Refused              the service answered 4xx; carries the problem document
│   └── BadSpec          ... because the spec is wrong
├── NotStarted           a service started by the command did not come up
└── TimedOut             waited as long as was asked; the experiment goes on
"""

from enum import IntEnum

from client.models import Problem


class ExitCode(IntEnum):
    """What the `ghostwatt` command ends with."""

    OK = 0
    """Done; of `watch` and `demo`: the experiment succeeded."""
    EXPERIMENT_ENDED_BADLY = 1
    """The experiment failed, was cancelled or lost."""
    USAGE = 2
    """The command line or the spec is wrong."""
    UNREACHABLE = 3
    """No service answers at the address, or it could not be started."""
    NOT_COMPARABLE = 4
    """There is no verdict: no round is complete yet, or no pair of arms is comparable."""
    REFUSED = 5
    """The service refused: unknown id, missing key, a state that doesn't allow it."""
    SERVICE_FAILED = 6
    """The service met an error of its own."""
    TIMED_OUT = 7
    """`--timeout` passed before the experiment ended; it goes on."""
    INTERRUPTED = 130
    """Ctrl-c before the answer."""
    TERMINATED = 143
    """SIGTERM before the answer."""


class GhostwattError(Exception):
    """Base of the client's errors; the message is for the person at the keyboard."""

    exit_code: ExitCode = ExitCode.SERVICE_FAILED


class ServiceUnreachable(GhostwattError):
    """Nothing answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class ServiceFailed(GhostwattError):
    """The service met an error of its own, or isn't Ghostwatt."""


class Refused(GhostwattError):
    """The service refused the request."""

    exit_code = ExitCode.REFUSED

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class BadSpec(Refused):
    """The spec can't be run as it is; `problem.errors` names the fields."""

    exit_code = ExitCode.USAGE


class NotStarted(GhostwattError):
    """A service that the command started did not come up."""

    exit_code = ExitCode.UNREACHABLE


class TimedOut(GhostwattError):
    """The experiment hadn't ended when the time was up."""

    exit_code = ExitCode.TIMED_OUT
