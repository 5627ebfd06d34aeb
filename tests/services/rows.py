"""All rows of one experiment, without what differs between two that had the same events: ids, keys, hours."""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import select

from services import moves, rounds
from services.database import Database
from services.power_blocks import unpack
from services.tables import (
    Arm,
    Attempt,
    Base,
    BoardStateBlock,
    Device,
    Event,
    Experiment,
    MetricBlock,
    PowerSample,
    Run,
    Window,
)

OF_THE_SERVICE = {moves.SERVICE, rounds.SOURCE}
"""Who writes lines of the log when the service's clock says so."""
SERVICE_CLOCK = {
    "submitted_at",
    "leased_at",
    "starting_at",
    "finished_at_by_service",
    "last_event_at",
    "assigned_at",
    "received_at",
    "computed_at",
    "compared_at",
    "version",
    "lease_expires_at",
    "ray_job_id",
}


def snapshot(db: Database, experiment_id: str) -> dict[str, list[str]]:
    """Rows by table, each as text, sorted."""
    with db.read() as session:
        experiment = session.get_one(Experiment, experiment_id)
        runs = session.scalars(select(Run).where(Run.experiment_id == experiment_id)).all()
        arms = session.scalars(select(Arm).where(Arm.experiment_id == experiment_id)).all()
        devices = session.scalars(select(Device).where(Device.experiment_id == experiment_id)).all()
        names: dict[tuple[str, int], str] = {("arm_key", arm.key): arm.name for arm in arms}
        names |= {("run_key", run.key): run.id for run in runs}
        names |= {("device_key", device.key): device.uuid for device in devices}
        run_keys = [run.key for run in runs]
        device_keys = [device.key for device in devices]
        found: dict[type[Base], list[Any]] = {
            Experiment: [experiment],
            Run: list(runs),
            Device: list(devices),
            Attempt: list(session.scalars(select(Attempt).where(Attempt.run_key.in_(run_keys)))),
            Window: list(session.scalars(select(Window).where(Window.experiment_id == experiment_id))),
            MetricBlock: list(session.scalars(select(MetricBlock).where(MetricBlock.run_key.in_(run_keys)))),
            BoardStateBlock: list(
                session.scalars(select(BoardStateBlock).where(BoardStateBlock.device_key.in_(device_keys)))
            ),
            Event: list(
                session.scalars(
                    select(Event).where(
                        Event.experiment_id == experiment_id, Event.source.not_in(OF_THE_SERVICE)
                    )
                )
            ),
        }
        power = session.scalars(select(PowerSample).where(PowerSample.device_key.in_(device_keys)))
        return {
            table.__tablename__: sorted(_text(row, names, experiment_id) for row in rows)
            for table, rows in found.items()
        } | {PowerSample.__tablename__: sorted(each for row in power for each in _readings(row, names))}


def _readings(block: PowerSample, names: dict[tuple[str, int], str]) -> Iterator[str]:
    """Each reading: which block it is in is the service's own business, and changes when it joins them."""
    found = unpack(block.readings)
    owner = (names["device_key", block.device_key], block.experiment_attempt, block.method)
    columns = (found.at_us.tolist(), found.monotonic_s.tolist(), found.power_mw.tolist())
    for reading in zip(*columns, strict=True):
        yield repr((*owner, *reading))


def _text(row: Any, names: dict[tuple[str, int], str], experiment_id: str) -> str:
    values = {}
    for column in row.__table__.columns:
        name, value = column.name, getattr(row, column.name)
        is_service_end = name == "finished_at" and isinstance(row, Experiment)
        if name == "key" or name in SERVICE_CLOCK or is_service_end:
            continue
        if name == "device_keys" and value is not None:
            value = sorted(names["device_key", key] for key in value)
        if name == "comparison" and value is not None:
            value = {key: part for key, part in value.items() if key != "computed_at"}
        values[name] = names.get((name, value), value) if isinstance(value, int) else value
    return json.dumps(values, sort_keys=True, default=repr).replace(experiment_id, "EXPERIMENT")
