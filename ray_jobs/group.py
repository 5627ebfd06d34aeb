"""A worker group between two experiments: it asks the service for the next, and tells of its own end."""

import logging
import time
from typing import Literal

import httpx
from pydantic import ValidationError

from phantom_core.protocol import GroupEnded, NextAnswer, NextRequest
from ray_jobs.environment import GroupEnvironment, JobEnvironment
from ray_jobs.service import REFUSALS, Service

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.5
REQUEST_TIMEOUT_S = 10.0
PATIENCE_S = 30.0
"""Seconds without a usable answer after which a group ends by itself: nobody knows that it holds its boards."""


def next_job(
    group: GroupEnvironment,
    finished: str,
    device: Literal["cuda", "cpu"],
    *,
    ask_every_s: float = ASK_EVERY_S,
    patience_s: float = PATIENCE_S,
) -> JobEnvironment | None:
    """Waits until the service has another experiment for the group.

    Args:
        group: Who asks.
        finished: The experiment that it has just made.
        device: Where its ranks run.
        ask_every_s: Seconds between two questions.
        patience_s: Seconds to go on asking without an answer.

    Returns:
        The experiment with its own token; None if the group is to end.
    """
    question = NextRequest(group_id=group.group_id, finished=finished, device=device)
    heard_s = time.monotonic()
    with Service(group.urls, group.token, REQUEST_TIMEOUT_S) as service:
        while True:
            answer = _ask(service, question)
            if answer is not None:
                heard_s = time.monotonic()
                if answer.action == "end":
                    return None
                if answer.action == "begin" and answer.experiment_id and answer.token:
                    return JobEnvironment(
                        group.service_url, answer.experiment_id, answer.token, other_urls=group.other_urls
                    )
            elif time.monotonic() - heard_s > patience_s:
                log.warning("the service has not answered for %.0f s; the worker group ends", patience_s)
                return None
            time.sleep(ask_every_s)


def tell_end(group: GroupEnvironment, told: GroupEnded, deadline_s: float) -> bool:
    """Tells the service that the group has ended, again and again until `deadline_s` is over.

    Returns:
        Whether the service knows; it finds out by itself otherwise, if later.
    """
    end = time.monotonic() + deadline_s
    with Service(group.urls, group.token, REQUEST_TIMEOUT_S) as service:
        while True:
            try:
                response = service.request(
                    "POST", "/internal/v1/group-ended", json=told.model_dump(mode="json")
                )
                if response.is_success or response.status_code in REFUSALS:
                    return response.is_success
                problem = f"the service answered {response.status_code}"
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            if time.monotonic() > end:
                log.error("the service was not told how the worker group ended: %s", problem)
                return False
            time.sleep(1.0)


def _ask(service: Service, question: NextRequest) -> NextAnswer | None:
    """None if there was no usable answer."""
    try:
        response = service.request("POST", "/internal/v1/next", json=question.model_dump(mode="json"))
        if response.status_code in REFUSALS:
            log.warning("the service refuses the worker group: %d", response.status_code)
            return NextAnswer(action="end")
        if response.is_success:
            return NextAnswer.model_validate_json(response.content)
        log.warning("asking for work: the service answered %d", response.status_code)
    except (httpx.HTTPError, ValidationError) as error:
        log.warning("asking for work: %s", type(error).__name__)
    return None
