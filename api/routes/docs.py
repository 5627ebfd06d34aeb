"""The API's description for programs (`/openapi.json`) and for people (`/docs`)."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from api import pages
from api.auth import needs
from api.responses import cacheable_json

DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI writes style attributes and embeds its icons; it still may load nothing from elsewhere."""

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json", openapi_extra=needs("read"))
def document(request: Request) -> Response:
    """The OpenAPI document."""
    return cacheable_json(request, bytes(JSONResponse(request.app.openapi()).body))


@router.get("/docs", openapi_extra=needs("read"))
def docs() -> HTMLResponse:
    """Swagger UI, served from the installed package: no page of Ghostwatt loads anything from elsewhere."""
    return pages.render("docs.html", headers={"Content-Security-Policy": DOCS_POLICY})
