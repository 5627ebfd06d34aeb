"""The service, but with a deadline for silence that no real ranks could keep: `python -m tests.services.hasty_service`.

Simulated jobs speak all the time, so that tests of what follows on silence need not wait for as long as real ranks may
be silent. A worker group has longer to ask and to take what it is offered, since the machine may be busy.
"""

from services import following, groups, settings

if __name__ == "__main__":
    settings.SHORTEST_SILENCE_S = 1.0
    groups.FRESH_S, groups.COMES_BACK_S, following.HANDOVER_S = 60.0, 60.0, 60.0
    from api.commands import commands

    commands()
