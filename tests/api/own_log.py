"""The log of this process, given back as it was: what a test sets up must not be written to after its end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_log() -> Iterator[None]:
    """Whatever is done to the root logger meanwhile is undone."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    shown = logging.logProcesses, logging.logThreads, logging.logMultiprocessing
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.logProcesses, logging.logThreads, logging.logMultiprocessing = shown
