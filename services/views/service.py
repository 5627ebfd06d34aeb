"""The service's own state as it is shown: dispatchers, keys, what became of events."""

from datetime import datetime
from typing import Any

from services.views.base import View


class HeartbeatView(View):
    """A dispatcher's last sign of life."""

    owner: str
    """Its name."""
    at: datetime
    """When."""
    age_s: float
    """Seconds ago."""
    state: dict[str, Any]
    """What it knew then."""


class IngestResult(View):
    """What became of a batch of events."""

    accepted: int
    """New ones, now stored."""
    duplicates: int
    """Ones that were stored already, or came twice in the batch."""
    rejected: dict[str, int]
    """Ones that can't be stored, counted by reason; sending them again is of no use."""


class KeyView(View):
    """An API key without its secret."""

    id: str
    """Public part."""
    name: str
    """What it is for."""
    scopes: tuple[str, ...]
    """What it opens."""
    created_at: datetime
    """Made."""
    expires_at: datetime | None
    """Stops working; None never."""
    revoked_at: datetime | None
    """Was made useless; None if it still works."""
