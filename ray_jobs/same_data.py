"""Every rank loads its own copy of the data; here they make sure that it is the same, or all of them end."""

from collections.abc import Callable
from dataclasses import dataclass

from phantom_core.agreement import holders, named
from phantom_core.collectives import PeerGoneError
from phantom_core.tasks import Dataset, TaskError
from ray_jobs.ranks import Team


@dataclass(frozen=True)
class _Found:
    """What one rank has to say of its data."""

    host: str
    data: str | None = None
    """Their digest and numbers of rows; None if they can't be had."""
    digest: str | None = None
    problem: str | None = None
    """Why they can't be had."""
    is_users: bool = True
    """Whether the problem lies in the task or its data."""


def load_same(load: Callable[[], Dataset], everyone: Team, host: str) -> Dataset:
    """Loads the data on every rank; all must call it, and all end alike.

    Args:
        load: Loads this rank's.
        everyone: All ranks.
        host: This rank's, as users know it.

    Returns:
        The same rows on every rank.

    Raises:
        TaskError: A rank's data can't be had or used, or differ from another's; on every rank.
        PeerGoneError: Another rank could not load them for a reason of its own.
    """
    dataset, failure = None, None
    try:
        dataset = load()
        digest = dataset.digest()
        rows = f"{len(dataset.train_features):,} + {len(dataset.validation_features):,} rows"
        mine = _Found(host, f"{digest} ({rows})", digest)
    except Exception as error:  # the others wait for this rank's word
        failure = error
        told = str(error) or type(error).__name__
        mine = _Found(host, problem=told, is_users=isinstance(error, TaskError))
    found = everyone.gather(mine)
    if all(each.digest is not None and each.digest == found[0].digest for each in found):
        assert dataset is not None, "a rank with a digest has loaded its data"
        return dataset
    if failure is not None and not mine.is_users:
        raise failure
    broken = next((rank for rank, each in enumerate(found) if not each.is_users), None)
    if broken is not None:
        where = f"rank {broken} on {found[broken].host}"
        raise PeerGoneError(f"{where} could not load the task's data: {found[broken].problem}")
    raise TaskError(_difference(found))


def _difference(found: list[_Found]) -> str:
    told = holders([each.problem or f"has {each.data}" for each in found])
    if len(told) == 1:
        return next(iter(told))  # the same problem everywhere
    said = [f"{_places(found, ranks)}: {what}" for what, ranks in told.items()]
    return (
        f"the task's data are not the same on all ranks: {'; '.join(said)}; put the same file under the data roots of "
        "every host, or let them share a file system, and install the same versions of Ghostwatt on all of them"
    )


def _places(found: list[_Found], ranks: list[int]) -> str:
    hosts = dict.fromkeys(found[rank].host for rank in ranks)
    return f"{', '.join(hosts)} ({named(ranks)})"
