"""Query parameters that an address doesn't have are refused: one that is misspelt must not silently do nothing."""

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.errors import ApiError, field_problem, shown


def check_query(request: Request) -> None:
    """Refuses what the route that answers doesn't know.

    Raises:
        ApiError: 422 that names what it knows.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute), "only the API's own routes are authorized"
    known = parameters_of(route)
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        told = f"known here are {', '.join(known)}" if known else "none is known here"
        problems = [
            field_problem(
                f"query.{name}", None, ", ".join(known) or "none", f"there is no such parameter; {told}"
            )
            for name in unknown
        ]
        detail = f"there is no query parameter {shown(unknown[0])} here; {told}"
        raise ApiError(422, "invalid-request", detail, errors=problems)


def parameters_of(route: APIRoute) -> list[str]:
    """Names of a route's query parameters, in its own order."""
    names: list[str] = []
    for parameter in route.dependant.query_params:
        model = parameter.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names += model.model_fields
        else:
            names.append(parameter.alias)
    return names
