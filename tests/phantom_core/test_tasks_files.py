import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

import phantom_core.tasks.columns as columns_module
import phantom_core.tasks.dataset as dataset_module
from phantom_core.spec import FileTask
from phantom_core.tasks import Dataset, TaskError, load_task, resolve_under_roots

SUFFIXES = [".parquet", ".csv", ".npz"]
ROWS = 40


def table() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "height": random.normal(170, 10, ROWS),
        "age": random.integers(0, 90, ROWS),
        "member": random.integers(0, 2, ROWS).astype(bool),
        "label": random.integers(0, 3, ROWS),
        "price": random.normal(5, 2, ROWS),
    }


def write(path: Path, columns: dict[str, Any]) -> None:
    match path.suffix:
        case ".parquet":
            parquet.write_table(pa.table(columns), path)
        case ".csv":
            csv.write_csv(pa.table(columns), path)
        case ".npz":
            np.savez(path, **columns)


def task(name: str, **changes: Any) -> FileTask:
    settings = {
        "path": name,
        "features": ["height", "age", "member"],
        "target": "label",
        "target_kind": "classification",
        "classes": 3,
    }
    return FileTask(**(settings | changes))


def regression(name: str, **changes: Any) -> FileTask:
    return task(name, target="price", target_kind="regression", classes=None, **changes)


# Where a path may lead


def test_a_path_is_found_below_the_first_root_that_has_it(tmp_path: Path) -> None:
    for root in ("one", "two"):
        (tmp_path / root / "deep").mkdir(parents=True)
    (tmp_path / "two" / "deep" / "file.csv").touch()
    roots = [tmp_path / "one", tmp_path / "two"]
    assert resolve_under_roots("deep/file.csv", roots) == (tmp_path / "two" / "deep" / "file.csv").resolve()
    (tmp_path / "one" / "deep" / "file.csv").touch()
    assert resolve_under_roots("deep/file.csv", roots) == (tmp_path / "one" / "deep" / "file.csv").resolve()


def test_links_that_stay_below_their_root_are_followed_as_is_a_root_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file.csv").touch()
    (tmp_path / "real" / "alias.csv").symlink_to("file.csv")
    (tmp_path / "root").symlink_to("real")
    found = resolve_under_roots("alias.csv", [tmp_path / "root"])
    assert found == (tmp_path / "real" / "file.csv").resolve()


@pytest.mark.parametrize("exists", [True, False], ids=["target exists", "target missing"])
@pytest.mark.parametrize("way", ["file link", "folder link", "dots", "absolute", "link to link"])
def test_a_path_that_leaves_its_root_is_refused_alike_whether_or_not_its_target_exists(
    tmp_path: Path, way: str, exists: bool
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    secret = outside / "secret.csv"
    if exists:
        secret.touch()
    (root / "link.csv").symlink_to(secret)
    (root / "folder").symlink_to(outside)
    (root / "second.csv").symlink_to("link.csv")
    path = {
        "file link": "link.csv",
        "folder link": "folder/secret.csv",
        "dots": "../outside/secret.csv",
        "absolute": str(secret),
        "link to link": "second.csv",
    }[way]
    with pytest.raises(TaskError, match="leads out of data root 1") as refused:
        resolve_under_roots(path, [root])
    if way != "absolute":
        assert str(tmp_path) not in str(refused.value)


def test_a_root_that_is_the_beginning_of_another_folders_name_does_not_contain_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data-private").mkdir()
    (tmp_path / "data-private" / "file.csv").touch()
    (tmp_path / "data" / "link.csv").symlink_to(tmp_path / "data-private" / "file.csv")
    with pytest.raises(TaskError, match="leads out"):
        resolve_under_roots("link.csv", [tmp_path / "data"])


@pytest.mark.parametrize(
    "path", ["missing.csv", "folder.csv", "pipe.csv", "loop.csv", "a\0.csv", "x" * 5_000, ""]
)
def test_what_is_no_regular_file_is_no_readable_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(TaskError, match="no readable file below any of the 2 data roots") as refused:
        resolve_under_roots(path, [tmp_path, tmp_path / "missing root"])
    assert str(tmp_path) not in str(refused.value)


def test_without_a_data_root_no_file_can_be_read() -> None:
    with pytest.raises(TaskError, match="no data roots"):
        load_task(task("file.csv"), [])


# What a file may hold


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_gives_standardised_features_and_its_classes(tmp_path: Path, suffix: str) -> None:
    columns = table()
    write(tmp_path / f"file{suffix}", columns)
    dataset = load_task(task(f"file{suffix}"), [tmp_path])
    np.testing.assert_allclose(dataset.train_features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(dataset.train_features.std(axis=0), 1, atol=1e-6)
    assert len(dataset.validation_features) == 4
    labels = np.concatenate([dataset.train_targets, dataset.validation_targets])
    assert np.bincount(labels).tolist() == np.bincount(columns["label"]).tolist()
    # The heights identify the rows: their labels must have come along.
    heights = np.concatenate([dataset.train_features[:, 0], dataset.validation_features[:, 0]])
    assert labels[np.argsort(heights)].tolist() == columns["label"][np.argsort(columns["height"])].tolist()


def test_the_three_formats_give_one_dataset(tmp_path: Path) -> None:
    datasets = []
    for suffix in SUFFIXES:
        write(tmp_path / f"file{suffix}", table())
        datasets.append(load_task(regression(f"file{suffix}"), [tmp_path]))
    for other in datasets[1:]:
        np.testing.assert_array_equal(datasets[0].train_features, other.train_features)
        np.testing.assert_array_equal(datasets[0].validation_targets, other.validation_targets)


def test_a_regression_target_is_in_units_of_its_spread_over_the_training_rows(tmp_path: Path) -> None:
    write(tmp_path / "file.npz", table())
    dataset = load_task(regression("file.npz"), [tmp_path])
    assert dataset.train_targets.shape == (ROWS - 4, 1)
    assert (dataset.train_targets.astype(np.float64) ** 2).mean() == pytest.approx(1, abs=1e-6)


def test_a_two_dimensional_array_gives_a_feature_per_column(tmp_path: Path) -> None:
    images = np.arange(ROWS * 5.0).reshape(ROWS, 5) ** 2
    np.savez(tmp_path / "file.npz", **(table() | {"images": images}))
    asked = task("file.npz", features=["images", "age"], feature_count=6)
    assert load_task(asked, [tmp_path]).train_features.shape == (ROWS - 4, 6)
    with pytest.raises(TaskError, match="set feature_count = 6"):
        load_task(task("file.npz", features=["images", "age"]), [tmp_path])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_column_is_named_with_the_nearest_ones(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"file{suffix}", table())
    asked = task(f"file{suffix}", features=["Heigth", "zzz"])
    with pytest.raises(
        TaskError, match=r"no column 'Heigth' \(nearest: 'height'.*\); 'zzz'; it has 5 columns"
    ):
        load_task(asked, [tmp_path])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_and_the_first_is_named(
    tmp_path: Path, suffix: str, value: float
) -> None:
    columns = table()
    columns["height"][[7, 31]] = value
    write(tmp_path / f"file{suffix}", columns)
    with pytest.raises(TaskError, match=r"column 'height' has 2 .* \(the first in row 7\)"):
        load_task(task(f"file{suffix}"), [tmp_path])


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_nulls_are_counted_and_the_first_is_named(tmp_path: Path, suffix: str) -> None:
    ages = [None if row in (3, 9) else row for row in range(ROWS)]
    write(tmp_path / f"file{suffix}", table() | {"age": ages})
    with pytest.raises(TaskError, match=r"column 'age' has 2 missing values \(the first in row 3\)"):
        load_task(task(f"file{suffix}"), [tmp_path])


def test_text_among_the_numbers_of_a_csv_is_counted_and_the_first_is_named(tmp_path: Path) -> None:
    ages = ["secret" if row in (5, 6) else str(row) for row in range(ROWS)]
    write(tmp_path / "file.csv", table() | {"age": ages})
    with pytest.raises(
        TaskError, match=r"column 'age' has 2 values that are no numbers \(the first in row 5\)"
    ) as refused:
        load_task(task("file.csv"), [tmp_path])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        ["a"] * ROWS,
        [b"\xff"] * ROWS,
        [[1.0]] * ROWS,
        [{"x": 1}] * ROWS,
        pa.array(np.arange(ROWS), pa.timestamp("s")),
        pa.nulls(ROWS),
        pa.array(["a"] * ROWS).dictionary_encode(),
    ],
    ids=["text", "bytes", "list", "struct", "time", "null", "dictionary"],
)
def test_columns_of_a_parquet_that_hold_no_numbers_are_refused(tmp_path: Path, values: Any) -> None:
    write(tmp_path / "file.parquet", table() | {"age": values})
    with pytest.raises(TaskError, match="column 'age' has"):
        load_task(task("file.parquet"), [tmp_path])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"] * ROWS), "not numbers"),
        (np.zeros(ROWS, complex), "not numbers"),
        (np.zeros(ROWS, "M8[s]"), "not numbers"),
        (np.array([{}] * ROWS), "not numbers"),
        (np.zeros(ROWS, [("x", float)]), "not numbers"),
        (np.float64(1), r"shape \(\)"),
        (np.zeros((ROWS, 2, 2)), r"shape \(40, 2, 2\)"),
        (np.zeros(ROWS + 1), "must be equal"),
    ],
    ids=["text", "complex", "time", "objects", "records", "scalar", "3-D", "longer"],
)
def test_arrays_of_an_npz_that_are_no_column_of_numbers_are_refused(
    tmp_path: Path, array: Any, message: str
) -> None:
    np.savez(tmp_path / "file.npz", **(table() | {"age": array}))
    with pytest.raises(TaskError, match=message):
        load_task(task("file.npz"), [tmp_path])


class Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was run",))


def test_a_pickle_in_an_npz_is_never_run(tmp_path: Path) -> None:
    write(tmp_path / "file.npz", table() | {"age": np.array([Explosive()] * ROWS, dtype=object)})
    with pytest.raises(TaskError, match="not numbers"):
        load_task(task("file.npz"), [tmp_path])


def test_an_npz_that_declares_a_huge_array_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        for name in ("height", "age", "member", "label"):
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(TaskError, match=r"1,000,000,000,000 rows .* the limit is"):
        load_task(task("file.npz"), [tmp_path])


def test_an_array_shorter_than_it_declares_is_malformed(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1_000,)})
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        for name in ("height", "age", "member", "label"):
            archive.writestr(f"{name}.npy", header.getvalue() + b"\0" * 80)
    with pytest.raises(TaskError, match="no well-formed NPZ"):
        load_task(task("file.npz"), [tmp_path])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_and_tables_over_the_limits_are_refused(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / f"file{suffix}", table())
    monkeypatch.setattr(dataset_module, "MAX_TABLE_BYTES", 4 * ROWS * 4 - 1)
    with pytest.raises(TaskError, match="use fewer rows or columns"):
        load_task(task(f"file{suffix}"), [tmp_path])
    monkeypatch.setattr(columns_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(TaskError, match="at most"):
        load_task(task(f"file{suffix}"), [tmp_path])


@pytest.mark.parametrize("values", [[3] + [0] * 39, [-1] + [0] * 39, [0.5] + [0.0] * 39])
def test_targets_that_are_no_class_index_are_counted_and_the_first_is_named(
    tmp_path: Path, values: list[float]
) -> None:
    write(tmp_path / "file.csv", table() | {"label": values[::-1]})
    with pytest.raises(TaskError, match=r"1 values that are no class index \(the first in row 39\).*0 to 2"):
        load_task(task("file.csv"), [tmp_path])


def test_classes_may_be_written_as_whole_floats(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet", table() | {"label": table()["label"].astype(float)})
    assert load_task(task("file.parquet"), [tmp_path]).train_targets.dtype == np.int64


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_column_name_that_occurs_twice_in_the_file_is_refused(tmp_path: Path, suffix: str) -> None:
    names = ["height", "age", "member", "label", "age"]
    doubled = pa.table([pa.array(range(ROWS))] * 5, names=names)
    (parquet.write_table if suffix == ".parquet" else csv.write_csv)(doubled, tmp_path / f"file{suffix}")
    with pytest.raises(TaskError, match="more than one column 'age'"):
        load_task(task(f"file{suffix}"), [tmp_path])


def test_a_regression_target_that_never_varies_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "file.csv", table() | {"price": [0.1] * ROWS})
    with pytest.raises(TaskError, match="the same in every training row"):
        load_task(regression("file.csv"), [tmp_path])


def test_a_feature_that_varies_only_in_evaluation_rows_is_zero_there(tmp_path: Path) -> None:
    write(tmp_path / "file.csv", table())
    validation = load_task(task("file.csv"), [tmp_path]).validation_features
    heights = table()["height"]
    scaled = (heights - heights.mean()) / heights.std()
    row = int(np.argmin(np.abs(scaled - validation[0, 0])))
    constant = [1.0] * ROWS
    constant[row] = 1e30
    write(tmp_path / "file.csv", table() | {"age": constant})
    assert not load_task(task("file.csv"), [tmp_path]).validation_features[:, 1].any()


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e200, 8e307])
def test_numbers_of_any_size_are_standardised(tmp_path: Path, unit: float) -> None:
    steps = np.linspace(-1, 1, ROWS)
    write(tmp_path / "file.npz", table() | {"height": steps, "age": unit * steps})
    features = load_task(task("file.npz"), [tmp_path]).train_features
    np.testing.assert_allclose(features[:, 0], features[:, 1], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("height,age,member,label\n1,2\n", "a row has 2 of 4 columns"),
        ("height,age,member,label\n" + "1,2,0,1\n" * 9 + "1,2,0,1,5\n", "a row has 5 of 4 columns"),
        ("height,age,member,label\n", "no train rows|leaves none|values of type null"),
    ],
    ids=["empty", "short row", "long row", "no rows"],
)
def test_a_malformed_csv_is_refused_with_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "file.csv").write_text(text)
    with pytest.raises(TaskError, match=reason):
        load_task(task("file.csv"), [tmp_path])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_another_kind_than_its_suffix_says_is_refused_without_its_place(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / f"file{suffix}").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    with pytest.raises(TaskError) as refused:
        load_task(task(f"file{suffix}"), [tmp_path])
    assert str(tmp_path) not in str(refused.value)
    assert str(refused.value).startswith(f"file{suffix}: ")


def load_or_error(asked: FileTask, root: Path) -> Dataset | TaskError:
    try:
        return load_task(asked, [root])
    except TaskError as error:
        return error


def valid(suffix: str) -> bytes:
    buffer = io.BytesIO()
    match suffix:
        case ".parquet":
            parquet.write_table(pa.table(table()), buffer)
        case ".csv":
            csv.write_csv(pa.table(table()), buffer)
        case ".npz":
            np.savez(buffer, **table())  # type: ignore[arg-type]
    return buffer.getvalue()


VALID = {suffix: valid(suffix) for suffix in SUFFIXES}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    suffix = draw(st.sampled_from(SUFFIXES))
    content = bytearray(VALID[suffix])
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["change", "insert", "cut", "end"])):
            case "change":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
            case "insert":
                content[at:at] = draw(st.binary(max_size=20))
            case "cut":
                del content[at : at + draw(st.integers(1, 50))]
            case _:
                del content[at:]
    return suffix, bytes(content)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged())
def test_a_damaged_file_gives_a_dataset_or_a_task_error_and_never_anything_else(
    tmp_path: Path, file: tuple[str, bytes]
) -> None:
    suffix, content = file
    (tmp_path / f"file{suffix}").write_bytes(content)
    loaded = load_or_error(task(f"file{suffix}"), tmp_path)
    if isinstance(loaded, TaskError):
        assert str(tmp_path) not in str(loaded)
    else:
        assert np.isfinite(loaded.train_features).all()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet=st.sampled_from("0123456789.,-+eE\n\r\"' \tnaif\0é"), max_size=200),
    header=st.booleans(),
)
def test_any_text_as_a_csv_gives_a_dataset_or_a_task_error(tmp_path: Path, text: str, header: bool) -> None:
    (tmp_path / "file.csv").write_text(("height,age,member,label\n" if header else "") + text)
    loaded = load_or_error(task("file.csv"), tmp_path)
    assert header or isinstance(loaded, TaskError)
