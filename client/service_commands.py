"""Commands that start the service's own process: it has the database, the command has not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from client.errors import ExitCode
from client.service_process import ServiceProcess, service_environment
from client.stopping import Stopped, stop_requests

key_commands = typer.Typer(
    no_args_is_help=True, help="Makes, lists and revokes API keys. Works on the service's database itself."
)


DataDir = Annotated[
    Path | None,
    typer.Option(help="The service's folder, where it was started with one (`serve --data-dir`)."),
]


def run_service(host: str | None, port: int | None, data_dir: Path | None) -> ExitCode:
    """Serves until a signal, and ends the service gently.

    Args:
        host: Address to listen on; None leaves it to the environment.
        port: Likewise.
        data_dir: Likewise.

    Returns:
        OK after a signal, else what the service ended with.
    """
    given = {
        "GHOSTWATT_HOST": host,
        "GHOSTWATT_PORT": None if port is None else str(port),
        "GHOSTWATT_DATA_DIR": None if data_dir is None else str(data_dir.absolute()),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    with stop_requests() as stop, ServiceProcess(service_environment(settings)) as service:
        try:
            while (code := service.exit_code()) is None:
                stop.sleep(0.5)
        except Stopped:
            return ExitCode.OK
        return ExitCode(code) if code in list(ExitCode) else ExitCode.SERVICE_FAILED


@key_commands.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for, to tell it from others.")],
    scope: Annotated[
        list[str],
        typer.Option(help="read, submit (includes read) or admin (includes both); may be repeated."),
    ],
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires; never by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Makes a key and prints it, for the only time."""
    arguments = ["create", "--name", name, *(part for one in scope for part in ("--scope", one))]
    _keys([*arguments, *(["--days", str(days)] if days else []), *(["--json"] if as_json else [])], data_dir)


@key_commands.command("list")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, data_dir: DataDir = None
) -> None:
    """Lists keys without their secrets."""
    _keys(["list", *(["--json"] if as_json else [])], data_dir)


@key_commands.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, its part between the underscores.")
    ],
    data_dir: DataDir = None,
) -> None:
    """Makes a key useless from now on."""
    _keys(["revoke", "--", key_id], data_dir)


def _keys(arguments: list[str], data_dir: Path | None) -> None:
    settings = {} if data_dir is None else {"GHOSTWATT_DATA_DIR": str(data_dir.absolute())}
    environment = service_environment(settings, environment=os.environ)
    done = subprocess.run([sys.executable, "-m", "api", "keys", *arguments], env=environment, check=False)
    raise SystemExit(done.returncode)
