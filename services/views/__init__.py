"""What the service answers: read models of experiments, runs, histories, comparisons, validations.

Every one is made inside a session and used after it, so a view holds plain values only. Times are UTC.
Unknown is None, with a reason beside it where there is one. A float that isn't finite travels as None with
its name (`nan`, `inf`, `-inf`) in `non_finite`.
"""

from services.views.base import (
    Page,
    View,
)
from services.views.comparisons import (
    ArmComparison,
    ComparisonView,
    ExcludedRound,
    FindingView,
    MetricComparison,
    Verdict,
    VerdictView,
)
from services.views.devices import (
    DeviceView,
)
from services.views.experiments import (
    ArmDetail,
    ArmView,
    ExperimentDetail,
    ExperimentView,
    JobAttemptView,
    PhaseView,
    TimingsView,
)
from services.views.histories import (
    EventView,
    MetricHistory,
    MetricSeries,
    PowerHistory,
    PowerSeries,
    WindowView,
)
from services.views.occurrences import (
    Occurrence,
)
from services.views.runs import (
    AttemptView,
    RunView,
)
from services.views.service import (
    HeartbeatView,
    IngestResult,
    KeyView,
)
from services.views.validation import (
    ArmCostView,
    ValidationView,
)

__all__ = [
    "ArmComparison",
    "ArmCostView",
    "ArmDetail",
    "ArmView",
    "AttemptView",
    "ComparisonView",
    "DeviceView",
    "EventView",
    "ExcludedRound",
    "ExperimentDetail",
    "ExperimentView",
    "FindingView",
    "HeartbeatView",
    "IngestResult",
    "JobAttemptView",
    "KeyView",
    "MetricComparison",
    "MetricHistory",
    "MetricSeries",
    "Occurrence",
    "Page",
    "PhaseView",
    "PowerHistory",
    "PowerSeries",
    "RunView",
    "TimingsView",
    "ValidationView",
    "Verdict",
    "VerdictView",
    "View",
    "WindowView",
]
