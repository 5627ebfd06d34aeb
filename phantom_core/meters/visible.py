"""Which boards a process sees under a value of CUDA_VISIBLE_DEVICES, as UUIDs.

The runtime reads the value as PyTorch's `torch.cuda` documents it: a list of indexes, or of UUIDs that may be
shortened; what can't be understood ends the list; a device that is named twice empties it.
"""

import re
from collections.abc import Sequence

from phantom_core.meters.base import MeterError
from phantom_core.meters.nvml_lookup import BoardEntry


def visible_uuids(
    visible_devices: str | None, boards: Sequence[BoardEntry], device_order: str | None = None
) -> tuple[str, ...]:
    """UUIDs of the devices `cuda:0`, `cuda:1`, ... of a process.

    Args:
        visible_devices: Its CUDA_VISIBLE_DEVICES; None if unset, which shows all boards.
        boards: The driver's boards in its own order (`nvml_lookup.list_boards`).
        device_order: Its CUDA_DEVICE_ORDER; None if unset, which puts the fastest board first.

    Returns:
        UUIDs in CUDA's order; of a board that is divided, its first MIG slice, which is all that CUDA shows.

    Raises:
        MeterError: Boards of several models, found by index, without CUDA_DEVICE_ORDER=PCI_BUS_ID: which of
            them CUDA takes for the fastest can't be told.
    """
    if visible_devices is not None and visible_devices.strip().upper().startswith(("GPU-", "MIG-")):
        return _by_uuid([entry.strip() for entry in visible_devices.split(",")], boards)
    indexes = list(range(len(boards))) if visible_devices is None else _indexes(visible_devices, len(boards))
    if indexes and device_order != "PCI_BUS_ID" and len({board.name for board in boards}) > 1:
        models = ", ".join(sorted({str(board.name) for board in boards}))
        raise MeterError(
            f"CUDA_VISIBLE_DEVICES = {visible_devices!r} counts boards of several models ({models}) in an "
            "order that only CUDA knows; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the boards by UUID"
        )
    return tuple((boards[index].mig_uuids or (boards[index].uuid,))[0] for index in indexes)


def _indexes(visible_devices: str, count: int) -> list[int]:
    indexes: list[int] = []
    for entry in visible_devices.split(","):
        number = re.match(r"[+-]?\d+", entry.strip())
        index = int(number[0]) if number else -1
        if index in indexes:
            return []
        if not 0 <= index < count:
            break
        indexes.append(index)
    return indexes


def _by_uuid(entries: Sequence[str], boards: Sequence[BoardEntry]) -> tuple[str, ...]:
    known = [uuid for board in boards for uuid in (board.uuid, *board.mig_uuids)]
    found: list[str] = []
    for entry in entries:
        matches = [uuid for uuid in known if entry and uuid.lower().startswith(entry.lower())]
        if len(matches) != 1:
            break
        if matches[0] in found:
            return ()
        found.append(matches[0])
    return tuple(found)
