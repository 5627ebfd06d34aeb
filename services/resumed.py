"""What a run that went on from an earlier attempt's checkpoint has of that attempt: its windows up to there."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from phantom_core.protocol import Carried
from services.tables import Run, Window
from services.window_rows import WindowRow, window_rows


def carried_windows(session: Session, run: Run, carried: Sequence[Carried]) -> list[WindowRow]:
    """Training and evaluation windows of earlier attempts that count as the run's.

    Args:
        session: A session.
        run: The run.
        carried: What its last attempt said that it had gone on from, the earliest first.
    """
    found: list[WindowRow] = []
    first = 0
    for each in carried:
        # An evaluation comes before the first training window and after each.
        for phase, begin, end in (
            ("training", first, each.windows),
            ("evaluation", first + bool(first), each.windows + 1),
        ):
            found += window_rows(
                session,
                Window.run_key == run.key,
                Window.attempt == each.attempt,
                Window.phase == phase,
                Window.number >= begin,
                Window.number < end,
            )
        first = each.windows
    return found
