"""The Python client: one method per thing that the service does."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from client.answers import Model, experiment_path, parsed, run_path
from client.event_feed import EventFeed
from client.finding_filters import FindingFilters, as_query
from client.http import ANSWER_S, Http, Parameter
from client.models import (
    Comparison,
    Experiment,
    ExperimentDetail,
    ExperimentPage,
    Finding,
    FindingPage,
    MetricHistory,
    Occurrence,
    PowerHistory,
    Queue,
    Readiness,
    Run,
    RunPage,
    Submitted,
    Validation,
)
from client.paging import paged
from client.waiting import PATIENCE_S, POLL_S, Wait
from phantom_core.documents import parse_document
from phantom_core.spec import ExperimentSpec

DEFAULT_URL = "http://127.0.0.1:8411"
"""Where `ghostwatt serve` listens by default."""

Spec = ExperimentSpec | Mapping[str, Any] | str


class GhostwattClient:
    """A client of one service; a context manager.

    ```python
    with GhostwattClient() as ghostwatt:
        submitted = ghostwatt.submit(Path("experiment.yaml").read_text())
        ghostwatt.wait(submitted.id)
        print(ghostwatt.comparison(submitted.id).arms[0].primary.sentence)
    ```
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        answer_s: float = ANSWER_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            url: Address of the service.
            api_key: Key, where the service needs one.
            answer_s: Longest wait for the next byte of an answer, in seconds.
            transport: Replaces the network, for tests.

        Raises:
            GhostwattError: The URL can't be used.
        """
        self._http = Http(url, api_key, answer_s=answer_s, transport=transport)

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._http.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.__exit__(kind, error, trace)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> Submitted:
        """Submits an experiment; made once, even if a broken connection makes this send it again.

        Args:
            spec: A spec, a mapping, or JSON or YAML text.
            idempotency_key: Ties repeated calls together, also of different processes; None makes one up.

        Raises:
            BadSpec: The spec can't be run as it is.
            ValueError: The text is neither JSON nor YAML.
            GhostwattError: As every method: `ServiceUnreachable`, `Refused`, `ServiceFailed`.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._post(Submitted, "/v1/experiments", document=_document(spec), headers=headers)

    def validate(self, spec: Spec) -> Validation:
        """What a spec would need and cost, without running it."""
        return self._post(Validation, "/v1/experiments:validate", document=_document(spec))

    def experiments(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Experiment]:
        """Experiments, newest first, fetched page by page as they are taken.

        Args:
            state: Only those in this state.
            name: Only those whose name contains this.
            tag: Only those with this tag, as `key=value`.
            limit: At most so many; None for all.
        """
        query: dict[str, Parameter] = {"state": state, "name": name, "tag": tag}
        return paged(
            lambda cursor, size: self._get(
                ExperimentPage, "/v1/experiments", {**query, "cursor": cursor, "limit": size}
            ),
            limit,
        )

    def experiment(self, experiment_id: str) -> ExperimentDetail:
        """One experiment with its spec."""
        return self._get(ExperimentDetail, experiment_path(experiment_id))

    def cancel(self, experiment_id: str) -> Submitted:
        """Asks for an experiment to end; it ends as `cancelled` once its job has stopped."""
        return self._post(Submitted, experiment_path(experiment_id, "cancel"))

    def delete(self, experiment_id: str) -> None:
        """Deletes an experiment and all that was measured; one that runs is cancelled first."""
        self._http.request("DELETE", experiment_path(experiment_id))

    def runs(self, experiment_id: str) -> list[Run]:
        """All runs of an experiment, by round and position."""
        path = experiment_path(experiment_id, "runs")
        return list(
            paged(
                lambda cursor, size: self._get(RunPage, path, {"cursor": cursor, "limit": size}),
                None,
                page_size=200,
            )
        )

    def run(self, run_id: str) -> Run:
        """One run."""
        return self._get(Run, run_path(run_id))

    def metrics(self, run_id: str) -> MetricHistory:
        """The metrics of a run."""
        return self._get(MetricHistory, run_path(run_id, "metrics"))

    def power(self, run_id: str) -> PowerHistory:
        """The sampled power during a run."""
        return self._get(PowerHistory, run_path(run_id, "power"))

    def comparison(self, experiment_id: str, *, baseline: str | None = None) -> Comparison:
        """The answer: every arm against the baseline, paired by round.

        Args:
            experiment_id: The experiment.
            baseline: Arm to compare with; None takes the experiment's own.
        """
        return self._get(Comparison, experiment_path(experiment_id, "comparison"), {"baseline": baseline})

    def findings(self, *, limit: int | None = None, **filters: Unpack[FindingFilters]) -> Iterator[Finding]:
        """Verdicts across experiments, fetched page by page as they are taken.

        ```python
        ghostwatt.findings(strategy="phantom", board="H100", saving_at_least=0.3, equal_loss=True)
        ```

        Args:
            limit: At most so many; None for all.
            filters: Which; all that are given must hold.
        """
        query = as_query(filters)
        return paged(
            lambda cursor, size: self._get(
                FindingPage, "/v1/findings", {**query, "cursor": cursor, "limit": size}
            ),
            limit,
        )

    def queue(self) -> Queue:
        """Whether the queue is paused, and how much waits."""
        return self._get(Queue, "/v1/queue")

    def pause_queue(self, reason: str) -> Queue:
        """Lets no queued experiment begin until `resume_queue`; needs an admin key where keys are needed.

        Args:
            reason: For whoever wonders why nothing begins.
        """
        return self._post(Queue, "/v1/queue/pause", document={"reason": reason})

    def resume_queue(self) -> Queue:
        """Ends the queue's pause; needs an admin key where keys are needed."""
        return self._post(Queue, "/v1/queue/resume")

    def ready(self) -> Readiness:
        """Whether the service can do its work; asked once, since an unready service is an answer too."""
        response = self._http.request("GET", "/readyz", accept_statuses=frozenset({503}), tries=1)
        return parsed(Readiness, response)

    def watch(
        self,
        experiment_id: str,
        *,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
        on_change: Callable[[Experiment], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> ExperimentDetail:
        """Waits as `wait` does, but is told of every change as it happens instead of asking each second.

        A stream that breaks is taken up again where it stopped; a service that gives none is asked by `wait`.

        Args:
            experiment_id: The experiment.
            timeout_s: Longest wait in seconds; None waits for ever.
            patience_s: Seconds for which a service that does not answer is asked again: it may be restarting.
            on_change: Called after every change.
            sleep: Waits before the next try after a break.

        Raises:
            TimedOut: It hadn't ended in time; it goes on.
            ServiceUnreachable: The service did not answer for longer than `patience_s`.
        """
        look = partial(self.experiment, experiment_id)
        wait = Wait(experiment_id, look, timeout_s, patience_s, on_change, sleep)
        return wait.by_events(EventFeed(self._http, experiment_path(experiment_id, "events")))

    def events(self, experiment_id: str, *, after: int | None = None) -> Iterator[Occurrence]:
        """What happens to an experiment, each thing once and in order, from its start to its end.

        Args:
            experiment_id: The experiment.
            after: Id of an occurrence to go on after; None begins at the start.

        Raises:
            ServiceUnreachable: The stream broke off; the last `id` that came takes it up again.
            GhostwattError: The service gives no stream.
        """
        return EventFeed(self._http, experiment_path(experiment_id, "events"), after=after).occurrences()

    def wait(
        self,
        experiment_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
        patience_s: float = PATIENCE_S,
        on_change: Callable[[Experiment], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> ExperimentDetail:
        """Waits until an experiment has ended, however it ends.

        Args:
            experiment_id: The experiment.
            timeout_s: Longest wait in seconds; None waits for ever.
            poll_s: Seconds between two looks.
            patience_s: Seconds for which a service that does not answer is asked again: it may be restarting.
            on_change: Called with every look.
            sleep: Waits between two looks; may raise to give up.

        Raises:
            TimedOut: It hadn't ended in time; it goes on.
            ServiceUnreachable: The service did not answer for longer than `patience_s`.
        """
        look = partial(self.experiment, experiment_id)
        wait = Wait(experiment_id, look, timeout_s, patience_s, on_change, sleep)
        return wait.by_asking(poll_s)

    def _get(self, model: type[Model], path: str, query: Mapping[str, Parameter] | None = None) -> Model:
        return parsed(model, self._http.request("GET", path, query=query))

    def _post(
        self, model: type[Model], path: str, *, document: Any = None, headers: Mapping[str, str] | None = None
    ) -> Model:
        return parsed(model, self._http.request("POST", path, document=document, headers=headers))


def _document(spec: Spec) -> Any:
    if isinstance(spec, ExperimentSpec):
        return spec.model_dump(mode="json")
    return parse_document(spec) if isinstance(spec, str) else dict(spec)
