"""The commands of the service's process: `serve | migrate | keys create`; the `ghostwatt` command starts it, too."""

import gc
import logging
import os
import socket
import sys
import threading
from typing import Annotated

import typer
import uvicorn

from api import logs
from api.app import RefusedToStart, create_app, prepare
from api.background import Background
from api.environment import EXIT_NOT_STARTED, read_settings, refuse
from api.key_commands import key_commands
from api.limits import MAX_HEADER_BYTES
from api.server import PatientServer
from api.wire import wire_class
from services.database import Database
from services.errors import ServiceError
from services.settings import Settings

log = logging.getLogger("ghostwatt")

KEEP_ALIVE_S = 15
"""Seconds for which a connection stays open without a request: longer than clients trust one that is idle (httpx: 5 s),
so that none sends into one that is just being closed."""
GRACEFUL_S = 5
"""Seconds that open requests have once the service is told to end."""

commands = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
)
commands.add_typer(key_commands, name="keys")


def make_background(settings: Settings) -> Background:
    """What dispatches experiments to Ray."""
    from services.dispatcher import Dispatcher

    return Dispatcher(settings)


@commands.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """The Ghostwatt service. Settings come from GHOSTWATT_* variables. Serves, if no command is given."""
    if context.invoked_subcommand is None:
        serve(until_stdin_closes=False)


@commands.command()
def serve(
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")
    ] = False,
) -> None:
    """Serves until ctrl-c or SIGTERM, then ends everything that it started."""
    settings = read_settings()
    logs.configure(settings.log_format)
    with listening_socket(settings) as listener:
        # Bound before anything starts: a taken port must not cost a Ray head, and port 0 is known now.
        port = int(listener.getsockname()[1])
        if port != settings.port:
            settings = Settings(**settings.model_dump(exclude_unset=True) | {"port": port})
        try:
            # The lifespan does this too; here a refusal is a sentence instead of a traceback.
            with Database(settings.database_url) as database:
                prepare(database, settings)
        except (ServiceError, RefusedToStart) as error:
            refuse(str(error), EXIT_NOT_STARTED)
        app = create_app(settings, background=make_background(settings))
        server = PatientServer(
            uvicorn.Config(
                app,
                host=settings.host,
                port=port,
                # No WebSockets where a library for them is installed.
                http=wire_class(),
                ws="none",
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACEFUL_S,
            )
        )
        if until_stdin_closes:
            threading.Thread(target=_end_with_stdin, args=(server,), name="stdin", daemon=True).start()
        # What is here now lives as long as the service; walking it again and again costs a long answer its half. It is
        # hardly worth one walk either: of a hundred thousand objects some hundred could be given back.
        gc.freeze()
        log.info("serving at %s; data in %s", settings.service_url, settings.data_dir)
        try:
            server.run(sockets=[listener])
        except SystemExit:
            refuse("the service did not start; the reason is above", EXIT_NOT_STARTED)


@commands.command()
def migrate() -> None:
    """Brings the database to this version's tables, and ends."""
    settings = read_settings()
    try:
        with Database(settings.database_url) as database:
            database.migrate()
            typer.echo(f"{database.name} is at revision {database.revision()}")
    except ServiceError as error:
        refuse(str(error), EXIT_NOT_STARTED)


def listening_socket(settings: Settings) -> socket.socket:
    """A socket bound to the settings' address; ends the process with 3 if it can't be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it every answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        refuse(
            f"can't listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "another service may be there, set GHOSTWATT_PORT to a free port",
            EXIT_NOT_STARTED,
        )
    return listener


def _end_with_stdin(server: uvicorn.Server) -> None:
    # Whoever started the service holds the other end; the pipe closes with that process, however it ended.
    # Read below Python's own buffer, whose lock a thread that waits would still hold when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True
