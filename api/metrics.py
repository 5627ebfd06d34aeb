"""Figures for Prometheus: what requests cost, how the queue and the dispatchers stand, who watches.

Labels have few values whatever callers send: routes by their template, methods and statuses that HTTP knows, states.
Ids, paths and names are never labels. Every process has its own registry and counts for itself; what is read from the
database (the gauges of `ServiceState`) is the same for all.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import phantom_core
from services import census
from services.census import Census
from services.database import Database
from services.errors import ServiceError
from services.views import IngestResult

CONTENT_TYPE = CONTENT_TYPE_LATEST
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""Label of a method, or of a route, that the service doesn't have."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram's buckets."""


class ServiceMetrics:
    """All figures of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge("ghostwatt_build", "Which version runs.", ["version"], registry=self.registry)
        build.labels(phantom_core.__version__).set(1)
        self._requests = Counter(
            "ghostwatt_http_requests",
            "Requests by method, route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "ghostwatt_http_request_seconds",
            "Time until an answer began, by route.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        # As many as there are labels; looking one up by its labels costs more than counting.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._events = Counter(
            "ghostwatt_ingest_events",
            "Events of jobs by what became of them: accepted, duplicate, rejected.",
            ["outcome"],
            registry=self.registry,
        )
        self._points = Counter(
            "ghostwatt_ingest_points",
            "Points of series that jobs sent: metric, power.",
            ["series"],
            registry=self.registry,
        )

    def answered(self, method: str, route: str | None, status: int, began_s: float | None) -> None:
        """Counts one request.

        Args:
            method: As it was sent.
            route: Template of the route that answered; None if none did.
            status: The answer's; 0 if there was none.
            began_s: Seconds until the answer began; None if it never did.
        """
        known = route or OTHER
        series = (method if method in METHODS else OTHER, known, status)
        counter = self._counters.get(series)
        if counter is None:
            counter = self._counters[series] = self._requests.labels(*map(str, series))
        counter.inc()
        if began_s is not None:
            histogram = self._histograms.get(known)
            if histogram is None:
                histogram = self._histograms[known] = self._seconds.labels(known)
            histogram.observe(began_s)

    def ingested(self, result: IngestResult, *, metric_points: int, power_points: int = 0) -> None:
        """Counts one batch of events.

        Args:
            result: What became of them.
            metric_points: Of all of them.
            power_points: Likewise.
        """
        outcomes = {
            "accepted": result.accepted,
            "duplicate": result.duplicates,
            "rejected": sum(result.rejected.values()),
        }
        for outcome, count in outcomes.items():
            self._events.labels(outcome).inc(count)
        for series, count in (("metric", metric_points), ("power", power_points)):
            if count:
                self._points.labels(series).inc(count)

    def watch(self, database: Database, streams: Callable[[], int]) -> None:
        """Adds what is looked at only when somebody asks: once, when the service starts.

        Args:
            database: The service's.
            streams: Number of open event streams.
        """
        self.registry.register(ServiceState(database, streams))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)


class ServiceState(Collector):
    """Gauges that are read when they are asked for."""

    def __init__(self, database: Database, streams: Callable[[], int]) -> None:
        """Args: where to look; number of open event streams."""
        self._database = database
        self._streams = streams

    def describe(self) -> Iterable[Metric]:
        """Names nothing beforehand, so that registering does not look at the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All gauges; those of the database are left out while it does not answer."""
        yield _gauge("ghostwatt_event_streams", "Event streams that are open.", self._streams())
        pool = GaugeMetricFamily(
            "ghostwatt_database_connections",
            "Connections of this process: in_use, idle, limit.",
            labels=["state"],
        )
        usage = self._database.pool_usage()
        for state, count in (("in_use", usage.in_use), ("idle", usage.idle), ("limit", usage.limit)):
            pool.add_metric([state], count)
        yield pool
        try:
            found = census.take(self._database)
        except ServiceError:
            yield _gauge("ghostwatt_database_up", "Whether the database answers.", 0)
            return
        yield _gauge("ghostwatt_database_up", "Whether the database answers.", 1)
        yield from _of(found)


def _of(found: Census) -> Iterable[Metric]:
    states = GaugeMetricFamily("ghostwatt_experiments", "Experiments by state.", labels=["state"])
    for state, count in found.experiments.items():
        states.add_metric([state], count)
    yield states
    yield _gauge("ghostwatt_queue_paused", "Whether the queue is paused.", found.queue_paused)
    yield _gauge(
        "ghostwatt_expired_leases", "Leases that ran out and wait for another.", found.expired_leases
    )
    ages = [
        ("ghostwatt_oldest_queued_seconds", "How long the longest wait has lasted.", found.oldest_queued_s),
        ("ghostwatt_oldest_lease_seconds", "Age of the oldest lease under way.", found.oldest_lease_s),
        (
            "ghostwatt_dispatcher_heartbeat_age_seconds",
            "Since any dispatcher's last sign of life.",
            found.dispatcher_heartbeat_s,
        ),
    ]
    # An age of nothing is no age: the series is absent then, not 0.
    yield from (_gauge(name, text, age) for name, text, age in ages if age is not None)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
