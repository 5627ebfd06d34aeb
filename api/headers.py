"""A request's headers as the checks in front look at them: Starlette's mapping costs each look ten times as much."""

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of a name, which is in lower case; None if there is none."""
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text
    return None


def header_list(scope: Scope, name: bytes) -> list[str]:
    """All headers of a name, which is in lower case."""
    return [value.decode("latin-1") for given, value in scope["headers"] if given == name]
