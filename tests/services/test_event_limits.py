"""Text of events as it is kept: bounded, and without secrets wherever it was cut."""

import pytest

from services.event_limits import MOST_TEXT, text

SECRET = "Q7xK2mZ9vR4tW8yB3nL6pD5sF1gH0jCuEoXiAzTq"


@pytest.mark.parametrize("before", ["gw_abcdefghijklmnop_", "gg_", "postgresql://u:", "Bearer ", "password="])
def test_a_secret_is_kept_at_no_place_of_a_text_that_is_too_long(before: str) -> None:
    # Those at the beginning make room: what is kept reaches as far as what is looked at.
    for many in (0, 80):
        blotted = f"token={'k' * 60} " * many
        told = f"{before}{SECRET}{'@' if before.endswith('u:') else ''} end"
        for length in range(MOST_TEXT - len(told) - 60, MOST_TEXT + 1_200, 7):
            padding = "x " * ((length - len(blotted)) // 2)
            kept = text(blotted + padding + told)
            assert kept is not None
            assert len(kept) <= MOST_TEXT
            assert not [part for part in range(len(SECRET) - 3) if SECRET[part : part + 4] in kept]
