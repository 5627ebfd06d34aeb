"""What is wrong with a spec, in one form, whoever found it. Torch-free.

SpecError   a ValueError that carries the problems
"""

import difflib
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from phantom_core.described import description_of
from phantom_core.spec import ExperimentSpec, SpecModel

Severity = Literal["error", "warning"]
Scalar = int | float | str | bool | None
_LONGEST_VALUE = 100


class SpecProblem(SpecModel):
    """One thing that is wrong with a spec, or worth knowing before it runs."""

    field: str
    """Dotted path into the spec, such as `arms.1.ghosts`."""
    value: Scalar
    """What it is, or asks for, in the limit's unit (bytes where memory is short); None if no one value."""
    limit: int | float | str | None
    """What it may be; None if there is no one number for it."""
    message: str
    """Value, limit and way out, in a sentence."""
    severity: Severity = "error"
    """`error`: the experiment can't run so; `warning`: it can."""


class SpecError(ValueError):
    """A spec can't run as it is."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(problems)
        """What is wrong, one for each."""
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in problems))


def problems_of(
    error: ValidationError, model: type[BaseModel] = ExperimentSpec, *, most: int | None = None
) -> list[SpecProblem]:
    """Pydantic's findings as problems: fields by the path a user wrote, values short, with a way out.

    Args:
        error: What `load_spec` or `model_validate` raised.
        model: The model that was validated.
        most: Only the first so many findings; a hostile document has hundreds of thousands. None gives all.

    Returns:
        One problem for each finding. Non-finite values are given as text, so that JSON can carry them.
    """
    problems = []
    for item in error.errors(include_url=False)[:most]:
        path, owner = _walk(model, item["loc"])
        name = path[-1] if path else ""
        context = item.get("ctx") or {}
        value = item.get("input")
        shown = _scalar(value) if item["type"] != "missing" else None
        problems.append(
            SpecProblem(
                field=".".join(path) or "spec",
                value=shown,
                limit=_limit(context),
                message=_message(item["type"], item["msg"], name, value, context, owner),
            )
        )
    return problems


def _walk(model: type[BaseModel], location: Sequence[int | str]) -> tuple[list[str], type[BaseModel] | None]:
    """The path as a user wrote it, without union tags, and the model that the last part belongs to."""
    path: list[str] = []
    owner: type[BaseModel] | None = model
    choices: list[Any] = [model]
    for part in location:
        tagged = [choice for choice in choices if isinstance(part, str) and _has_tag(choice, part)]
        if len(choices) > 1 and tagged:
            choices = tagged
            continue
        path.append(str(part))
        owner = choices[0] if len(choices) == 1 and _is_model(choices[0]) else None
        if owner is not None and isinstance(part, str) and part in owner.model_fields:
            choices = _models(owner.model_fields[part].annotation)
        elif not isinstance(part, int):
            choices = []
    return path, owner


def _models(annotation: Any) -> list[Any]:
    """The models that a field may hold, through lists, unions and annotations."""
    if _is_model(annotation):
        return [annotation]
    if get_origin(annotation) in (list, tuple, Union, types.UnionType, Annotated):
        return [model for part in get_args(annotation) for model in _models(part)]
    return []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(
        tag in get_args(field.annotation)
        for name, field in model.model_fields.items()
        if name in ("kind", "strategy")
    )


def _message(
    kind: str, text: str, name: str, value: object, context: dict[str, Any], owner: type[BaseModel] | None
) -> str:
    fields = list(owner.model_fields) if owner is not None else []
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(name, fields, n=1)
        guess = f"; perhaps {close[0]!r} is meant" if close else ""
        known = f"; known are {', '.join(fields)}" if fields else ""
        return f"{name!r} is no field here{guess}{known}"
    if kind == "missing":
        meaning = description_of(owner, name) if owner is not None and name in fields else ""
        return f"{name!r} is missing and has no default; add it{': ' + meaning if meaning else ''}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = str(context.get("discriminator", "kind")).strip("'")
        given = context.get("tag")
        if given is None:
            return f"{tag!r} is missing, which says what the other fields mean; add it"
        return f"{tag} = {given!r} is unknown; use one of {context['expected_tags']}"
    if kind == "value_error":
        return str(context.get("error", text))
    if kind == "string_pattern_mismatch":
        return (
            f"{name} = {_short(value)} has characters that can't be there; it must match {context['pattern']}"
        )
    return f"{name} = {_short(value)}: {text.replace('Input should', 'it must', 1)}"


def _limit(context: dict[str, Any]) -> int | float | str | None:
    for key in ("ge", "gt", "le", "lt", "min_length", "max_length", "expected", "expected_tags", "pattern"):
        if key in context:
            limit = context[key]
            return limit if isinstance(limit, int | float) else str(limit)
    return None


def _scalar(value: object) -> Scalar:
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    return value[:_LONGEST_VALUE] if isinstance(value, str) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
