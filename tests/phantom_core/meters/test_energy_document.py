"""docs/energy.md says what the code does."""

import re
from pathlib import Path
from typing import get_args

import pytest

from phantom_core.flags import FLAGS
from phantom_core.meters import accumulator, cpu_estimate, integration, rapl, sampling, windows
from phantom_core.protocol import Method, Scope

DOCUMENT = (Path(__file__).parents[3] / "docs" / "energy.md").read_text()
WORDS = re.sub(r"\s+", " ", DOCUMENT)


def test_every_flag_is_in_the_table_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert rows == [
        (str(flag), "yes" if meaning.blocks_verdict else "no", meaning.meaning)
        for flag, meaning in FLAGS.items()
    ]


def test_every_method_and_scope_is_explained() -> None:
    table = DOCUMENT.split("## Methods")[1].split("A device is opened")[0]
    assert re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE) == list(get_args(Method))
    assert all(f"`{scope}`" in table for scope in get_args(Scope))


@pytest.mark.parametrize(
    "sentence",
    [
        f"W = {cpu_estimate.WATTS_PER_CORE:g} W per core",
        f"its bound is ± {100 * cpu_estimate.RELATIVE_BOUND:g} %",
        f"differ by more than {100 * windows.DISAGREEMENT:g} %",
        f"Windows shorter than {windows.REFUSED_WINDOW_S:g} s are refused",
        f"shorter than {windows.SHORT_WINDOW_S:g} s flagged",
        f"more than {integration.GAP_PERIODS:g} sample periods",
        f"a period of {1_000 * sampling.SHORTEST_PERIOD_S:g} ms",
        f"NVML's power every {1_000 * accumulator.PERIOD_S:g} ms",
        "sudo chmod a+r /sys/class/powercap/*/energy_uj",
        f"/sys/class/powercap:{rapl.POWERCAPS[1]}:ro",
    ],
)
def test_figures_and_commands_are_the_codes_own(sentence: str) -> None:
    assert sentence in WORDS


def test_the_command_that_grants_rapl_is_the_one_that_the_code_prints() -> None:
    assert "sudo chmod a+r /sys/class/powercap/*/energy_uj" in rapl.GRANT
