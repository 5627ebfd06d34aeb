"""What Pydantic finds is told by the path a user wrote, with the value and the way out."""

import json
import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from phantom_core.problems import SpecError, SpecProblem, problems_of
from phantom_core.spec import ExperimentSpec, TeacherTask
from tests.phantom_core.test_spec import MINIMAL, changed


def problems(document: dict[str, Any], model: type[BaseModel] = ExperimentSpec) -> list[SpecProblem]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    found = problems_of(caught.value, model)
    for problem in found:
        json.loads(problem.model_dump_json())
        assert problem.message
    return found


@pytest.mark.parametrize(
    ("path", "value", "field", "limit", "words"),
    [
        ("arms.3.ghosts", 0, "arms.3.ghosts", 1, "ghosts = 0: it must be greater than or equal to 1"),
        ("arms.3.ghots", 4, "arms.3.ghots", None, "'ghots' is no field here; perhaps 'ghosts' is meant"),
        ("arms.3.model.widht", 4, "arms.3.model.widht", None, "perhaps 'width' is meant"),
        ("colour", 4, "colour", None, "known are name, description, tags"),
        ("arms.2.strategy", "tesnor", "arms.2", None, "strategy = 'tesnor' is unknown; use one of 'dense'"),
        ("training.stop", {"steps": 3}, "training.stop", None, "'kind' is missing"),
        (
            "training.stop",
            {"kind": "steps"},
            "training.stop.steps",
            None,
            "'steps' is missing and has no default",
        ),
        ("training.stop", {"kind": "joules", "joules": 0}, "training.stop.joules", 0, "greater than 0"),
        (
            "model.activation",
            "swish",
            "model.activation",
            None,
            "activation = 'swish': it must be 'relu', 'gelu'",
        ),
        ("model.width", True, "model.width", None, "true is not a number"),
        ("model.width", math.nan, "model.width", None, "width = nan: it must be a finite number"),
        ("name", "a/b", "name", None, "name = 'a/b' has characters that can't be there"),
        ("task.path", "/etc/x.csv", "task.path", None, "'/etc/x.csv' leaves the data roots"),
        ("tags", {"a b": "c"}, "tags.a b.[key]", None, "characters that can't be there"),
        ("baseline", "nobody", "spec", None, "baseline = 'nobody' names no arm"),
        ("arms", [], "arms", 1, "at least 1 item"),
        ("measurement.rounds", "x" * 500, "measurement.rounds", None, "..."),
    ],
)
def test_a_problem_has_the_user_s_path_and_says_what_would_be_right(
    path: str, value: Any, field: str, limit: Any, words: str
) -> None:
    (problem,) = problems(changed(path, value))
    assert problem.field == field
    if limit is not None:
        assert problem.limit == limit
    assert words in problem.message
    assert len(problem.message) < 400


def test_all_that_is_wrong_is_told_at_once() -> None:
    document = changed("model.width", 0) | {"colour": 1, "controls": "perhaps"}
    assert {problem.field for problem in problems(document)} == {"model.width", "colour", "controls"}


def test_a_missing_field_is_explained() -> None:
    (problem,) = problems({key: value for key, value in MINIMAL.items() if key != "task"})
    assert problem.field == "task"
    assert "What is learned." in problem.message


def test_values_are_short_and_json_can_carry_them() -> None:
    (long,) = problems(changed("model.dtype", "y" * 10_000))
    assert len(str(long.value)) <= 100
    (infinite,) = problems(changed("training.learning_rate", math.inf))
    assert infinite.value == "inf"
    (nested,) = problems(changed("model", [1, 2]))
    assert nested.value is None


def test_another_model_s_problems_are_told_by_its_own_fields() -> None:
    (problem,) = problems({"featurs": 3}, TeacherTask)
    assert (problem.field, problem.value) == ("featurs", 3)
    assert "'features'" in problem.message


def test_a_spec_error_reads_as_its_problems() -> None:
    problem = SpecProblem(field="a.b", value=1, limit=2, message="too little")
    error = SpecError([problem, problem.model_copy(update={"field": "c"})])
    assert str(error) == "a.b: too little; c: too little"
    assert isinstance(error, ValueError)
    assert len(error.problems) == 2
