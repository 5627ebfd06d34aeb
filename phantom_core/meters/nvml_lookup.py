"""Which boards there are, and which one a UUID means: full, shortened, without prefix, or a MIG slice's."""

import re
from dataclasses import dataclass

from phantom_core.meters.base import DeviceNotFound
from phantom_core.meters.nvml_library import NvmlSession


@dataclass(frozen=True)
class BoardEntry:
    """A board in the driver's list."""

    index: int
    """Place in NVML's order, which is the PCI bus order; CUDA's may differ. Never used to find a board."""
    uuid: str
    """Full UUID, `GPU-...`."""
    name: str | None
    """Model name."""
    memory_bytes: int | None
    """Memory."""
    mig_uuids: tuple[str, ...] = ()
    """UUIDs of its MIG slices, in order; empty if it is not divided."""


@dataclass(frozen=True)
class FoundBoard:
    """The board whose energy stands for a device."""

    uuid: str
    """Full UUID of the board."""
    mig_uuid: str | None
    """UUID of the MIG slice that was asked for; None if the board itself was."""
    divided: bool = False
    """Whether the board is divided into MIG slices: then whatever computes on it has but a slice, also where CUDA gives
    the board's UUID for it."""


def list_boards() -> tuple[BoardEntry, ...]:
    """All boards of this host, for reports.

    Raises:
        MeterUnavailable: NVML can't be opened on this host.
    """
    session = NvmlSession()
    session.open()
    try:
        return boards_of(session)
    finally:
        session.close()


def boards_of(session: NvmlSession) -> tuple[BoardEntry, ...]:
    """All boards that the driver lists, without those that can't say their UUID (lost ones)."""
    count = session.ask("nvmlDeviceGetCount").value or 0
    boards = []
    for index in range(count):
        handle = session.ask("nvmlDeviceGetHandleByIndex", index).value
        if handle is None:
            continue
        uuid = session.ask("nvmlDeviceGetUUID", handle).value
        if uuid is None:
            continue
        memory = session.ask("nvmlDeviceGetMemoryInfo", handle).value
        boards.append(
            BoardEntry(
                index=index,
                uuid=uuid,
                name=session.ask("nvmlDeviceGetName", handle).value,
                memory_bytes=None if memory is None else int(memory.total),
                mig_uuids=_mig_uuids(session, handle),
            )
        )
    return tuple(boards)


def find_board(session: NvmlSession, uuid: str) -> FoundBoard:
    """The board that a device UUID means.

    Args:
        session: An open NVML.
        uuid: `GPU-...` in full or shortened to any unique beginning, the same without `GPU-`
            (as PyTorch gives it), `MIG-...` of a slice, or the older `MIG-GPU-<board>/<instance>/<instance>`.

    Raises:
        DeviceNotFound: No board, or several, have a UUID like that; the message lists what there is.
    """
    wanted = uuid.strip()
    legacy = re.fullmatch(r"MIG-(GPU-[0-9a-f-]+)/\d+/\d+", wanted, re.IGNORECASE)
    if legacy:
        return FoundBoard(find_board(session, legacy[1]).uuid, wanted, divided=True)
    boards = boards_of(session)
    forms = [wanted] if wanted.upper().startswith(("GPU-", "MIG-")) else [f"GPU-{wanted}", f"MIG-{wanted}"]
    matches = {
        FoundBoard(board.uuid, None if candidate == board.uuid else candidate, bool(board.mig_uuids))
        for board in boards
        for candidate in (board.uuid, *board.mig_uuids)
        for form in forms
        if wanted and candidate.lower().startswith(form.lower())
    }
    exact = {
        match
        for match in matches
        if (match.mig_uuid or match.uuid).lower() in [form.lower() for form in forms]
    }
    found = exact or matches
    if len(found) == 1:
        return found.pop()
    known = ", ".join(each for board in boards for each in (board.uuid, *board.mig_uuids)) or "none"
    problem = f"means {len(found)} devices" if found else "is no device of this host"
    silent = (session.ask("nvmlDeviceGetCount").value or 0) - len(boards)
    lost = f" ({silent} more don't answer)" if silent > 0 else ""
    raise DeviceNotFound(f"device UUID {uuid!r} {problem}; the driver lists: {known}{lost}")


def _mig_uuids(session: NvmlSession, handle: object) -> tuple[str, ...]:
    mode = session.ask("nvmlDeviceGetMigMode", handle).value
    if not mode or not mode[0]:
        return ()
    uuids = []
    for index in range(session.ask("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0):
        slice_handle = session.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index).value
        if slice_handle is not None:
            uuids.append(session.ask("nvmlDeviceGetUUID", slice_handle).value)
    return tuple(uuid for uuid in uuids if uuid is not None)
