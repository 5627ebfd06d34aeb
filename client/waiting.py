"""Until an experiment has ended: told of every change as it happens, or asked again and again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from client.errors import ServiceFailed, ServiceUnreachable, TimedOut
from client.event_feed import RECONNECT_S, EventFeed, NoEvents
from client.models import Experiment, ExperimentDetail

PATIENCE_S = 60.0
"""Seconds for which silence is taken for a restart."""
POLL_S = 1.0
"""Seconds between two looks at an experiment of which no events are to be had."""


@dataclass(frozen=True)
class Wait:
    """A wait for the end of one experiment, however it ends.

    Both ways raise `TimedOut` if it hadn't ended in time (it goes on), and `ServiceUnreachable` or
    `ServiceFailed` if the service did not answer for longer than `patience_s`.
    """

    experiment_id: str
    """The experiment."""
    look: Callable[[], ExperimentDetail]
    """Asks the service for it."""
    timeout_s: float | None
    """Longest wait in seconds; None waits for ever."""
    patience_s: float
    """Seconds for which a service that does not answer is asked again: it may be restarting."""
    on_change: Callable[[Experiment], None] | None
    """Called after every look."""
    sleep: Callable[[float], None]
    """Waits before the next try; may raise to give up."""

    def by_events(self, events: EventFeed) -> ExperimentDetail:
        """Looks whenever something happens.

        Args:
            events: Tells when; broken off, they are taken up again where they stopped, and where there are none the
                experiment is asked for.
        """
        end_s = self._end_s()
        last_answer_s, state = time.monotonic(), "not seen"
        while True:
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise self._timed_out(state)
            try:
                for _ in events.bursts(left_s):
                    experiment = self.look()
                    last_answer_s, state = time.monotonic(), experiment.state
                    if self._is_over(experiment):
                        return experiment
                    if end_s is not None and time.monotonic() >= end_s:
                        break
            except NoEvents:
                return replace(self, timeout_s=left_s).by_asking(POLL_S)
            except (ServiceUnreachable, ServiceFailed):
                silent_s = time.monotonic() - last_answer_s
                if silent_s >= self.patience_s and (end_s is None or time.monotonic() < end_s):
                    raise
            self.sleep(RECONNECT_S)

    def by_asking(self, poll_s: float) -> ExperimentDetail:
        """Looks again and again.

        Args:
            poll_s: Seconds between two looks.
        """
        end_s = self._end_s()
        last_answer_s, state = time.monotonic(), "not seen"
        while True:
            try:
                experiment = self.look()
            except (ServiceUnreachable, ServiceFailed):
                if time.monotonic() - last_answer_s >= self.patience_s:
                    raise
            else:
                last_answer_s, state = time.monotonic(), experiment.state
                if self._is_over(experiment):
                    return experiment
            if end_s is not None and time.monotonic() >= end_s:
                raise self._timed_out(state)
            self.sleep(poll_s)

    def _is_over(self, experiment: ExperimentDetail) -> bool:
        if self.on_change is not None:
            self.on_change(experiment)
        return experiment.is_terminal

    def _end_s(self) -> float | None:
        return None if self.timeout_s is None else time.monotonic() + self.timeout_s

    def _timed_out(self, state: str) -> TimedOut:
        return TimedOut(f"{self.experiment_id} was still {state} after {self.timeout_s:g} s; it goes on")
