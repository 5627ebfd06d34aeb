"""What the commands share: reading a spec, printing JSON, and turning errors into sentences and exit codes."""

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import typer
from pydantic import BaseModel
from rich.text import Text

from client.consoles import messages
from client.errors import BadSpec, ExitCode, GhostwattError, Refused
from phantom_core.documents import parse_document

Parameters = ParamSpec("Parameters")


def reported(command: Callable[Parameters, ExitCode | None]) -> Callable[Parameters, None]:
    """Turns what a command returns or raises into an exit code, and errors into sentences."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except GhostwattError as error:
            _report(error)
            code = error.exit_code
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            # Whoever read the output has seen enough; at exit Python would stumble over the pipe once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = ExitCode.OK
        raise SystemExit(int(code or ExitCode.OK))

    return run


def read_document(file: Path) -> dict[str, object]:
    """The spec in a file, or in standard input for `-`.

    Raises:
        typer.BadParameter: It can't be read.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} can't be read: {error}", param_hint="FILE") from error
    try:
        return parse_document(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from error


def print_json(answer: BaseModel | Sequence[BaseModel]) -> None:
    """An answer, or a list of them, as the service gave it."""
    if isinstance(answer, BaseModel):
        print(answer.model_dump_json(indent=2))
    else:
        print(json.dumps([item.model_dump(mode="json") for item in answer], indent=2))


def _report(error: GhostwattError) -> None:
    console = messages()
    console.print(Text(f"ghostwatt: {error}"), soft_wrap=True)
    if isinstance(error, Refused):
        problems = error.problem.errors
        # The first problem is the detail already, unless a spec has its own summary.
        for problem in problems if isinstance(error, BadSpec) else problems[1:]:
            value = "" if problem.value is None else f" = {problem.value}"
            console.print(Text(f"  {problem.field}{value}: {problem.message}"), soft_wrap=True)
