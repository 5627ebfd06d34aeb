"""`python -m api`: starts one of the service's commands."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Runs the command that the arguments name."""
    # Nothing of what is imported is ever given back: to look through all of it again and again is a tenth of the start.
    gc.disable()
    with models_built_when_needed():
        # FastAPI's models of an OpenAPI document, a twentieth of the start: only a process that is asked for the
        # document needs them.
        import fastapi.openapi.models  # noqa: F401
    from api.commands import commands

    gc.freeze()
    gc.enable()
    commands()


@contextmanager
def models_built_when_needed() -> Iterator[None]:
    """Pydantic models that are defined meanwhile get their validators when they are first used."""
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]


if __name__ == "__main__":
    main()
