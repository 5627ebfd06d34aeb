"""What can be wrong with an energy figure or a comparison: every flag's name, meaning and weight. Torch-free.

A flag that blocks makes a comparison `not comparable`; the others are said beside the verdict wherever
it is shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Flag(StrEnum):
    """Names of the flags; stored as these strings."""

    SHORT_WINDOW_REFUSED = "short_window_refused"
    SHORT_WINDOW = "short_window"
    IMPRECISE = "imprecise"
    FROM_STEADY = "from_steady"
    TARGET_COARSE = "target_coarse"
    COUNTER_RESET = "counter_reset"
    METHOD_CHANGED = "method_changed"
    ENERGY_UNKNOWN = "energy_unknown"
    METHODS_DISAGREE = "methods_disagree"
    BOARD_SHARED = "board_shared"
    COMPANY_UNKNOWN = "company_unknown"
    MIG_PARENT = "mig_parent"
    MODULE_SHARED = "module_shared"
    THROTTLED = "throttled"
    POWER_CAPPED = "power_capped"
    SAMPLER_GAP = "sampler_gap"
    SAMPLER_LOST = "sampler_lost"
    NOT_IDLE_BASELINE = "not_idle_baseline"
    ESTIMATED = "estimated"
    DOMAIN_DROPPED = "domain_dropped"
    HARDWARE_DIFFERS = "hardware_differs"
    CLOCKS_DIFFER = "clocks_differ"
    DTYPE_DIFFERS = "dtype_differs"
    DATA_DIFFERS = "data_differs"
    BATCH_DIFFERS = "batch_differs"
    LOSS_DIFFERS = "loss_differs"
    DRIFT = "drift"
    GRAPH_FALLBACK = "graph_fallback"
    RESUMED = "resumed"


@dataclass(frozen=True)
class FlagMeaning:
    """What a flag says to a reader of the figure it stands beside."""

    meaning: str
    """One sentence."""
    blocks_verdict: bool
    """Whether a comparison with this flag on one of its arms is refused."""


FLAGS: dict[Flag, FlagMeaning] = {
    Flag.SHORT_WINDOW_REFUSED: FlagMeaning(
        "The windows last less than 1 s: counters that move every 100 ms can't resolve them.", True
    ),
    Flag.SHORT_WINDOW: FlagMeaning(
        "The windows last less than 10 s: a counter's edges alone can be some per cent of the figure.", False
    ),
    Flag.IMPRECISE: FlagMeaning(
        "The bound on the meter's reading error is wider than `measurement.energy_precision` asks for, or so wide "
        "that without it a comparison would show no difference.",
        False,
    ),
    Flag.FROM_STEADY: FlagMeaning(
        "Energy to the target is its steps times the steady window's joules per step: training was cut by "
        "evaluations into windows too short for the meter.",
        False,
    ),
    Flag.TARGET_COARSE: FlagMeaning(
        "The target was looked for at evaluations so far apart that their distance is a larger share of the steps to "
        "it than `measurement.energy_precision`: energy and time to it are whole intervals.",
        False,
    ),
    Flag.COUNTER_RESET: FlagMeaning(
        "The energy counter started over inside a window (driver reloaded, board reset, or wrapped unseen).",
        True,
    ),
    Flag.METHOD_CHANGED: FlagMeaning(
        "The two ends of a window were read by different methods or scopes, so they have no difference.", True
    ),
    Flag.ENERGY_UNKNOWN: FlagMeaning(
        "A device that the arm used could not be read, so its energy is missing, not zero.", True
    ),
    Flag.METHODS_DISAGREE: FlagMeaning(
        "Counter and integral of sampled power differ by more than 5 %.", False
    ),
    Flag.BOARD_SHARED: FlagMeaning(
        "Another process computed on the board, so its energy isn't the arm's alone.", True
    ),
    Flag.COMPANY_UNKNOWN: FlagMeaning(
        "Whether another process computed on the board can't be told: the driver's list of processes is missing or "
        "lacks the arm's own ranks.",
        False,
    ),
    Flag.MIG_PARENT: FlagMeaning(
        "The device is a MIG slice; NVML meters only the whole board, which other slices share.", True
    ),
    Flag.MODULE_SHARED: FlagMeaning(
        "The figure is a whole module's on which other GPUs sit, too: it has their energy in it, and is there once for "
        "each of them.",
        True,
    ),
    Flag.THROTTLED: FlagMeaning(
        "The board slowed down for heat or for its power supply, so it ran at other clocks than it would.",
        False,
    ),
    Flag.POWER_CAPPED: FlagMeaning("The board held its clocks down to stay under its power limit.", False),
    Flag.SAMPLER_GAP: FlagMeaning(
        "Power samples have a hole, so their integral is less certain than its rate promises.", False
    ),
    Flag.SAMPLER_LOST: FlagMeaning(
        "The sampler stopped early: no integral stands beside the counter.", False
    ),
    Flag.NOT_IDLE_BASELINE: FlagMeaning(
        "The board was not idle while its idle power was measured, or nothing could show that it was, so net "
        "energy may be too low.",
        False,
    ),
    Flag.ESTIMATED: FlagMeaning("Not measured: CPU time times an assumed number of watts per core.", False),
    Flag.DOMAIN_DROPPED: FlagMeaning(
        "A power domain of the processor can't be read soundly and was left out.", False
    ),
    Flag.HARDWARE_DIFFERS: FlagMeaning("The arms ran on different boards.", True),
    Flag.CLOCKS_DIFFER: FlagMeaning(
        "The arms ran under different limits on power or clocks, or a limit was changed while the experiment ran.",
        True,
    ),
    Flag.DTYPE_DIFFERS: FlagMeaning(
        "The arms computed in different number formats, or float32 with and without TF32.", True
    ),
    Flag.DATA_DIFFERS: FlagMeaning("The arms learned from different data.", True),
    Flag.BATCH_DIFFERS: FlagMeaning(
        "The arms' steps hold different numbers of rows, so one's step is not the other's: compare per row.",
        True,
    ),
    Flag.LOSS_DIFFERS: FlagMeaning(
        "The arms ended at losses that are not shown to be equal: they differ by more than 1 %.", False
    ),
    Flag.DRIFT: FlagMeaning("The difference between the arms changes with the order of the rounds.", False),
    Flag.GRAPH_FALLBACK: FlagMeaning(
        "The step ran eagerly although a CUDA graph was wanted, so launches cost time and energy.", False
    ),
    Flag.RESUMED: FlagMeaning(
        "An attempt was cut off and the next went on from what it had saved: steps, time and energy up to there were "
        "measured then, what it did after that counts only as that attempt's.",
        False,
    ),
}
"""Meaning and weight of every flag."""


def blocking(flags: Iterable[str]) -> tuple[Flag, ...]:
    """Those of the given flags that forbid a verdict, each once, in the table's order.

    Args:
        flags: Flag names; a name that the table doesn't have (of a newer job) blocks nothing.
    """
    given = set(flags)
    return tuple(flag for flag, meaning in FLAGS.items() if flag in given and meaning.blocks_verdict)
