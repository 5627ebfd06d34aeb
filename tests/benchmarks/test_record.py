"""What a result says of its own making."""

import pytest

from benchmarks.record import command


def test_a_command_holds_no_path_of_the_machine_it_ran_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    arguments = ["/somewhere/benchmarks/main_job.py", "--ranks", "4", "--out", "/root/out/main_job.json"]
    assert command(arguments) == "python -m benchmarks.main_job --ranks 4 --out main_job.json"


def test_a_command_of_several_ranks_names_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert command(["ghost_exchange.py"]) == "torchrun --nproc-per-node 4 -m benchmarks.ghost_exchange"
