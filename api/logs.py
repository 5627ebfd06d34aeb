"""What the service writes to its log: lines for people by default, one JSON object a line on request.

Nothing secret gets in. Bodies, queries and headers are never handed to the log; and whatever a message, an argument
or a traceback holds all the same (a driver's error with the database's URL, a key that somebody pasted into a path) is
blotted out by `scrubbed` when the line is written, in both formats.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from services.scrubbing import scrubbed

LogFormat = Literal["text", "json"]

FIELDS = (
    "request_id",
    "method",
    "route",
    "path",
    "status",
    "duration_ms",
    "experiment_id",
    "run_id",
    "caller",
)
"""What a record may carry besides its message (`extra`); nothing else of it is written."""


class TextFormatter(logging.Formatter):
    """A line for people, with its traceback below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second = (0, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        """The moment, to the millisecond; a second's words are made once."""
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(self.default_time_format, self.converter(second))
            self._second = (second, text)
        return f"{text},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return scrubbed(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object on one line: time, level, logger, message, and those of `FIELDS` that are known."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrubbed(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = scrubbed(value) if isinstance(value, str) else value
        if record.exc_info:
            line["traceback"] = scrubbed(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(form: LogFormat, *, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Sets this process's log up; for the process that serves, not for whoever imports the app.

    Args:
        form: For people or for programs.
        stream: Where to; standard error by default.
        level: Least level that is written.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    # No format asks which process and thread it was, and every line would find out.
    logging.logProcesses = logging.logThreads = logging.logMultiprocessing = False
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for chatty in ("httpx", "httpcore", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def request_fields(scope: Mapping[str, Any]) -> dict[str, str]:
    """Ids that a request's path names."""
    parameters = scope.get("path_params") or {}
    return {
        name: value for name in ("experiment_id", "run_id") if isinstance(value := parameters.get(name), str)
    }
