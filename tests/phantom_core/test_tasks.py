import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phantom_core.tasks.teacher as teacher_module
from phantom_core.spec import DigitsTask, TeacherTask
from phantom_core.task_rows import training_rows
from phantom_core.task_shapes import task_shape
from phantom_core.tasks import Dataset, TaskError, load_task
from phantom_core.tasks.dataset import Scaling, split_rows
from phantom_core.tasks.exact import Deviates, moments, on_grid
from phantom_core.tasks.teacher import mixing_weights

SMALL = TeacherTask(
    features=32, outputs=3, latents=16, teacher_width=24, train_rows=2_000, validation_rows=500, seed=7
)


def digest(dataset: Dataset) -> str:
    parts = (
        dataset.train_features,
        dataset.train_targets,
        dataset.validation_features,
        dataset.validation_targets,
    )
    return hashlib.sha256(
        b"".join(part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts)
    ).hexdigest()


def unexplained(features: np.ndarray, targets: np.ndarray) -> float:
    """Share of the targets' variance that the best linear prediction leaves."""
    solution = np.linalg.lstsq(features, targets)[0]
    return float((targets - features @ solution).var() / targets.var())


def test_a_teacher_task_is_the_same_to_the_bit_on_every_machine() -> None:
    assert digest(load_task(SMALL)) == "f676ba4012ef45b08a14419d59cd7d3fbc544fcbdb2765d76c32ecc46a055ed3"


def test_a_teacher_task_does_not_depend_on_how_much_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digest(load_task(SMALL))
    monkeypatch.setattr(teacher_module, "_BLOCK_VALUES", 32 * 7)
    assert digest(load_task(SMALL)) == whole


def test_another_seed_gives_another_teacher_task() -> None:
    other = SMALL.model_copy(update={"seed": 8})
    assert digest(load_task(SMALL)) != digest(load_task(other))


def test_predicting_the_mean_of_a_teacher_costs_a_loss_of_one() -> None:
    dataset = load_task(SMALL)
    targets = dataset.train_targets.astype(np.float64)
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose((targets**2).mean(axis=0), 1, atol=1e-5)
    assert (dataset.validation_targets.astype(np.float64) ** 2).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("noise_std", [0.0, 0.1, 2.0])
def test_teacher_features_have_unit_variance_whatever_the_noise(noise_std: float) -> None:
    features = load_task(SMALL.model_copy(update={"noise_std": noise_std})).train_features
    assert features.var(axis=0).mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("p", [2, 4])
def test_a_rank_that_sees_its_columns_alone_misses_latents_that_the_others_see(p: int) -> None:
    weights = mixing_weights(TeacherTask())
    seen = [(part != 0).any(axis=1) for part in np.split(weights, p, axis=1)]
    assert np.logical_or.reduce(seen).all()
    for own in seen:
        assert own.mean() <= 1 / p + 1 / 8 + 1 / 64


def test_all_features_together_tell_much_more_of_the_targets_than_one_ranks() -> None:
    dataset = load_task(SMALL)
    features, targets = dataset.train_features, dataset.train_targets
    everything = unexplained(features, targets)
    for own in np.split(features, 2, axis=1):
        assert unexplained(own, targets) > everything + 0.15


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        TeacherTask,
        features=st.integers(1, 40),
        outputs=st.integers(1, 5),
        latents=st.integers(1, 40),
        teacher_width=st.integers(1, 20),
        teacher_depth=st.integers(1, 64),
        noise_std=st.sampled_from([0.0, 1e-6, 1.0, 1_000.0]),
        train_rows=st.integers(1, 50),
        validation_rows=st.integers(1, 20),
        seed=st.integers(0, 2**31 - 1),
    )
)
def test_every_teacher_task_is_finite_and_as_large_as_its_shape_says(task: TeacherTask) -> None:
    dataset = load_task(task)
    assert dataset.shape == task_shape(task)
    assert dataset.train_features.shape == (task.train_rows, task.features)
    assert dataset.validation_targets.shape == (task.validation_rows, task.outputs)
    assert np.isfinite(dataset.train_features).all()
    assert np.isfinite(dataset.train_targets).all()
    assert np.isfinite(dataset.validation_targets).all()


def test_a_deep_narrow_teacher_still_answers_differently_for_different_rows() -> None:
    task = SMALL.model_copy(update={"teacher_width": 1, "teacher_depth": 64})
    targets = load_task(task).train_targets
    np.testing.assert_allclose(targets.std(axis=0), 1, atol=1e-3)


def test_a_teacher_task_too_large_for_any_host_is_refused_before_it_is_made() -> None:
    with pytest.raises(TaskError, match=r"teacher features: 100,002,048 rows .* the limit is 64 GiB"):
        load_task(TeacherTask(features=1_048_576, train_rows=100_000_000))


def test_deviates_are_standardised_and_nearly_normal() -> None:
    values = Deviates(0, "test").draw(1_000, 1_000).astype(np.float64)
    assert values.mean() == pytest.approx(0, abs=4e-3)
    assert values.var() == pytest.approx(1, abs=6e-3)
    assert (values**4).mean() == pytest.approx(2.7, abs=0.05)
    assert np.corrcoef(values[:, 0::2].ravel(), values[:, 1::2].ravel())[0, 1] == pytest.approx(0, abs=6e-3)


def test_deviates_of_two_purposes_are_unrelated() -> None:
    one, other = (Deviates(3, purpose).draw(1, 10_000)[0] for purpose in ("one", "other"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_moments_of_grid_values_are_exact() -> None:
    values = on_grid(Deviates(0, "moments").draw(5_001, 3)) + 1_000
    mean, variance = moments(values)
    steps = [[int(step) for step in column] for column in np.rint(values * 2**14).T.astype(np.int64)]
    for column, (m, v) in zip(steps, zip(mean, variance, strict=True), strict=True):
        n = len(column)
        exact = (n * sum(s * s for s in column) - sum(column) ** 2) / n**2
        assert m == pytest.approx(sum(column) / n / 2**14, rel=1e-15)
        assert v == pytest.approx(exact / 2**28, rel=1e-9)


def test_digits_are_standardised_by_the_training_rows_alone() -> None:
    dataset = load_task(DigitsTask())
    assert len(dataset.train_features) + len(dataset.validation_features) == 1_797
    assert len(dataset.validation_features) == 359
    mean, std = dataset.train_features.mean(axis=0), dataset.train_features.std(axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-5)
    assert set(np.round(std, 3)) <= {0.0, 1.0}
    assert np.abs(dataset.validation_features.mean(axis=0)).max() > 0.01
    assert set(dataset.train_targets) == set(range(10))


def test_the_seed_of_digits_chooses_the_rows_that_are_kept_for_evaluation() -> None:
    assert digest(load_task(DigitsTask(seed=1))) == digest(load_task(DigitsTask(seed=1)))
    assert digest(load_task(DigitsTask(seed=1))) != digest(load_task(DigitsTask(seed=2)))


@pytest.mark.parametrize("task", [SMALL, DigitsTask(), DigitsTask(validation_fraction=0.333)], ids=str)
def test_the_rows_promised_before_loading_are_those_loaded(task: TeacherTask | DigitsTask) -> None:
    assert training_rows(task) == len(load_task(task).train_features)


def test_no_row_is_both_trained_and_evaluated_on_and_none_is_lost() -> None:
    train, validation = split_rows(101, 0.25, seed=3)
    assert sorted([*train, *validation]) == list(range(101))
    assert len(validation) == 25


def test_a_split_keeps_at_least_one_row_for_evaluation_and_one_for_training() -> None:
    assert len(split_rows(10, 1e-9, seed=0)[1]) == 1
    with pytest.raises(TaskError, match="leaves none to train on"):
        split_rows(10, 0.96, seed=0)


def test_a_constant_column_becomes_zero_even_if_its_value_is_no_binary_fraction() -> None:
    table = np.full((1_000, 1), 0.1)
    assert not Scaling.of(table).apply(table).any()


def test_the_arrays_of_a_dataset_cannot_be_changed() -> None:
    dataset = load_task(DigitsTask())
    with pytest.raises(ValueError, match="read-only"):
        dataset.train_features[0, 0] = 1


def test_a_dataset_s_digest_tells_any_change_of_any_number() -> None:
    dataset = load_task(TeacherTask(train_rows=64, validation_rows=16))
    assert dataset.digest() == load_task(TeacherTask(train_rows=64, validation_rows=16)).digest()
    for part in ("train_features", "train_targets", "validation_features", "validation_targets"):
        changed = getattr(dataset, part).copy()
        changed.flat[-1] += 1
        assert dataclasses.replace(dataset, **{part: changed}).digest() != dataset.digest(), part
