"""`python -m api`: starts one of the service's commands."""

import gc


def main() -> None:
    """Runs the command that the arguments name."""
    # Nothing of what is imported is ever given back: to look through all of it again and again is a tenth of the start.
    gc.disable()
    from api.commands import commands

    gc.freeze()
    gc.enable()
    commands()


if __name__ == "__main__":
    main()
