"""What a request costs before Ghostwatt does anything: two routes that store nothing, for `benchmarks/service.py`."""

from typing import Any

from fastapi import Body, FastAPI

app = FastAPI()


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answers once the server is up."""
    return {"status": "ok"}


@app.post("/v1/experiments", status_code=202)
async def submit(document: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008 - FastAPI's notation
    """Reads the JSON of a submission and answers."""
    return {"name": document.get("name")}
