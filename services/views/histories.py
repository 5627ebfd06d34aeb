"""What was measured along a run, as it is shown; and the log."""

from datetime import datetime
from typing import Any

from services.views.base import View


class MetricSeries(View):
    """One metric of one run, in order of step; the lists are equally long."""

    name: str
    """What was measured, units in the name."""
    step: tuple[int, ...]
    """Optimizer steps done."""
    value: tuple[float | None, ...]
    """Values; None where not finite."""
    non_finite: dict[int, str]
    """Index of each value that is not finite: `nan`, `inf` or `-inf`."""
    energy_mj: tuple[float | None, ...]
    """Gross training energy so far."""
    training_s: tuple[float | None, ...]
    """Training seconds so far."""


class MetricHistory(View):
    """Metrics of one run."""

    run_id: str
    """The run."""
    attempt: int
    """Its attempt."""
    series: tuple[MetricSeries, ...]
    """One per metric, by name."""


class PowerSeries(View):
    """Power of one device, in order; the lists are equally long."""

    host: str
    """Host."""
    device_uuid: str
    """Device."""
    device_name: str | None
    """Model name."""
    method: str
    """`instant`, `average` or `estimate`."""
    charged: bool
    """Whether the arm used the device."""
    at: tuple[datetime, ...]
    """Start of each bucket, or the sample's instant where nothing was merged."""
    power_mw: tuple[float | None, ...]
    """Mean milliwatts; None where every read failed."""
    least_mw: tuple[float | None, ...]
    """Smallest in the bucket."""
    greatest_mw: tuple[float | None, ...]
    """Largest in the bucket."""
    sample_count: int
    """Samples behind it."""
    bucket_s: float | None
    """Length of a bucket; None where every sample is shown."""


class WindowView(View):
    """One window of one device."""

    phase: str
    """What it was for."""
    number: int
    """Counts the windows of this phase."""
    host: str
    """Host."""
    device_uuid: str
    """Device."""
    charged: bool
    """Whether the arm used the device."""
    started_at: datetime
    """UTC."""
    duration_s: float
    """Seconds."""
    steps: int
    """Optimizer steps inside."""
    samples: int
    """Rows inside."""
    energy_mj: float | None
    """Millijoules; None if unknown."""
    uncertainty_mj: float | None
    """Half-width of the error bound."""
    method: str | None
    """How it was read."""
    scope: str | None
    """What it covers."""
    reason: str | None
    """Why it is unknown."""
    integral_mj: float | None
    """Integral of sampled power over it; None with too few samples."""
    integral_uncertainty_mj: float | None
    """Bound on the integration's error."""
    sample_count: int
    """Power samples inside."""
    largest_gap_s: float | None
    """Longest time between two of them."""
    flags: tuple[str, ...]
    """Flags of the meter, and what samples and board states raised."""
    merged: int
    """Windows that this one stands for: 1, or neighbours of one device and phase where a run has more than a plot can
    show. Then the number is the first one's, the time reaches to the end of the last, and the rest are sums."""


class PowerHistory(View):
    """Power during one run, with the windows that lie in it."""

    run_id: str
    """The run."""
    attempt: int
    """Its attempt."""
    series: tuple[PowerSeries, ...]
    """One per device and method."""
    windows: tuple[WindowView, ...]
    """In order of time."""


class EventView(View):
    """One entry of an experiment's log."""

    key: int
    """Grows along the log; pass it to get what follows."""
    subject_id: str
    """Experiment or run."""
    attempt: int
    """Attempt of it."""
    source: str
    """Who said it; `service` for the service itself."""
    kind: str
    """What it is."""
    at: datetime
    """When it happened."""
    note: str | None
    """Why it changed nothing, if it didn't."""
    payload: dict[str, Any] | None
    """What was said; None for series, which are read through the run."""
