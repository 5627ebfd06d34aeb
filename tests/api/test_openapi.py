import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from api.examples import SPEC
from api.routes import ROUTERS
from phantom_core.plan import make_plan
from phantom_core.spec import ExperimentSpec
from tests.api.serving import Service


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.http.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_route_that_is_not_a_page_is_described(document: dict[str, Any]) -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    described = {getattr(route, "path", "") for route in routes if getattr(route, "include_in_schema", False)}
    assert set(document["paths"]) == described
    assert {"/v1/experiments", "/v1/experiments:validate", "/internal/v1/events", "/readyz"} <= described


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in references(document):
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            assert name in part, reference
            part = part[name]


def test_every_operation_says_what_it_does_and_who_may(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["description"], name
        assert operation["x-ghostwatt-scope"] in ("nothing", "read", "submit", "admin", "ingest"), name
        assert operation["tags"], name


def test_every_refusal_is_a_problem_document(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400 and (name, status) != ("GET /readyz", "503"):
                assert set(response["content"]) == {"application/problem+json"}, (name, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_parameter_and_field_is_described(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (name, parameter["name"])
    for name, schema in document["components"]["schemas"].items():
        for field, description in schema.get("properties", {}).items():
            assert "description" in description or "const" in description or "$ref" in description, (
                name,
                field,
            )


def test_the_examples_are_specs_that_run(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/experiments"]["post"]["requestBody"]["content"]
    for example in (
        content["application/json"]["example"],
        yaml.safe_load(content["application/yaml"]["example"]),
    ):
        assert make_plan(ExperimentSpec.model_validate(example)).control_problems == ()
        assert example == SPEC


def test_the_example_is_accepted(service: Service) -> None:
    assert service.http.post("/v1/experiments", json=SPEC).status_code == 202


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"\w+", name) for name in names)
