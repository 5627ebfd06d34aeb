"""Holds docs/cli.md to the command's own help. Run this file to write the document anew."""

from pathlib import Path

import typer.main
from typer.testing import CliRunner

from client.command import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def cli_reference() -> str:
    parts = ["# The `ghostwatt` command\n\nAlso `python -m client`. This page is the command's own help.\n"]
    for path in paths():
        help_text = CliRunner().invoke(app, [*path, "--help"], prog_name="ghostwatt").output
        lines = "\n".join(line.rstrip() for line in help_text.strip().splitlines())
        parts.append(f"## {' '.join(['ghostwatt', *path])}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def paths() -> list[list[str]]:
    def below(command: object, path: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        return [path, *(found for name, child in children.items() for found in below(child, [*path, name]))]

    return below(typer.main.get_command(app), [])


def test_the_document_is_the_commands_own_help() -> None:
    assert DOCUMENT.read_text() == cli_reference(), f"run `python {Path(__file__).name}` to write it anew"


def test_every_command_says_what_it_does() -> None:
    for path in paths():
        result = CliRunner().invoke(app, [*path, "--help"], prog_name="ghostwatt")
        assert result.exit_code == 0
        assert len(result.output.strip().splitlines()) > 3


if __name__ == "__main__":
    DOCUMENT.write_text(cli_reference())
