"""Docstrings of fields as their descriptions in a JSON schema, looked up when a schema is asked for.

Pydantic's own option reads the source of every class while it is made, which is a fifth of the time that the service
takes to start; most processes never ask for a schema.
"""

import ast
import inspect
import sys
from functools import cache
from typing import Any

from pydantic import BaseModel


def describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Adds what is missing of descriptions to a model's schema; for `json_schema_extra` of a model's configuration.

    Args:
        schema: The model's JSON schema, changed in place.
        model: The model; docstrings of its bases count, too.
    """
    properties = schema.get("properties", {})
    for name, text in _with_bases(model).items():
        field = model.model_fields.get(name)
        place = properties.get(name if field is None or field.alias is None else field.alias)
        if place is not None:
            place.setdefault("description", text)


def description_of(model: type[BaseModel], name: str) -> str:
    """What a field says of itself, in its own words or in a docstring; empty if it says nothing."""
    return model.model_fields[name].description or _with_bases(model).get(name, "")


def docstrings_of(model: type) -> dict[str, str]:
    """Docstrings below a class's own annotated names; none where its source is not at hand."""
    return _docstrings(model.__module__).get(model.__qualname__, {})


def _with_bases(model: type[BaseModel]) -> dict[str, str]:
    own = model.__mro__[: model.__mro__.index(BaseModel)]
    return {name: text for owner in reversed(own) for name, text in docstrings_of(owner).items()}


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value)
    return found
