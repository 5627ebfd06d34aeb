"""Triton GEMMs that send what they make to the other ranks, and GEMMs that wait for what those sent.

Imported only where CUDA, NVLink and Triton are there. A sending kernel never waits; its receiving kernel comes later
on the same stream. So no rank's sending depends on anybody's waiting.

They use a part of the arena of their own: two halves in turn, each with a (b, k) matrix from every rank, and a flag
for every tile and rank. Of the two counters on a rank a sending kernel reads `received` and sets `sent` to one more;
a receiving one reads `sent` and sets `received` to it: no kernel writes what it reads. A half is overwritten two
exchanges later, when the sender's receiving kernel in between has waited for flags that this rank raises only after
it has read that half.
"""

import triton
import triton.language as tl

SENT = tl.constexpr(0)
RECEIVED = tl.constexpr(1)


@triton.jit
def _share(arenas, owner, epoch, sender, world: tl.constexpr, data_at: tl.constexpr, share_bytes: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Address of what `sender` sends to `owner` in an exchange."""
    arena = tl.load(arenas.to(tl.pointer_type(tl.int64)) + owner)
    return arena + data_at + ((epoch & 1) * world + sender).to(tl.int64) * share_bytes


@triton.jit
def _tell(arenas, block, epoch, rank: tl.constexpr, world: tl.constexpr, flags_at: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tells every peer that this program's tile is there; thread t tells rank t."""
    flag_at = flags_at + (block * world + rank).to(tl.int64) * 4
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred quit;
            .reg .u32 thread;
            .reg .u64 flag;
            mov.u32 thread, %tid.x;
            setp.ge.u32 quit, thread, $4;
            @quit bra told;
            setp.eq.u32 quit, thread, $5;
            @quit bra told;
            mul.wide.u32 flag, thread, 8;
            add.u64 flag, flag, $1;
            ld.global.u64 flag, [flag];
            add.u64 flag, flag, $2;
            st.release.sys.global.u32 [flag], $3;
        told:
            mov.u32 $0, 0;
        }
        """,
        "=r,l,l,r,r,r",
        [arenas, flag_at, epoch, tl.full([], world, tl.int32), tl.full([], rank, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _seen(flags):  # type: ignore[no-untyped-def]
    """Flags as peers have raised them by now; what they sent before is there to be read."""
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.u32 $0, [$1];", "=r,l", [flags], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _await(
    arenas,
    epoch,
    first_row_tile,
    row_tiles: tl.constexpr,
    all_row_tiles,
    ghost_tiles: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    flags_at: tl.constexpr,
    flags: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Waits until every peer's tiles of these rows have come; `flags` is a power of two that holds them all."""
    which = tl.arange(0, flags)
    source = which % world
    row_tile = first_row_tile + (which // world) % row_tiles
    ghost_tile = which // (world * row_tiles)
    asked = (source != rank) & (row_tile < all_row_tiles) & (ghost_tile < ghost_tiles)
    block = tl.where(asked, ghost_tile * all_row_tiles + row_tile, 0)
    arena = tl.load(arenas.to(tl.pointer_type(tl.int64)) + rank)
    at = arena + flags_at + (block * world + tl.where(asked, source, rank)).to(tl.int64) * 4
    missing = 1
    while missing > 0:
        missing = tl.sum((asked & (_seen(at) - epoch < 0)).to(tl.int32), 0)
    tl.debug_barrier()


@triton.jit
def send_ghosts(
    x,
    compressor,
    arenas,
    counters,
    b,
    m: tl.constexpr,
    k: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    data_at: tl.constexpr,
    share_bytes: tl.constexpr,
    flags_at: tl.constexpr,
    row_tile: tl.constexpr,
    ghost_tile: tl.constexpr,
    depth: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Sends x (b, m) compressor (k, m)^T to every peer."""
    block = tl.program_id(0)
    epoch = tl.load(counters + RECEIVED) + 1
    dtype: tl.constexpr = x.dtype.element_ty
    all_row_tiles = tl.cdiv(b, row_tile)
    rows = (block % all_row_tiles) * row_tile + tl.arange(0, row_tile)
    ghosts = (block // all_row_tiles) * ghost_tile + tl.arange(0, ghost_tile)
    inner = tl.arange(0, depth)
    made = tl.zeros([row_tile, ghost_tile], tl.float32)
    for start in range(0, m, depth):
        at = start + inner
        inputs = tl.load(
            x + rows[:, None].to(tl.int64) * m + at[None, :],
            mask=(rows < b)[:, None] & (at < m)[None, :],
            other=0,
        )
        weights = tl.load(
            compressor + ghosts[:, None].to(tl.int64) * m + at[None, :],
            mask=(ghosts < k)[:, None] & (at < m)[None, :],
            other=0,
        )
        made = tl.dot(inputs, tl.trans(weights), made)
    inside = rows[:, None] * k + ghosts[None, :]
    real = (rows < b)[:, None] & (ghosts < k)[None, :]
    for step in tl.static_range(1, world):
        share = _share(arenas, (rank + step) % world, epoch, rank, world, data_at, share_bytes)
        tl.store(share.to(tl.pointer_type(dtype)) + inside, made.to(dtype), mask=real)
    _tell(arenas, block, epoch, rank, world, flags_at)
    tl.store(counters + SENT, epoch)


@triton.jit
def send_contributions(
    delta,
    decompressors,
    arenas,
    counters,
    b,
    m: tl.constexpr,
    k: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    data_at: tl.constexpr,
    share_bytes: tl.constexpr,
    flags_at: tl.constexpr,
    row_tile: tl.constexpr,
    ghost_tile: tl.constexpr,
    depth: tl.constexpr,
    places: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Sends delta (b, m) D_ji to every rank i, with decompressors (m, (p-1) k) in block order.

    One program makes a tile for every peer, side by side: `places` is a power of two from p - 1 on.
    """
    block = tl.program_id(0)
    epoch = tl.load(counters + RECEIVED) + 1
    dtype: tl.constexpr = delta.dtype.element_ty
    all_row_tiles = tl.cdiv(b, row_tile)
    rows = (block % all_row_tiles) * row_tile + tl.arange(0, row_tile)
    column = tl.arange(0, places * ghost_tile)
    place = column // ghost_tile
    ghosts = (block // all_row_tiles) * ghost_tile + column % ghost_tile
    real = (place < world - 1) & (ghosts < k)
    inner = tl.arange(0, depth)
    width: tl.constexpr = (world - 1) * k
    made = tl.zeros([row_tile, places * ghost_tile], tl.float32)
    for start in range(0, m, depth):
        at = start + inner
        slopes = tl.load(
            delta + rows[:, None].to(tl.int64) * m + at[None, :],
            mask=(rows < b)[:, None] & (at < m)[None, :],
            other=0,
        )
        weights = tl.load(
            decompressors + at[:, None].to(tl.int64) * width + (place * k + ghosts)[None, :],
            mask=(at < m)[:, None] & real[None, :],
            other=0,
        )
        made = tl.dot(slopes, weights, made)
    tiles = tl.reshape(made, [row_tile, places, ghost_tile])
    own_ghosts = (block // all_row_tiles) * ghost_tile + tl.arange(0, ghost_tile)
    inside = rows[:, None] * k + own_ghosts[None, :]
    for step in tl.static_range(world - 1):
        is_its = (tl.arange(0, places) == step)[None, :, None]
        tile = tl.sum(tl.where(is_its, tiles, 0.0), axis=1)
        share = _share(arenas, _source_of(step, rank, world), epoch, rank, world, data_at, share_bytes)
        tl.store(
            share.to(tl.pointer_type(dtype)) + inside,
            tile.to(dtype),
            mask=(rows < b)[:, None] & (own_ghosts < k)[None, :],
        )
    _tell(arenas, block, epoch, rank, world, flags_at)
    tl.store(counters + SENT, epoch)


@triton.jit
def receive_ghosts(
    z,
    decompressors,
    others,
    arenas,
    counters,
    b,
    m: tl.constexpr,
    k: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    data_at: tl.constexpr,
    share_bytes: tl.constexpr,
    flags_at: tl.constexpr,
    row_tile: tl.constexpr,
    ghost_tile: tl.constexpr,
    rows_here: tl.constexpr,
    columns_here: tl.constexpr,
    depth: tl.constexpr,
    flags: tl.constexpr,
    waits: tl.constexpr,
    relu: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Adds G (b, (p-1) k) decompressors^T to z (b, m); others = G; then max(z, 0) if asked for."""
    dtype: tl.constexpr = z.dtype.element_ty
    epoch = tl.load(counters + SENT)
    all_row_tiles = tl.cdiv(b, row_tile)
    first_row = tl.program_id(0) * rows_here
    rows = first_row + tl.arange(0, rows_here)
    columns = tl.program_id(1) * columns_here + tl.arange(0, columns_here)
    at_z = z + rows[:, None].to(tl.int64) * m + columns[None, :]
    here = (rows < b)[:, None] & (columns < m)[None, :]
    local = tl.load(at_z, mask=here, other=0)
    if waits:
        _await(
            arenas,
            epoch,
            first_row // row_tile,
            rows_here // row_tile,
            all_row_tiles,
            (k + ghost_tile - 1) // ghost_tile,
            rank,
            world,
            flags_at,
            flags,
        )
    width: tl.constexpr = (world - 1) * k
    total = local.to(tl.float32)
    for step in tl.static_range(world - 1):
        source = _source_of(step, rank, world)
        for start in tl.static_range(0, k, depth):
            ghosts = start + tl.arange(0, depth)
            wanted = (rows < b)[:, None] & (ghosts < k)[None, :]
            weights = tl.load(
                decompressors + columns[:, None].to(tl.int64) * width + (step * k + ghosts)[None, :],
                mask=(columns < m)[:, None] & (ghosts < k)[None, :],
                other=0,
            )
            share = _share(arenas, rank, epoch, source, world, data_at, share_bytes)
            came = tl.load(
                share.to(tl.pointer_type(dtype)) + rows[:, None] * k + ghosts[None, :],
                mask=wanted,
                other=0,
                cache_modifier=".cg",
            )
            total = tl.dot(came, tl.trans(weights), total)
            if tl.program_id(1) == 0:
                tl.store(
                    others + rows[:, None].to(tl.int64) * width + (step * k + ghosts)[None, :],
                    came,
                    mask=wanted,
                )
    if relu:
        total = tl.where(total < 0, 0.0, total)  # NaN stays NaN
    tl.store(at_z, total.to(dtype), mask=here)
    tl.store(counters + RECEIVED, epoch)


@triton.jit
def receive_gradient(
    dx,
    compressor,
    h,
    x,
    arenas,
    counters,
    b,
    m: tl.constexpr,
    k: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    data_at: tl.constexpr,
    share_bytes: tl.constexpr,
    flags_at: tl.constexpr,
    row_tile: tl.constexpr,
    ghost_tile: tl.constexpr,
    rows_here: tl.constexpr,
    columns_here: tl.constexpr,
    depth: tl.constexpr,
    flags: tl.constexpr,
    waits: tl.constexpr,
    relu: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Sums what came into h (b, k), adds h compressor to dx (b, m); then zero where x <= 0 if asked for."""
    dtype: tl.constexpr = dx.dtype.element_ty
    epoch = tl.load(counters + SENT)
    all_row_tiles = tl.cdiv(b, row_tile)
    first_row = tl.program_id(0) * rows_here
    rows = first_row + tl.arange(0, rows_here)
    columns = tl.program_id(1) * columns_here + tl.arange(0, columns_here)
    at_dx = rows[:, None].to(tl.int64) * m + columns[None, :]
    here = (rows < b)[:, None] & (columns < m)[None, :]
    total = tl.load(dx + at_dx, mask=here, other=0).to(tl.float32)
    if waits:
        _await(
            arenas,
            epoch,
            first_row // row_tile,
            rows_here // row_tile,
            all_row_tiles,
            (k + ghost_tile - 1) // ghost_tile,
            rank,
            world,
            flags_at,
            flags,
        )
    for start in tl.static_range(0, k, depth):
        ghosts = start + tl.arange(0, depth)
        wanted = (rows < b)[:, None] & (ghosts < k)[None, :]
        weights = tl.load(
            compressor + ghosts[:, None].to(tl.int64) * m + columns[None, :],
            mask=(ghosts < k)[:, None] & (columns < m)[None, :],
            other=0,
        )
        summed = tl.zeros([rows_here, depth], tl.float32)
        for source in tl.static_range(world):  # in rank order, so that every run sums alike
            if source != rank:
                share = _share(arenas, rank, epoch, source, world, data_at, share_bytes)
                came = tl.load(
                    share.to(tl.pointer_type(dtype)) + rows[:, None] * k + ghosts[None, :],
                    mask=wanted,
                    other=0,
                    cache_modifier=".cg",
                )
                summed += came.to(tl.float32)
        rounded = summed.to(dtype)
        total = tl.dot(rounded, weights, total)
        if tl.program_id(1) == 0:
            tl.store(h + rows[:, None].to(tl.int64) * k + ghosts[None, :], rounded, mask=wanted)
    if relu:
        total = tl.where(tl.load(x + at_dx, mask=here, other=0) <= 0, 0.0, total)
    tl.store(dx + at_dx, total.to(dtype), mask=here)
    tl.store(counters + RECEIVED, epoch)


@triton.jit
def _source_of(place: tl.constexpr, rank: tl.constexpr, world: tl.constexpr) -> tl.constexpr:
    # Of the block at a place: see `layouts.ghost_transport.ghost_sources`.
    if rank == 0:
        return place + 1
    if place == rank:
        return world - 1
    return place
