"""Ends what others hold open on a PostgreSQL database.

Not a test.
"""

from sqlalchemy import Connection, text

MOST_S = 120


def end_sessions(connection: Connection, database: str | None) -> None:
    """Ends all other sessions on a database, and returns once they are gone.

    A server that is only told to end a session answers before the session has heard of it.
    """
    answers = connection.execute(
        text(
            "SELECT pid, pg_terminate_backend(pid, :most_ms) FROM pg_stat_activity "
            "WHERE datname = :name AND pid <> pg_backend_pid()"
        ),
        {"name": database, "most_ms": MOST_S * 1_000},
    ).all()
    # One that went by itself in between is no longer there to be told, which is false too. A transaction looks once
    # unless told to look again.
    connection.execute(text("SELECT pg_stat_clear_snapshot()"))
    left = connection.execute(
        text("SELECT pid FROM pg_stat_activity WHERE pid = ANY(:pids)"),
        {"pids": [pid for pid, ended in answers if not ended]},
    ).all()
    assert not left, f"sessions {left} on {database} did not end within {MOST_S} s each"
