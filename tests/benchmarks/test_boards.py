"""All that wants boards runs in one go: a part that fails or hangs keeps no other from its turn."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks import boards
from benchmarks.boards import Part
from phantom_core.known_process import is_running


def python(name: str, script: str) -> Part:
    return Part(name, (sys.executable, "-c", script))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts: one hangs with a child of its own, one fails, one succeeds."""
    waiting = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    hanging = f"import subprocess, sys; child = subprocess.Popen({waiting}); print(child.pid, flush=True); child.wait()"
    made = [
        python("tests", hanging),
        python("layers", "raise SystemExit(3)"),
        python("sweeps", "print('seen')"),
    ]
    monkeypatch.setattr(boards, "parts", lambda *_, **__: made)


@pytest.mark.usefixtures("given")
def test_each_part_has_its_turn_and_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert boards.main(["--ranks", "2", "--most-s", "30", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "its time was over" in said
    assert "failed (exit 3)" in said
    child = int((tmp_path / "tests.log").read_text().splitlines()[-1])
    while is_running(child):  # it was killed; its end may take a moment
        time.sleep(0.01)
    assert (tmp_path / "sweeps.log").read_text().splitlines()[-1] == "seen"


@pytest.mark.usefixtures("given")
def test_only_what_is_named_runs(tmp_path: Path) -> None:
    assert boards.main(["--ranks", "2", "--only", "sweeps", "--out", str(tmp_path)]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["sweeps.log"]


def test_each_command_names_a_script_and_options_that_there_are(tmp_path: Path) -> None:
    for part in boards.parts(2, tmp_path):
        if part.name == "tests":
            continue
        script = next(word for word in part.command if word.startswith("benchmarks."))
        source = Path(boards.__file__).with_name(f"{script.removeprefix('benchmarks.')}.py").read_text()
        for option in part.command[part.command.index(script) :]:
            assert not option.startswith("--") or f'"{option}"' in source, (part.name, option)


def test_a_host_without_boards_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        boards.main(["--ranks", "0"])
    assert "--tiny --ranks 2" in capsys.readouterr().err
