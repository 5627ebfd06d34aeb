"""How a view becomes an answer: JSON with non-finite floats as text, an ETag, and 304 where nothing changed.

JSON has no NaN. Pydantic's models say how they travel (`ser_json_inf_nan="strings"`: `"NaN"`,
`"Infinity"`, `"-Infinity"`), but FastAPI's own encoding doesn't ask them and sends null, so views are
written here.
"""

import hashlib
from collections.abc import Mapping

from fastapi import Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from phantom_core.described import describe


class View(BaseModel):
    """Base of the answers that are defined here; those of `services.views` are like it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="strings", json_schema_extra=describe
    )


def answer(view: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view as JSON."""
    return Response(view.model_dump_json(), status, dict(headers or {}), media_type="application/json")


def cacheable(request: Request, view: BaseModel) -> Response:
    """A view as JSON with an ETag; 304 without a body if the caller has the same already.

    The tag is a hash of what is sent, so it can't be wrong; `no-cache` makes caches ask each time.
    """
    return cacheable_json(request, view.model_dump_json().encode())


def cacheable_json(request: Request, body: bytes) -> Response:
    """The same of JSON that is written already."""
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if _matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, media_type="application/json")


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    given = [part.strip().removeprefix("W/") for part in if_none_match.split(",")]
    return tag in given or given == ["*"]
