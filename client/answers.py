"""From a response to the model of its answer, and from an id to its path."""

from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from client.errors import ServiceFailed
from client.models import Answer

Model = TypeVar("Model", bound=Answer)


def parsed(model: type[Model], response: httpx.Response) -> Model:
    """The answer in a response.

    Args:
        model: What it should be.
        response: What the service sent.

    Raises:
        ServiceFailed: It is something else.
    """
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ServiceFailed(
            f"{response.request.url} gave an answer that this client can't read ({place}: {first['msg']}); "
            "are service and client of one version?"
        ) from error


def experiment_path(experiment_id: str, *more: str) -> str:
    """Path of an experiment, or of what is below it."""
    return "/".join(["/v1/experiments", _segment(experiment_id), *more])


def run_path(run_id: str, *more: str) -> str:
    """Path of a run, or of what is below it."""
    return "/".join(["/v1/runs", _segment(run_id), *more])


def _segment(text: str) -> str:
    """An id as one path segment, whatever is in it."""
    return quote(text, safe="") or "-"
