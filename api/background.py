"""What works while HTTP is served: the seam through which the dispatcher is handed to the app."""

from typing import Protocol

from phantom_core.checks import Capacity


class Background(Protocol):
    """A worker beside the web server: `services.dispatcher.Dispatcher`, or a test's own."""

    def start(self) -> None:
        """Starts working in threads or processes of its own; returns soon, or raises if it never can."""

    def stop(self) -> None:
        """Ends everything that `start` began and waits until it is gone; safe to call twice."""

    def heartbeat_age_s(self) -> float | None:
        """Seconds since the last sign of life; None before the first."""

    def capacity(self) -> Capacity | None:
        """What the cluster has; None while that isn't known."""

    def trouble(self) -> str | None:
        """What of its work fails for reasons that nobody expected, in one sentence; None if nothing does."""

    def cluster_problem(self) -> str | None:
        """Why no experiment can run now, in one sentence; None if one can."""
