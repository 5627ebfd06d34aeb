"""Where the command talks: answers on standard output, everything else on standard error."""

import sys

from rich.console import Console

PIPE_WIDTH = 240
"""Columns of output that goes to no terminal: nothing may be squeezed into a width that nobody looks at."""


def output() -> Console:
    """Standard output, for answers."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def messages() -> Console:
    """Standard error, for progress and complaints."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, highlight=False)
