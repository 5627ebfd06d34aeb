"""Triton kernels of the fused ghost exchange; imported only where CUDA, NVLink and Triton are there.

Each program of a kernel is one conversation, independent of the others: program i of every rank writes a tile
straight into its peers' arenas, raises a flag there, waits for its peers' flags, and takes what arrived. A flag
holds the number of the exchange (its epoch), which only grows, so nothing has to be reset, and a kernel in a
replayed CUDA graph goes on counting where the last one stopped.

The arena has two halves, used in turn. A peer can overwrite a half only two exchanges later, when it has seen this
program's flag of the exchange in between, which is raised after the half was read.
"""

import triton
import triton.language as tl

SHARD_MULTIPLE = tl.constexpr(16)
"""Of a shard's numbers, so that all of them begin where 16 bytes can be moved at once; `ghost_exchange` knows it."""


@triton.jit
def _block_of(source: tl.constexpr, rank: tl.constexpr, world: tl.constexpr) -> tl.constexpr:
    # The place of a source among the blocks on a rank: see `layouts.ghost_transport.ghost_sources`.
    if rank == 0:
        return source - 1
    if source == world - 1:
        return rank
    return source


@triton.jit
def _meet(pads, block, epoch, rank: tl.constexpr, world: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tells every peer that this program's tiles are there, and waits for theirs; thread t talks to rank t."""
    own_pad = tl.load(pads.to(tl.pointer_type(tl.int64)) + rank)
    sent_at = (block * world + rank).to(tl.int64) * 4
    seen_at = (block * world).to(tl.int64) * 4
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred quit;
            .reg .u32 thread, seen;
            .reg .s32 behind;
            .reg .u64 flag;
            mov.u32 thread, %tid.x;
            setp.ge.u32 quit, thread, $6;
            @quit bra met;
            setp.eq.u32 quit, thread, $7;
            @quit bra met;
            mul.wide.u32 flag, thread, 8;
            add.u64 flag, flag, $1;
            ld.global.u64 flag, [flag];
            add.u64 flag, flag, $3;
            st.release.sys.global.u32 [flag], $5;
            mul.wide.u32 flag, thread, 4;
            add.u64 flag, flag, $2;
            add.u64 flag, flag, $4;
        again:
            ld.acquire.sys.global.u32 seen, [flag];
            sub.s32 behind, seen, $5;
            setp.lt.s32 quit, behind, 0;
            @quit bra again;
        met:
            mov.u32 $0, 0;
        }
        """,
        "=r,l,l,l,l,r,r,r",
        [pads, own_pad, sent_at, seen_at, epoch, tl.full([], world, tl.int32), tl.full([], rank, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()


@triton.jit
def _slot(
    arenas,
    owner: tl.constexpr,
    half,
    block,
    sender: tl.constexpr,
    world: tl.constexpr,
    most: tl.constexpr,
    tile_bytes: tl.constexpr,
    dtype: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Where `sender`'s tile for `block` lies in `owner`'s arena."""
    arena = tl.load(arenas.to(tl.pointer_type(tl.int64)) + owner)
    place = ((half * most + block) * world + sender).to(tl.int64) * tile_bytes
    # An address that was loaded is of unknown alignment: without the hint every number is stored by itself.
    return tl.multiple_of((arena + place).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _added_up(first, apart, mask, parts: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of a tile's parts, which lie `apart` from each other."""
    total = tl.load(first, mask=mask, other=0)
    for part in tl.static_range(1, parts):
        total += tl.load(first + part * apart, mask=mask, other=0)
    return total


@triton.jit
def gather_ghosts(
    own,
    gathered,
    arenas,
    pads,
    epochs,
    numel,
    rank: tl.constexpr,
    world: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    tile_bytes: tl.constexpr,
    parts: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Moves own (k b) of every rank -> gathered ((p-1) k b), the other ranks' in block order.

    Own comes as (parts, k b) to be added up, in any format; it travels in that of `gathered`.
    """
    block = tl.program_id(0)
    epoch = tl.load(epochs + block) + 1
    half = epoch & 1
    dtype: tl.constexpr = gathered.dtype.element_ty
    inside = tl.arange(0, tile)
    at = block * tile + inside
    mask = at < numel
    ghosts = _added_up(own + at, numel, mask, parts).to(dtype)
    for step in tl.static_range(1, world):
        peer = (rank + step) % world
        tl.store(
            _slot(arenas, peer, half, block, rank, world, most, tile_bytes, dtype) + inside, ghosts, mask=mask
        )
    _meet(pads, block, epoch, rank, world)
    for step in tl.static_range(1, world):
        source = (rank + step) % world
        place = _block_of(source, rank, world)
        arrived = tl.load(
            _slot(arenas, rank, half, block, source, world, most, tile_bytes, dtype) + inside,
            mask=mask,
            cache_modifier=".cg",
        )
        tl.store(gathered + place * numel + at, arrived, mask=mask)
    tl.store(epochs + block, epoch)


@triton.jit
def reduce_ghosts(
    contributions,
    own,
    arenas,
    pads,
    epochs,
    numel,
    rank: tl.constexpr,
    world: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    tile_bytes: tl.constexpr,
    parts: tl.constexpr,
    sum_in_double: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Sums contributions ((p-1) k b), in block order on every rank, into own (k b): what is meant for this rank.

    Contributions come as (parts, (p-1) k b) to be added up, in any format; they travel in that of `own`.
    """
    block = tl.program_id(0)
    epoch = tl.load(epochs + block) + 1
    half = epoch & 1
    dtype: tl.constexpr = own.dtype.element_ty
    inside = tl.arange(0, tile)
    at = block * tile + inside
    mask = at < numel
    for step in tl.static_range(1, world):
        peer = (rank + step) % world
        place = _block_of(peer, rank, world)
        given = _added_up(contributions + place * numel + at, (world - 1) * numel, mask, parts).to(dtype)
        tl.store(
            _slot(arenas, peer, half, block, rank, world, most, tile_bytes, dtype) + inside, given, mask=mask
        )
    _meet(pads, block, epoch, rank, world)
    total = tl.zeros([tile], tl.float64 if sum_in_double else tl.float32)
    for source in tl.static_range(world):  # in rank order, so that every run sums alike
        if source != rank:
            arrived = tl.load(
                _slot(arenas, rank, half, block, source, world, most, tile_bytes, dtype) + inside,
                mask=mask,
                other=0,
                cache_modifier=".cg",
            )
            total += arrived.to(total.dtype)
    tl.store(own + at, total.to(dtype), mask=mask)
    tl.store(epochs + block, epoch)


@triton.jit
def sum_everywhere(
    given,
    summed,
    arenas,
    pads,
    epochs,
    numel,
    rank: tl.constexpr,
    world: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    tile_bytes: tl.constexpr,
    sum_in_double: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Sums given (numel,) of all ranks into summed (numel,), which may be the same memory, on every rank alike."""
    block = tl.program_id(0)
    epoch = tl.load(epochs + block) + 1
    half = epoch & 1
    dtype: tl.constexpr = given.dtype.element_ty
    inside = tl.arange(0, tile)
    at = block * tile + inside
    mask = at < numel
    own = tl.load(given + at, mask=mask, other=0)
    for step in tl.static_range(1, world):
        peer = (rank + step) % world
        tl.store(
            _slot(arenas, peer, half, block, rank, world, most, tile_bytes, dtype) + inside, own, mask=mask
        )
    _meet(pads, block, epoch, rank, world)
    total = tl.zeros([tile], tl.float64 if sum_in_double else tl.float32)
    for source in tl.static_range(world):  # in rank order, so that every rank sums alike
        if source == rank:
            total += own.to(total.dtype)
        else:
            arrived = tl.load(
                _slot(arenas, rank, half, block, source, world, most, tile_bytes, dtype) + inside,
                mask=mask,
                other=0,
                cache_modifier=".cg",
            )
            total += arrived.to(total.dtype)
    tl.store(summed + at, total.to(dtype), mask=mask)
    tl.store(epochs + block, epoch)


@triton.jit
def sum_by_shards(
    given,
    summed,
    arenas,
    pads,
    epochs,
    numel,
    rank: tl.constexpr,
    world: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    tile_bytes: tl.constexpr,
    sum_in_double: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """The same for larger tensors: every rank sums its shard of `given` (numel,), then tells the others the result.

    Two exchanges in one kernel, of a p-th of the numbers each: fewer bytes than telling all of them to all. Program i
    works on tile i of every shard.
    """
    block = tl.program_id(0)
    epoch = tl.load(epochs + block) + 1
    dtype: tl.constexpr = given.dtype.element_ty
    shard = tl.cdiv(numel, world * SHARD_MULTIPLE) * SHARD_MULTIPLE
    inside = tl.arange(0, tile)
    at = block * tile + inside
    half = epoch & 1
    for step in tl.static_range(1, world):
        peer = (rank + step) % world
        mask = (at < shard) & (peer * shard + at < numel)
        part = tl.load(given + peer * shard + at, mask=mask, other=0)
        tl.store(
            _slot(arenas, peer, half, block, rank, world, most, tile_bytes, dtype) + inside, part, mask=mask
        )
    _meet(pads, block, epoch, rank, world)
    mine = (at < shard) & (rank * shard + at < numel)
    total = tl.zeros([tile], tl.float64 if sum_in_double else tl.float32)
    for source in tl.static_range(world):  # in rank order, so that every run sums alike
        if source == rank:
            total += tl.load(given + rank * shard + at, mask=mine, other=0).to(total.dtype)
        else:
            arrived = tl.load(
                _slot(arenas, rank, half, block, source, world, most, tile_bytes, dtype) + inside,
                mask=mine,
                other=0,
                cache_modifier=".cg",
            )
            total += arrived.to(total.dtype)
    result = total.to(dtype)
    # The other half: this one's was read above, before the flag that lets peers write it again is raised below.
    epoch += 1
    half = epoch & 1
    for step in tl.static_range(1, world):
        peer = (rank + step) % world
        tl.store(
            _slot(arenas, peer, half, block, rank, world, most, tile_bytes, dtype) + inside, result, mask=mine
        )
    tl.store(summed + rank * shard + at, result, mask=mine)
    _meet(pads, block, epoch, rank, world)
    for step in tl.static_range(1, world):
        source = (rank + step) % world
        mask = (at < shard) & (source * shard + at < numel)
        arrived = tl.load(
            _slot(arenas, rank, half, block, source, world, most, tile_bytes, dtype) + inside,
            mask=mask,
            other=0,
            cache_modifier=".cg",
        )
        tl.store(summed + source * shard + at, arrived, mask=mask)
    tl.store(epochs + block, epoch)
