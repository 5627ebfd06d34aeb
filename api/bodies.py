"""From a request's body to a spec: JSON or YAML by content type, not trusted to be small, flat or finite."""

import email.message
from typing import Annotated, Any, TypeVar

import pydantic_core
import yaml
from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from api.errors import ApiError, BodyTooLarge, FieldProblem, shown, validation_problems
from phantom_core.spec import ExperimentSpec

JSON_TYPES = frozenset({"application/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
MAX_YAML_BYTES = 256 * 1024
"""YAML is parsed in Python, at about 100 kB a second; what is longer can be sent as JSON."""
MAX_YAML_NODES = 200_000
"""Most nodes of a YAML document with its aliases written out: nine lines can stand for billions."""


Model = TypeVar("Model", bound=BaseModel)


async def raw_body(request: Request) -> bytes:
    """The body as it came, at most as long as `limits.RequestLimits` lets through."""
    return await request.body()


RawBody = Annotated[bytes, Depends(raw_body)]


def parse_spec(request: Request, body: bytes) -> ExperimentSpec:
    """The spec in a body.

    Raises:
        ApiError: 415 for another content type, 413 for YAML that is too long, 400 for text that is neither
            JSON nor YAML, 422 for a document that is no spec, with a problem per field.
    """
    return validate(ExperimentSpec, parse_document(request, body, YAML_TYPES | JSON_TYPES))


def parse_document(request: Request, body: bytes, types: frozenset[str]) -> Any:
    """The document in a body, as plain Python objects.

    Raises:
        ApiError: As `parse_spec`.
    """
    given = check_content_type(request, types)
    if not body:
        raise ApiError(400, "empty-body", "the body is empty; send the document that this address takes")
    return _from_json(body) if given in JSON_TYPES else _from_yaml(body)


def check_content_type(request: Request, types: frozenset[str]) -> str:
    """The body's content type, without its parameters.

    Raises:
        ApiError: 415 if it is none of `types`, or the charset is not UTF-8.
    """
    header = request.headers.get("content-type", "")
    message = email.message.Message()
    message["content-type"] = header
    given = message.get_content_type() if header else ""
    if given not in types:
        accepted = " or ".join(sorted(types & {"application/json", "application/yaml"}))
        detail = f"the body's content type is {shown(given) or 'not given'}; send {accepted}"
        raise ApiError(415, "unsupported-media-type", detail, headers={"Accept": ", ".join(sorted(types))})
    charset = message.get_content_charset("utf-8")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise ApiError(415, "unsupported-charset", f"the body's charset is {shown(charset)}; send UTF-8")
    return given


def validate(model: type[Model], document: Any) -> Model:
    """A document as a model.

    Raises:
        ApiError: 422 with a problem per field.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid_document(error) from error


def invalid_document(error: ValidationError) -> ApiError:
    """422 with a problem per field that Pydantic refused."""
    problems = validation_problems(error)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ApiError(
        422, "invalid-document", f"{problems[0].field}: {problems[0].message}{more}", errors=problems
    )


def _from_json(body: bytes) -> Any:
    """JSON by Pydantic's parser: bounded nesting, no lone surrogates; the model refuses NaN by field."""
    try:
        return pydantic_core.from_json(body, allow_inf_nan=True, cache_strings="keys")
    except ValueError as error:
        raise _unreadable("JSON", error) from error


def _from_yaml(body: bytes) -> Any:
    if len(body) > MAX_YAML_BYTES:
        raise BodyTooLarge(MAX_YAML_BYTES)
    try:
        # yaml.safe_load in two steps, since the nodes must be counted before they become objects.
        loader = yaml.SafeLoader(body.decode())
        root = loader.get_single_node()
        if root is not None and _expanded_nodes(root, {}, set()) > MAX_YAML_NODES:
            detail = f"the document has more than {MAX_YAML_NODES:,} nodes once its aliases are expanded"
            raise ApiError(
                422, "invalid-document", detail, errors=[FieldProblem(field="body", message=detail)]
            )
        return None if root is None else loader.construct_document(root)
    except RecursionError as error:
        raise _unreadable("YAML", ValueError("it is nested too deeply")) from error
    # PyYAML's constructors let through what they stumble over: `!!bool x` is a KeyError, `!!timestamp x` an
    # AttributeError, a date of month 99 a ValueError.
    except (yaml.YAMLError, ValueError, ArithmeticError, TypeError, LookupError, AttributeError) as error:
        raise _unreadable("YAML", error) from error


def _expanded_nodes(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """Nodes under a node when every alias is written out; a node that contains itself counts as endless."""
    if id(node) in above:
        return MAX_YAML_NODES + 1
    if id(node) not in known:
        above.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_expanded_nodes(child, known, above) for child in children)
        above.discard(id(node))
    return known[id(node)]


def _unreadable(language: str, error: Exception) -> ApiError:
    return ApiError(400, "unreadable-body", f"the body can't be read as {language}: {shown(str(error), 300)}")
