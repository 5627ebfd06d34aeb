"""Pages for people: autoescaped Jinja templates, one style sheet, no script but what starts Swagger UI."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from api.pages import filters

if TYPE_CHECKING:
    import jinja2

FOLDER = Path(__file__).parent


def install(app: FastAPI) -> None:
    """Serves the style sheet, and Swagger UI's files out of the package that ships them."""
    app.mount("/static/swagger-ui", StaticFiles(directory=swagger_ui_folder()), name="swagger-ui")
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")


def render(
    template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """A template as an answer."""
    text = _environment().get_template(template).render(**values)
    return HTMLResponse(text, status, dict(headers or {}))


def swagger_ui_folder() -> Path:
    """Where the `fastapi-offline` package keeps Swagger UI; found without importing it.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    spec = importlib.util.find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package fastapi-offline, which ships /docs' files, is not installed")
    return Path(spec.origin).parent / "static"


@cache
def _environment() -> "jinja2.Environment":
    # Not at the top: programs ask for no pages, and the first person to look at one waits for it unnoticed.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters.FILTERS)
    return environment
