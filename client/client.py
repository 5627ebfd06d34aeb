"""The Python client: one method per thing that the service does."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from client.errors import ServiceFailed, ServiceUnreachable, TimedOut
from client.event_feed import RECONNECT_S, EventFeed, NoEvents
from client.http import ANSWER_S, Http, Parameter
from client.models import (
    Answer,
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
from phantom_core.documents import parse_document
from phantom_core.spec import ExperimentSpec

DEFAULT_URL = "http://127.0.0.1:8411"
"""Where `ghostwatt serve` listens by default."""

PATIENCE_S = 60.0
"""Seconds for which `wait` takes silence for a restart."""

Model = TypeVar("Model", bound=Answer)
Spec = ExperimentSpec | Mapping[str, Any] | str


class FindingFilters(TypedDict, total=False):
    """What to find; see `GET /v1/findings`."""

    metric: str | None
    verdict: Sequence[str]
    saving_at_least: float | None
    strategy: str | None
    width_at_least: int | None
    width_at_most: int | None
    world_size: int | None
    dtype: str | None
    board: str | None
    tag: Sequence[str]
    equal_loss: bool
    measured: bool
    submitted_after: datetime | None
    submitted_before: datetime | None
    order: str


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
        response = self._http.request("POST", "/v1/experiments", document=_document(spec), headers=headers)
        return _parsed(Submitted, response)

    def validate(self, spec: Spec) -> Validation:
        """What a spec would need and cost, without running it."""
        return _parsed(
            Validation, self._http.request("POST", "/v1/experiments:validate", document=_document(spec))
        )

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
        cursor, left = None, limit
        while left is None or left > 0:
            query = {
                "state": state,
                "name": name,
                "tag": tag,
                "cursor": cursor,
                "limit": min(left or 100, 100),
            }
            page = _parsed(ExperimentPage, self._http.request("GET", "/v1/experiments", query=query))
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def experiment(self, experiment_id: str) -> ExperimentDetail:
        """One experiment with its spec."""
        return _parsed(ExperimentDetail, self._http.request("GET", _path(experiment_id)))

    def cancel(self, experiment_id: str) -> Submitted:
        """Asks for an experiment to end; it ends as `cancelled` once its job has stopped."""
        return _parsed(Submitted, self._http.request("POST", _path(experiment_id, "cancel")))

    def delete(self, experiment_id: str) -> None:
        """Deletes an experiment and all that was measured; one that runs is cancelled first."""
        self._http.request("DELETE", _path(experiment_id))

    def runs(self, experiment_id: str) -> list[Run]:
        """All runs of an experiment, by round and position."""
        runs: list[Run] = []
        cursor = None
        while True:
            query = {"cursor": cursor, "limit": 200}
            page = _parsed(RunPage, self._http.request("GET", _path(experiment_id, "runs"), query=query))
            runs += page.items
            cursor = page.next_cursor
            if cursor is None:
                return runs

    def run(self, run_id: str) -> Run:
        """One run."""
        return _parsed(Run, self._http.request("GET", f"/v1/runs/{_segment(run_id)}"))

    def metrics(self, run_id: str) -> MetricHistory:
        """The metrics of a run."""
        return _parsed(MetricHistory, self._http.request("GET", f"/v1/runs/{_segment(run_id)}/metrics"))

    def power(self, run_id: str) -> PowerHistory:
        """The sampled power during a run."""
        return _parsed(PowerHistory, self._http.request("GET", f"/v1/runs/{_segment(run_id)}/power"))

    def comparison(self, experiment_id: str, *, baseline: str | None = None) -> Comparison:
        """The answer: every arm against the baseline, paired by round.

        Args:
            experiment_id: The experiment.
            baseline: Arm to compare with; None takes the experiment's own.
        """
        query = {"baseline": baseline}
        return _parsed(Comparison, self._http.request("GET", _path(experiment_id, "comparison"), query=query))

    def findings(self, *, limit: int | None = None, **filters: Unpack[FindingFilters]) -> Iterator[Finding]:
        """Verdicts across experiments, fetched page by page as they are taken.

        ```python
        ghostwatt.findings(strategy="phantom", board="H100", saving_at_least=0.3, equal_loss=True)
        ```

        Args:
            limit: At most so many; None for all.
            filters: Which; all that are given must hold.
        """
        cursor, left = None, limit
        query = {name: _parameter(value) for name, value in filters.items()}
        while left is None or left > 0:
            page = _parsed(
                FindingPage,
                self._http.request(
                    "GET", "/v1/findings", query={**query, "cursor": cursor, "limit": min(left or 100, 100)}
                ),
            )
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def queue(self) -> Queue:
        """Whether the queue is paused, and how much waits."""
        return _parsed(Queue, self._http.request("GET", "/v1/queue"))

    def pause_queue(self, reason: str) -> Queue:
        """Lets no queued experiment begin until `resume_queue`; needs an admin key where keys are needed.

        Args:
            reason: For whoever wonders why nothing begins.
        """
        return _parsed(Queue, self._http.request("POST", "/v1/queue/pause", document={"reason": reason}))

    def resume_queue(self) -> Queue:
        """Ends the queue's pause; needs an admin key where keys are needed."""
        return _parsed(Queue, self._http.request("POST", "/v1/queue/resume"))

    def ready(self) -> Readiness:
        """Whether the service can do its work; asked once, since an unready service is an answer too."""
        response = self._http.request("GET", "/readyz", accept_statuses=frozenset({503}), tries=1)
        return _parsed(Readiness, response)

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
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        events = EventFeed(self._http, _path(experiment_id, "events"))
        last_answer_s, state = time.monotonic(), "not seen"
        while True:
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimedOut(f"{experiment_id} was still {state} after {timeout_s:g} s; it goes on")
            try:
                for _ in events.bursts(left_s):
                    experiment = self.experiment(experiment_id)
                    last_answer_s, state = time.monotonic(), experiment.state
                    if on_change is not None:
                        on_change(experiment)
                    if experiment.is_terminal:
                        return experiment
                    if end_s is not None and time.monotonic() >= end_s:
                        break
            except NoEvents:
                return self.wait(
                    experiment_id, timeout_s=left_s, patience_s=patience_s, on_change=on_change, sleep=sleep
                )
            except (ServiceUnreachable, ServiceFailed):
                silent_s = time.monotonic() - last_answer_s
                if silent_s >= patience_s and (end_s is None or time.monotonic() < end_s):
                    raise
            sleep(RECONNECT_S)

    def events(self, experiment_id: str, *, after: int | None = None) -> Iterator[Occurrence]:
        """What happens to an experiment, each thing once and in order, from its start to its end.

        Args:
            experiment_id: The experiment.
            after: Id of an occurrence to go on after; None begins at the start.

        Raises:
            ServiceUnreachable: The stream broke off; the last `id` that came takes it up again.
            GhostwattError: The service gives no stream.
        """
        feed = EventFeed(self._http, _path(experiment_id, "events"), after=after)
        while not feed.ended:
            try:
                for burst in feed.bursts(None):
                    yield from burst
            except NoEvents as error:
                raise error.cause from error

    def wait(
        self,
        experiment_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = 1.0,
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
        end = None if timeout_s is None else time.monotonic() + timeout_s
        last_answer_s, state = time.monotonic(), "not seen"
        while True:
            try:
                experiment = self.experiment(experiment_id)
            except (ServiceUnreachable, ServiceFailed):
                if time.monotonic() - last_answer_s >= patience_s:
                    raise
            else:
                last_answer_s, state = time.monotonic(), experiment.state
                if on_change is not None:
                    on_change(experiment)
                if experiment.is_terminal:
                    return experiment
            if end is not None and time.monotonic() >= end:
                raise TimedOut(f"{experiment_id} was still {state} after {timeout_s:g} s; it goes on")
            sleep(poll_s)


def _parameter(value: object) -> Parameter:
    """A filter's value as a parameter of a query."""
    match value:
        case bool():
            return "true" if value else None
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [str(item) for item in value]
        case None:
            return None
        case _:
            return str(value)


def _document(spec: Spec) -> Any:
    if isinstance(spec, ExperimentSpec):
        return spec.model_dump(mode="json")
    return parse_document(spec) if isinstance(spec, str) else dict(spec)


def _parsed(model: type[Model], response: httpx.Response) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ServiceFailed(
            f"{response.request.url} gave an answer that this client can't read ({place}: {first['msg']}); "
            "are service and client of one version?"
        ) from error


def _path(experiment_id: str, *more: str) -> str:
    return "/".join(["/v1/experiments", _segment(experiment_id), *more])


def _segment(text: str) -> str:
    """An id as one path segment, whatever is in it."""
    return quote(text, safe="") or "-"
