"""Runs the fused exchange's kernels without a GPU: a thread for every program of every rank, one at a time.

Not a test. `triton` is a stand-in whose loads and stores go to this process's memory; the kernels' source and the host
side that launches them are the real ones. Flags are seen at once and in order, so what this shows is the protocol and
the indexing: halves, epochs, masks, tiles, limits. What a GPU's memory model adds it can't show.
"""

import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from phantom_core import ghost_exchange
from phantom_core.ghost_exchange import MOST_BLOCKS, TILE_BYTES, SymmetricExchange

_SOURCE = Path(ghost_exchange.__file__).with_name("ghost_kernels.py")


class _PointerType:
    def __init__(self, element: Any) -> None:
        self.element = element


class _Pointer:
    """Elements at offsets into the memory of one tensor, or a table of such memories."""

    def __init__(self, memory: Any, bytes_in: Any = 0, element: torch.dtype = torch.uint8) -> None:
        self._memory, self._bytes, self._element = memory, bytes_in, element

    @property
    def dtype(self) -> Any:
        return type("Pointer", (), {"element_ty": self._element})

    def __add__(self, offset: Any) -> "_Pointer":
        return _Pointer(self._memory, self._bytes + offset * self._element.itemsize, self._element)

    def to(self, kind: _PointerType) -> "_Pointer":
        if isinstance(self._memory, list):
            return self
        return _Pointer(self._memory, self._bytes, kind.element)

    def is_multiple_of(self, multiple: int) -> bool:
        """Whether its address is, if the memory's begin is."""
        return int(self._bytes) % multiple == 0

    def load(self, mask: Any, other: Any) -> Any:
        if isinstance(self._memory, list):  # of ranks' memories, one byte apart
            return _Pointer(self._memory[self._bytes])
        at, whole = self._places(), self._memory.view(self._element)
        if mask is None:
            return whole[at]
        # Without a number for what is masked out it is undefined.
        loaded = torch.full(at.shape, torch.nan if other is None else other, dtype=self._element)
        loaded[mask] = whole[at[mask]]  # out of bounds raises
        return loaded

    def store(self, value: torch.Tensor, mask: Any) -> None:
        at, whole = self._places(), self._memory.view(self._element)
        assert mask is None or (at[mask] >= 0).all()
        if mask is None:
            whole[at] = value
        else:
            assert value.dtype == self._element, "a store must not round unseen"
            whole[at[mask]] = value[mask]

    def _places(self) -> torch.Tensor:
        at = torch.as_tensor(self._bytes).to(torch.int64)
        assert (at % self._element.itemsize == 0).all(), "not aligned"
        return at // self._element.itemsize


class _Kernel:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(*args, **options)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, **options: Any) -> None:
            assert num_warps * 32 >= options["world"], "a thread for each rank"
            given = [_pointed(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            _LAUNCHED.append((grid[0], lambda: self._function(*given, **options)))

        return launch


_LAUNCHED: list[tuple[int, Callable[[], None]]] = []
_PROGRAM = threading.local()


def _pointed(tensor: torch.Tensor) -> _Pointer:
    assert tensor.is_contiguous()
    return _Pointer(tensor.view(-1).view(torch.uint8), 0, tensor.dtype)


class Machine:
    """Ranks with memory in each other's reach.

    Args:
        world_size: Ranks.
        seed: Of the order in which programs run.
    """

    def __init__(self, world_size: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._world_size = world_size
        nan = torch.full((2 * MOST_BLOCKS * world_size * TILE_BYTES // 8,), float("nan"), dtype=torch.float64)
        arenas: list[Any] = [nan.clone().view(torch.uint8) for _ in range(world_size)]
        self._pads = [[0] * (MOST_BLOCKS * world_size) for _ in range(world_size)]
        self._programs: dict[tuple[int, int], list[Callable[[], None]]] = {}
        kernels = _kernels(self)
        self.exchanges: list[SymmetricExchange] = []
        """Every rank's."""
        for rank in range(world_size):
            exchange = object.__new__(SymmetricExchange)
            handle = type("Handle", (), {"buffer_ptrs_dev": _Pointer(arenas), "signal_pad_ptrs_dev": rank})
            vars(exchange).update(
                rank=rank,
                world_size=world_size,
                _kernels=kernels,
                _handle=handle,
                _epochs=torch.zeros(MOST_BLOCKS, dtype=torch.int32),
            )
            self.exchanges.append(exchange)

    def enqueue(self, rank: int, call: Callable[..., None], *tensors: torch.Tensor) -> None:
        """Adds an exchange to a rank's stream: a method of `SymmetricExchange`, and what it is given."""
        _LAUNCHED.clear()
        call(self.exchanges[rank], *tensors)
        ((blocks, body),) = _LAUNCHED
        assert 0 < blocks <= MOST_BLOCKS
        for block in range(blocks):
            self._programs.setdefault((rank, block), []).append(body)

    def run(self) -> None:
        """Runs all of it, in any order.

        A program starts when that of the same number before it has ended: these are more orders than a GPU has.

        Raises:
            AssertionError: All wait for each other, or a program failed.
        """
        threads = [_Thread(block, bodies) for (_, block), bodies in self._programs.items()]
        self._programs = {}
        while threads:
            self._random.shuffle(threads)
            able = [thread for thread in threads if thread.can_go_on()]
            assert able, "all programs wait for each other"
            # Half of them wait longer, and some run far ahead, as ranks do that nothing keeps.
            for thread in able[: -(-len(able) // 2)]:
                for _ in range(self._random.choice((1, 2, 5, 100))):
                    if not thread.ended and thread.can_go_on():
                        thread.turn()
                if thread.failed is not None:
                    raise AssertionError("a program failed") from thread.failed
            threads = [thread for thread in threads if not thread.ended]

    def meet(self, rank: int, block: Any, epoch: Any, world: int) -> None:
        """What `ghost_kernels._meet` does: raises this program's flags at all peers, waits for theirs."""
        first, now, own = int(block) * world, int(epoch), self._pads[rank]
        peers = [peer for peer in range(world) if peer != rank]
        for peer in peers:
            _take_turns()
            self._pads[peer][first + rank] = now
        _take_turns(lambda: all(own[first + peer] >= now for peer in peers))


class _Thread:
    """The programs of one number on one rank, one after another."""

    def __init__(self, block: int, bodies: list[Callable[[], None]]) -> None:
        self.ended = False
        self.failed: BaseException | None = None
        self._condition: Callable[[], bool] | None = None
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)

        def work() -> None:
            _PROGRAM.block, _PROGRAM.thread = block, self
            self._go.acquire()
            try:
                for body in bodies:
                    body()
            except BaseException as error:
                self.failed = error
            self.ended = True
            self._done.release()

        threading.Thread(target=work, daemon=True).start()

    def can_go_on(self) -> bool:
        return self._condition is None or self._condition()

    def turn(self) -> None:
        self._go.release()
        self._done.acquire()

    def stop(self, until: Callable[[], bool] | None) -> None:
        self._condition = until
        self._done.release()
        self._go.acquire()


def _aligned(pointer: _Pointer, multiple: int) -> _Pointer:
    assert pointer.is_multiple_of(multiple), "the hint is not true"
    return pointer


def _take_turns(until: Callable[[], bool] | None = None) -> None:
    _PROGRAM.thread.stop(until)


def _kernels(machine: Machine) -> ModuleType:
    """The kernels' module, from its own source, on the stand-in."""
    spec = importlib.util.spec_from_file_location("kernels_without_gpu", _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _stand_in():
        spec.loader.exec_module(module)
    # It is inline assembly, which nothing but a GPU runs. In place of pads it is given the rank.
    vars(module)["_meet"] = lambda pads, block, epoch, rank, world: machine.meet(rank, block, epoch, world)
    return module


@contextmanager
def _stand_in() -> Iterator[None]:
    triton, language = ModuleType("triton"), ModuleType("triton.language")

    def load(pointer: _Pointer, mask: Any = None, other: Any = None, cache_modifier: str = "") -> Any:
        _take_turns()
        return pointer.load(mask, other)

    def store(pointer: _Pointer, value: Any, mask: Any = None) -> None:
        _take_turns()
        pointer.store(value, mask)

    vars(language).update(
        load=load,
        store=store,
        constexpr=int,
        multiple_of=_aligned,
        static_range=range,
        int64=torch.int64,
        int32=torch.int32,
        float32=torch.float32,
        float64=torch.float64,
        pointer_type=_PointerType,
        program_id=lambda _: torch.tensor(_PROGRAM.block, dtype=torch.int32),
        arange=lambda start, end: torch.arange(start, end, dtype=torch.int32),
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        cdiv=lambda x, y: -(-x // y),
    )
    vars(triton).update(jit=_Kernel, language=language)
    before = {name: sys.modules.get(name) for name in ("triton", "triton.language")}
    sys.modules["triton"], sys.modules["triton.language"] = triton, language
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
