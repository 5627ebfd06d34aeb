"""Hostile requests for a running service: by the project's own strategies, and by Schemathesis from its description."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import requests
import schemathesis
import yaml
from hypothesis import strategies as st
from schemathesis import GenerationMode

from api.examples import SPEC
from benchmarks.hostile_cases import (
    HEADER_NAMES,
    documents,
    event_ids,
    header_values,
    mutated,
    out_of_time,
    percent_encoded,
    queries,
    ranges,
    texts,
)
from benchmarks.http_load import Ask

JSON = {"Content-Type": "application/json"}
METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH")
LISTS = (
    "/v1/experiments",
    "/v1/findings",
    "/v1/experiments/{experiment_id}/comparison",
    "/v1/experiments/{experiment_id}/runs",
    "/v1/experiments/{experiment_id}/log",
    "/v1/runs/{run_id}/metrics",
    "/v1/runs/{run_id}/power",
    "/v1/runs/{run_id}/log",
    "/",
)


@dataclass(frozen=True)
class Known:
    """What a caller knows of the service: things that are there, and a job's token."""

    experiment_id: str
    """An experiment under way, with a log."""
    run_id: str
    """One of its runs."""
    token: str
    """Its job's."""
    batch: Mapping[str, Any]
    """Events that would be right."""


def strategies_of(known: Known, description: Mapping[str, Any]) -> dict[str, st.SearchStrategy[Ask]]:
    """Kinds of hostile requests by name."""
    return {
        **_own(known),
        "described, valid": described(known, description, GenerationMode.POSITIVE),
        "described, invalid": described(known, description, GenerationMode.NEGATIVE),
    }


def described(known: Known, description: Mapping[str, Any], mode: GenerationMode) -> st.SearchStrategy[Ask]:
    """Requests that Schemathesis makes of the OpenAPI document.

    Args:
        known: Its ids stand in half of the addresses; its token goes where a job's is asked for.
        description: The OpenAPI document.
        mode: Whether requests are as described, or break the description.
    """
    schema = schemathesis.openapi.from_dict(dict(description))

    def ask(case: Any, use_known: bool) -> Ask:
        if use_known and case.method != "DELETE" and not case.path.endswith("/cancel"):
            for name in ("experiment_id", "run_id"):
                if name in (case.path_parameters or {}):
                    case.path_parameters[name] = getattr(known, name)
        # Made-up keys are refused at the door; what is tried here lies behind it.
        case.headers.pop("Authorization", None)
        if case.path.startswith("/internal/"):
            case.headers["Authorization"] = f"Bearer {known.token}"
        prepared = requests.Request(**case.as_transport_kwargs(base_url="http://service")).prepare()
        body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
        return Ask(str(prepared.method), str(prepared.path_url), body, _plain(prepared.headers))

    return st.builds(ask, schema.as_strategy(generation_mode=mode), st.booleans())


def _plain(headers: Mapping[str, Any]) -> dict[str, str]:
    left_out = {"content-length", "user-agent", "accept-encoding", "connection", "transfer-encoding"}
    texts_of = {
        name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in headers.items()
    }
    return {name: value for name, value in texts_of.items() if name.lower() not in left_out}


def _own(known: Known) -> dict[str, st.SearchStrategy[Ask]]:
    names = {"experiment_id": known.experiment_id, "run_id": known.run_id}
    lists = st.sampled_from([path.format(**names) for path in LISTS])
    specs = st.sampled_from(["/v1/experiments", "/v1/experiments:validate"])
    logs = st.sampled_from([f"/v1/experiments/{known.experiment_id}/log", f"/v1/runs/{known.run_id}/log"])
    starts = st.sampled_from(
        [
            *(
                "/",
                "/v1/experiments/",
                "/v1/runs/",
                "/experiments/",
                "/static/",
                "/v1/queue/",
                "/v1/findings/",
            ),
            *("/internal/v1/experiments/", f"/v1/experiments/{known.experiment_id}/", "//", "/v1/../"),
        ]
    )
    pauses = st.one_of(documents, mutated({"reason": "new driver"}), st.fixed_dictionaries({"reason": texts}))
    job = {**JSON, "Authorization": f"Bearer {known.token}"}
    return {
        "any JSON": st.builds(lambda path, body: _post(path, body), specs, documents),
        "specs nearly right": st.builds(lambda path, body: _post(path, _short(body)), specs, mutated(SPEC)),
        "any YAML": st.builds(_yaml, specs, documents),
        "any bytes": st.builds(
            lambda path, body: Ask("POST", path, body, JSON), specs, st.binary(max_size=300)
        ),
        "any address": st.builds(
            lambda method, start, rest: Ask(method, start + percent_encoded(rest)),
            st.sampled_from(METHODS),
            starts,
            texts,
        ),
        "any query": st.builds(lambda path, query: Ask("GET", f"{path}?{_encoded(query)}"), lists, queries),
        "any header": st.builds(
            lambda path, name, value: Ask("GET", path, None, {name: value.decode("latin-1")}),
            lists,
            st.sampled_from(HEADER_NAMES),
            header_values,
        ),
        "log ranges": st.builds(lambda path, value: Ask("GET", path, None, {"Range": value}), logs, ranges),
        "event streams": st.builds(
            lambda value, where: Ask(
                "GET",
                f"/v1/experiments/{known.experiment_id}/events" + (f"?after={quote(value)}" if where else ""),
                None,
                {} if where else {"Last-Event-ID": value},
            ),
            event_ids,
            st.booleans(),
        ),
        "pauses": st.builds(lambda body: _post("/v1/queue/pause", body), pauses),
        "events nearly right": st.builds(
            lambda body: Ask("POST", "/internal/v1/events", json.dumps(body).encode(), job),
            mutated(known.batch),
        ),
        "events out of time": st.builds(
            lambda body: Ask("POST", "/internal/v1/events", json.dumps(body).encode(), job),
            out_of_time(known.batch),
        ),
    }


def _post(path: str, document: Any) -> Ask:
    return Ask("POST", path, json.dumps(document).encode(), JSON)


def _short(document: Any) -> Any:
    """An accepted spec shall be cheap to keep: how many rounds it has is not what is tried here."""
    if isinstance(document.get("measurement"), dict):
        document["measurement"]["rounds"] = 1
    return document


def _yaml(path: str, document: Any) -> Ask:
    text = yaml.safe_dump(document, allow_unicode=True)
    return Ask("POST", path, text.encode("utf-8", "surrogatepass"), {"Content-Type": "application/yaml"})


def _encoded(query: list[tuple[str, str]]) -> str:
    return urlencode([(name, value.encode("utf-8", "replace")[:500]) for name, value in query])
