"""What the commands of the service's process share: its settings, and how it says that it can't."""

import os
from typing import NoReturn

import typer

from services.settings import Settings, SettingsError

EXIT_USAGE = 2
"""The settings or the command line are wrong."""
EXIT_NOT_STARTED = 3
"""The port, the database or the cluster can't be had."""


def read_settings() -> Settings:
    """The settings of the environment; ends the process with 2 if they can't be used."""
    try:
        return Settings.from_environment(os.environ)
    except SettingsError as error:
        refuse(str(error), EXIT_USAGE)


def refuse(message: str, code: int) -> NoReturn:
    """Says why and ends the process."""
    typer.echo(f"ghostwatt: {message}", err=True)
    raise SystemExit(code)
