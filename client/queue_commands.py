"""`ghostwatt queue`: hold experiments back, and let them go."""

from typing import Annotated

import typer

from client.client import DEFAULT_URL, GhostwattClient
from client.command_support import print_json, reported
from client.figures import number
from client.models import Queue
from client.options import ApiKey, AsJson, Url

queue_commands = typer.Typer(no_args_is_help=True, help="Holds queued experiments back, and lets them go.")


@queue_commands.command()
@reported
def show(as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Says whether the queue is paused, and how much waits."""
    with GhostwattClient(url, api_key) as client:
        _tell(client.queue(), as_json)


@queue_commands.command()
@reported
def pause(
    reason: Annotated[str, typer.Option(help="For whoever wonders why nothing begins.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Lets no queued experiment begin. Those that have begun go on. Needs an admin key where keys are needed."""
    with GhostwattClient(url, api_key) as client:
        _tell(client.pause_queue(reason), as_json)


@queue_commands.command()
@reported
def resume(as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Ends the pause. Needs an admin key where keys are needed."""
    with GhostwattClient(url, api_key) as client:
        _tell(client.resume_queue(), as_json)


def _tell(queue: Queue, as_json: bool) -> None:
    if as_json:
        print_json(queue)
        return
    since = (
        "" if queue.paused_at is None else f" since {queue.paused_at:%Y-%m-%d %H:%M:%S} UTC: {queue.reason}"
    )
    print(f"the queue is paused{since}" if queue.paused else "the queue is open")
    waits = "" if queue.oldest_queued_s is None else f", the longest for {number(queue.oldest_queued_s)} s"
    print(f"{queue.queued} waiting{waits}")
    if any(each.priority for each in queue.by_priority):
        print(", ".join(f"{each.queued} of priority {each.priority}" for each in queue.by_priority))
