"""The client's models are the service's views, as far as they go."""

import re

import pytest
from pydantic import BaseModel

from api import errors
from api.routes import health, queue, submissions
from client import models
from services import views

PAIRS: list[tuple[type[BaseModel], type[BaseModel]]] = [
    (models.FieldProblem, errors.FieldProblem),
    (models.Problem, errors.Problem),
    (models.Submitted, submissions.Accepted),
    (models.Arm, views.ArmView),
    (models.Phase, views.PhaseView),
    (models.Timings, views.TimingsView),
    (models.Device, views.DeviceView),
    (models.Experiment, views.ExperimentView),
    (models.ExperimentDetail, views.ExperimentDetail),
    (models.ExperimentPage, views.Page[views.ExperimentView]),
    (models.Occurrence, views.Occurrence),
    (models.Run, views.RunView),
    (models.RunPage, views.Page[views.RunView]),
    (models.MetricSeries, views.MetricSeries),
    (models.MetricHistory, views.MetricHistory),
    (models.PowerSeries, views.PowerSeries),
    (models.PowerHistory, views.PowerHistory),
    (models.MetricComparison, views.MetricComparison),
    (models.ArmComparison, views.ArmComparison),
    (models.Comparison, views.ComparisonView),
    (models.Finding, views.FindingView),
    (models.FindingPage, views.Page[views.FindingView]),
    (models.QueuedPriority, queue.PriorityView),
    (models.Queue, queue.QueueView),
    (models.ArmCost, views.ArmCostView),
    (models.Validation, views.ValidationView),
    (models.Check, health.Check),
    (models.Readiness, health.Readiness),
]


def shape(annotation: object) -> str:
    """An annotation with every model, enum, choice and text as `x`, and lists as tuples: what JSON tells apart."""
    text = re.sub(r"typing\.Literal\[[^]]*\]", "x", str(annotation))
    text = re.sub(r"<(class|enum) '([^']*)'>", r"\2", text)
    text = re.sub(r"[\w.]*\b([A-Z]\w*)(\[[\w.]+\])?", "x", text.replace("None", "none"))
    return re.sub(r"\blist\[x\]", "tuple[x, ...]", re.sub(r"\bstr\b", "x", text))


@pytest.mark.parametrize(("model", "view"), PAIRS, ids=lambda found: found.__name__)
def test_every_field_is_the_views(model: type[BaseModel], view: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert name in view.model_fields, f"{view.__name__} has no {name}"
        assert shape(field.annotation) == shape(view.model_fields[name].annotation), name


def test_every_model_is_held_to_a_view() -> None:
    held = {model for model, _ in PAIRS}
    made = {
        found
        for found in vars(models).values()
        if isinstance(found, type) and issubclass(found, models.Answer)
    }
    assert made - held == {models.Answer}
