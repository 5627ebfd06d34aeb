"""A spec says everything, refuses what it doesn't know, and survives both languages unchanged."""

import inspect
import json
import math
import subprocess
import sys
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from phantom_core import spec as spec_module
from phantom_core.described import description_of
from phantom_core.spec import (
    ExperimentSpec,
    FileTask,
    HardLimits,
    MeasurementSpec,
    ModelSpec,
    PhantomArm,
    SpecModel,
    TeacherTask,
    TensorArm,
    TrainingSpec,
    load_spec,
)

MINIMAL: dict[str, Any] = {
    "name": "smallest",
    "task": {"kind": "digits"},
    "model": {"width": 64},
    "training": {"stop": {"kind": "steps", "steps": 10}},
    "arms": [{"strategy": "dense", "name": "one"}],
}
FULL: dict[str, Any] = {
    "name": "every kind of arm",
    "description": "All strategies – with ümlauts and 中文.",
    "tags": {"owner": "lab 3", "ticket": "42"},
    "task": {
        "kind": "file",
        "path": "a/b.parquet",
        "features": ["x", "y"],
        "target": "z",
        "target_kind": "regression",
    },
    "model": {"width": 64, "depth": 3, "activation": "gelu", "bias": False, "dtype": "bfloat16"},
    "training": {
        "batch_size": 32,
        "optimizer": "sgd",
        "learning_rate": 1e-3,
        "momentum": 0.9,
        "schedule": {"kind": "cosine", "warmup_steps": 5, "decay_steps": 50},
        "stop": {"kind": "target_loss", "target_loss": 0.5, "max_steps": 100},
    },
    "arms": [
        {"strategy": "dense", "name": "d"},
        {"strategy": "tensor", "name": "g", "form": "gather", "world_size": 4},
        {"strategy": "tensor", "name": "c", "world_size": 4},
        {"strategy": "phantom", "name": "p", "world_size": 4, "ghosts": 4, "model": {"width": 128}},
        {"strategy": "block_diagonal", "name": "b", "world_size": 4},
        {
            "strategy": "low_rank",
            "name": "l",
            "world_size": 4,
            "rank": 8,
            "training": {"learning_rate": 0.01},
        },
    ],
    "baseline": "g",
    "controls": False,
    "measurement": {"rounds": 2, "seed": 7},
    "resources": {"device": "cpu", "cpus_per_rank": 0.5},
}

MODELS = [
    model
    for _, model in inspect.getmembers(spec_module, inspect.isclass)
    if issubclass(model, SpecModel) and model is not SpecModel
]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full spec with one value replaced (or added) at a dotted path."""
    document: dict[str, Any] = json.loads(json.dumps(FULL))
    *above, last = path.split(".")
    place: Any = document
    for part in above:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return document


@pytest.mark.parametrize("document", [MINIMAL, FULL], ids=["minimal", "full"])
def test_json_and_yaml_say_the_same(document: dict[str, Any]) -> None:
    expected = ExperimentSpec.model_validate(document)
    assert load_spec(json.dumps(document)) == expected
    assert load_spec(yaml.safe_dump(document, allow_unicode=True)) == expected
    assert load_spec(expected.model_dump_json()) == expected
    assert load_spec(yaml.safe_dump(expected.model_dump(mode="json"))) == expected


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_documented(model: type[BaseModel]) -> None:
    for name in model.model_fields:
        if name not in ("kind", "strategy"):
            assert description_of(model, name).rstrip().endswith("."), f"{model.__name__}.{name}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_but_those_a_user_must_know_has_a_default(model: type[BaseModel]) -> None:
    needed = {
        "ExperimentSpec": {"name", "task", "model", "training", "arms"},
        "ModelSpec": {"width"},
        "TrainingSpec": {"stop"},
        "FileTask": {"path", "features", "target", "target_kind"},
        "StopAtSteps": {"steps"},
        "StopAtTargetLoss": {"target_loss"},
        "StopAtSeconds": {"seconds"},
        "StopAtJoules": {"joules"},
        "PhantomArm": {"name", "ghosts"},
        "LowRankArm": {"name", "rank"},
    }
    arms = {"ArmBase", "DenseArm", "TensorArm", "BlockDiagonalArm"}
    expected = {"name"} if model.__name__ in arms else needed.get(model.__name__, set())
    assert {name for name, field in model.model_fields.items() if field.is_required()} == expected


def test_every_run_has_a_hard_limit() -> None:
    for model in MODELS:
        if model.__name__.startswith("StopAt"):
            assert issubclass(model, HardLimits)
    stop = TrainingSpec.model_validate({"stop": {"kind": "joules", "joules": 5}}).stop
    assert (stop.max_steps, stop.max_seconds) == (100_000, 3_600)


@pytest.mark.parametrize(
    "path",
    [
        "colour",
        "task.colour",
        "model.colour",
        "training.colour",
        "training.stop.colour",
        "training.schedule.colour",
    ]
    + [f"arms.{index}.colour" for index in range(6)]
    + ["arms.3.model.colour", "arms.5.training.stop", "measurement.colour", "resources.colour"],
)
def test_unknown_fields_are_refused_everywhere(path: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ExperimentSpec.model_validate(changed(path, 1))


def kinds(annotation: Any) -> set[Any]:
    """The types that a field may hold, lists and literals apart."""
    if get_origin(annotation) in (Literal, list, dict):
        return set()
    parts = get_args(annotation)
    return set().union(*map(kinds, parts)) if parts else {annotation}


def numeric_fields() -> list[tuple[str, type[BaseModel], str]]:
    return [
        (f"{model.__name__}.{name}", model, name)
        for model in MODELS
        for name, field in model.model_fields.items()
        if kinds(field.annotation) & {int, float}
    ]


SIGNED = {"ResourceSpec.priority"}
"""Number fields for which less than nothing has a meaning."""


def refusal(model: type[BaseModel], name: str, value: Any) -> list[str]:
    """Kinds of the errors that a value causes at a field."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate({name: value})
    return [error["type"] for error in caught.value.errors() if error["loc"] == (name,)]


@pytest.mark.parametrize(("model", "name"), [pytest.param(m, n, id=i) for i, m, n in numeric_fields()])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "1e999", True, False, "many", [1]])
def test_no_number_field_takes_what_is_no_number(model: type[BaseModel], name: str, value: Any) -> None:
    assert refusal(model, name, value), f"{name} took {value!r}"


@pytest.mark.parametrize(
    ("model", "name"), [pytest.param(m, n, id=i) for i, m, n in numeric_fields() if i not in SIGNED]
)
def test_no_number_field_but_these_takes_what_is_negative(model: type[BaseModel], name: str) -> None:
    assert refusal(model, name, -1), f"{name} took -1"


def test_there_are_number_fields_to_test() -> None:
    assert len(numeric_fields()) > 40


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "x" * 81),
        ("name", " begins with a space"),
        ("name", "line\nbreak"),
        ("name", "ends with one\n"),
        ("description", "zero\x00byte"),
        ("tags", {"a b": "c"}),
        ("tags", {"a": "\x07"}),
        ("tags", {f"k{index}": "v" for index in range(33)}),
        ("model.width", 0),
        ("model.width", 2**20 + 1),
        ("model.width", 63.5),
        ("model.activation", "sigmoid"),
        ("model.dtype", "float16"),
        ("training.optimizer", "lion"),
        ("training.learning_rate", 0),
        ("training.stop", {"kind": "forever"}),
        ("training.stop", {"steps": 3}),
        ("arms", []),
        ("arms", [FULL["arms"][0]] * 2),
        ("arms.0.world_size", 2),
        ("arms.3.ghosts", 0),
        ("arms.1.form", "ring"),
        ("arms.2.strategy", "telepathy"),
        ("baseline", "nobody"),
        ("measurement.rounds", 0),
        ("measurement.sample_rate_hz", 51),
        ("resources.device", "tpu"),
        ("task.feature_placement", "half"),
    ],
)
def test_values_out_of_range_are_refused(path: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        ExperimentSpec.model_validate(changed(path, value))


def test_more_arms_than_allowed_are_refused() -> None:
    arms = [{"strategy": "dense", "name": f"d{index}"} for index in range(33)]
    with pytest.raises(ValidationError, match="at most 32"):
        ExperimentSpec.model_validate(MINIMAL | {"arms": arms})
    assert len(ExperimentSpec.model_validate(MINIMAL | {"arms": arms[:32]}).arms) == 32


def file_task(**changes: Any) -> FileTask:
    given = {"path": "x.csv", "features": ["a", "b"], "target": "c", "target_kind": "regression"}
    return FileTask.model_validate(given | changes)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x.csv",
        "../x.csv",
        "a/../../x.csv",
        "a/..",
        "..\\x.csv",
        "a\\b.csv",
        "~/x.csv",
        "x\x00.csv",
        "x\n.csv",
        "//x.csv",
    ],
)
def test_paths_that_could_leave_the_data_roots_are_refused(path: str) -> None:
    with pytest.raises(ValidationError, match=r"leaves the data roots|control characters"):
        file_task(path=path)


@pytest.mark.parametrize("path", ["x", "x.txt", "x.csv.gz", ".csv", "folder/", ""])
def test_files_of_other_kinds_are_refused(path: str) -> None:
    with pytest.raises(ValidationError, match=r"can be read|at least 1"):
        file_task(path=path)


@pytest.mark.parametrize("path", ["x.csv", "a/b/c.parquet", "with space/ü.npz", "a..b/x.csv", "./x.csv"])
def test_paths_below_a_data_root_are_taken(path: str) -> None:
    assert file_task(path=path).path == path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": ["a", "b", "a"]}, r"features \['a'\] occur more than once"),
        ({"target": "a"}, "target = 'a' is among the features"),
        ({"feature_count": 3}, "feature_count = 3 does not fit the 2 names"),
        ({"path": "x.npz", "feature_count": 1}, "feature_count = 1 does not fit the 2 names"),
        ({"target_kind": "classification"}, "classes is not given"),
        ({"classes": 3}, "classes = 3 goes with a classification"),
        ({"features": []}, "at least 1"),
        ({"features": [""]}, "at least 1"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        file_task(**changes)


def test_columns_that_fit_are_taken() -> None:
    assert file_task(path="x.npz", feature_count=100).feature_count == 100
    assert file_task(feature_count=2).feature_count == 2
    assert file_task(target_kind="classification", classes=3).classes == 3


def test_a_spec_can_t_be_changed_after_it_was_checked() -> None:
    spec = ExperimentSpec.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"  # type: ignore[misc]


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert load_spec("{name: x, task: {kind: teacher, train_rows: 1e4}, " + yaml_rest()).task == TeacherTask(
        train_rows=10_000
    )


def yaml_rest() -> str:
    rest = {key: value for key, value in MINIMAL.items() if key not in ("name", "task")}
    return json.dumps(rest)[1:]


def test_a_phantom_arm_needs_its_ghosts() -> None:
    with pytest.raises(ValidationError, match="ghosts"):
        PhantomArm.model_validate({"name": "p"})


def test_reading_a_spec_or_a_message_loads_no_torch_and_no_numpy() -> None:
    code = (
        "import sys, phantom_core.spec, phantom_core.plan, phantom_core.protocol; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_dtensor_arms_are_compiled() -> None:
    assert TensorArm(name="t", implementation="dtensor", compiled=True).compiled
    with pytest.raises(ValueError, match="compiled = true goes with implementation = dtensor, not native"):
        TensorArm(name="t", compiled=True)


def test_tf32_makes_another_number_format() -> None:
    assert ModelSpec(width=8).number_format == "float32"
    assert ModelSpec(width=8, tf32=True).number_format == "tf32"
    assert ModelSpec(width=8, dtype="bfloat16").number_format == "bfloat16"


@pytest.mark.parametrize(
    ("given", "rounds", "planned"), [("auto", "auto", 30), (7, 7, 7), (7.0, 7, 7), ("7", 7, 7)]
)
def test_rounds_are_a_number_or_auto(given: object, rounds: object, planned: int) -> None:
    measurement = MeasurementSpec.model_validate({"rounds": given})
    assert (measurement.rounds, measurement.rounds_planned) == (rounds, planned)
    assert MeasurementSpec.model_validate_json(measurement.model_dump_json()) == measurement


@pytest.mark.parametrize("given", ["Auto", "", "-1", "many", 5.5, True, None, [1], float("nan"), 0, 1_001])
def test_what_is_neither_is_refused_with_one_reason(given: object) -> None:
    with pytest.raises(ValidationError) as refused:
        MeasurementSpec.model_validate({"rounds": given})
    assert [error["loc"] for error in refused.value.errors()] == [("rounds",)]


def test_the_fewest_rounds_can_not_be_more_than_the_most() -> None:
    with pytest.raises(ValidationError, match="min_rounds = 9 is more than max_rounds = 6; raise max_rounds"):
        MeasurementSpec(rounds="auto", min_rounds=9, max_rounds=6)
