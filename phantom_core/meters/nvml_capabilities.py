"""What a board answers, asked once when its meter is opened."""

import logging
from dataclasses import dataclass

from phantom_core.meters.nvml_board import Metric, NvmlBoard

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Capabilities:
    """What a board answers, asked once when its meter is opened."""

    missing: tuple[tuple[Metric, str], ...]
    """What it doesn't, with NVML's reason. A board that is lost for the moment is not held against it."""

    def has(self, metric: Metric) -> bool:
        """Whether the metric is supported."""
        return metric not in dict(self.missing)

    def why_not(self, metric: Metric) -> str | None:
        """Why the metric is not supported; None if it is."""
        return dict(self.missing).get(metric)


def probe(board: NvmlBoard) -> Capabilities:
    """Asks a board for every metric once and logs once what it lacks."""
    answers = {metric: board.read(metric) for metric in Metric}
    missing = tuple(
        (metric, answer.reason or "no value") for metric, answer in answers.items() if answer.lasting
    )
    lacks = "; ".join(f"{metric.value} ({reason})" for metric, reason in missing) or "nothing"
    log.info("board %s lacks: %s", board.uuid, lacks)
    return Capabilities(missing)
