"""`python -m api keys ...`: who may use the service, from the machine that its database is on."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from api.environment import EXIT_NOT_STARTED, EXIT_USAGE, read_settings, refuse
from services import keys
from services.database import Database
from services.errors import ServiceError
from services.keys import Scope

key_commands = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")


@key_commands.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for, to tell it from others.")],
    scope: Annotated[
        list[str],
        typer.Option(help="read, submit (includes read) or admin (includes both); may be repeated."),
    ],
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days until it expires; never by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Makes a key and prints it, for the only time."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    try:
        with _migrated() as database:
            key = keys.create(database, name, [Scope(one) for one in scope], expires_at=expires_at)
    except ValueError as error:
        refuse(str(error), EXIT_USAGE)
    except ServiceError as error:
        refuse(str(error), EXIT_NOT_STARTED)
    if as_json:
        typer.echo(json.dumps({"id": key.id, "key": key.token}))
    else:
        typer.echo(f"{key.token}\n")
        typer.echo(
            f"This is shown once. Send it as `Authorization: Bearer KEY`, or set GHOSTWATT_API_KEY. It opens the "
            f"service on {database.name}.",
            err=True,
        )


@key_commands.command("list")
def list_all(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Lists keys without their secrets."""
    try:
        with _migrated() as database:
            views = keys.list_keys(database)
    except ServiceError as error:
        refuse(str(error), EXIT_NOT_STARTED)
    if as_json:
        typer.echo(json.dumps([view.model_dump(mode="json") for view in views]))
        return
    for view in views:
        until = (
            "revoked"
            if view.revoked_at
            else f"until {view.expires_at:%Y-%m-%d}"
            if view.expires_at
            else "no end"
        )
        typer.echo(f"{view.id}  {','.join(view.scopes):20}  {until:16}  {view.name}")


@key_commands.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, its part between the underscores.")],
) -> None:
    """Makes a key useless from now on."""
    try:
        with _migrated() as database:
            keys.revoke(database, key_id)
    except ServiceError as error:
        refuse(str(error), EXIT_NOT_STARTED)
    typer.echo(f"{key_id} opens nothing any more")


def _migrated() -> Database:
    database = Database(read_settings().database_url)
    database.migrate()
    return database
