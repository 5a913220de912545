"""What the daemon looks at again and again while it serves.

A watch that fails, for a reason that nobody thought of, must neither end the daemon nor end without a word:
the log has it with its trace, and it begins anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kvtier import logs
from kvtier.daemon.floors import FloorKeeper
from kvtier.daemon.storage import StorageTier
from kvtier.io.native import Store

SETTLE_POLL_S: Final = 0.5
STORAGE_LOOK_S: Final = 1.0
FLOORS_LOOK_S: Final = 1.0
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0


async def kept(name: str, watch: Callable[[], Awaitable[None]]) -> None:
    """Run `watch` until it returns. When it fails it runs again after a pause, twice as long each time it
    fails soon after it has begun.
    """
    pause_s, now_s = PAUSE_S, asyncio.get_running_loop().time
    while True:
        began_s = now_s()
        try:
            return await watch()
        except Exception as error:
            if now_s() - began_s > PAUSE_S_MAX:
                pause_s = PAUSE_S
            logs.get("daemon").error(
                "a watch has failed; it begins anew", watch=name, pause_s=pause_s, exc_info=error
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def population(store: Store, dram_bytes: int) -> None:
    """The arena is populated in the background; say how that ended, once."""
    log = logs.get("daemon")
    while store.population_error() is None:
        if store.populated_bytes() >= dram_bytes:
            log.info("the arena is populated", bytes=store.populated_bytes())
            return
        await asyncio.sleep(SETTLE_POLL_S)
    log.error(
        "the arena could not be populated; what there is serves",
        error=store.population_error(),
        bytes=store.populated_bytes(),
    )


async def storage(tier: StorageTier) -> None:
    """Say once what becomes of storage; engines notice nothing of it."""
    while tier.on:
        tier.notice()
        await asyncio.sleep(STORAGE_LOOK_S)


async def floors(keeper: FloorKeeper) -> None:
    """Those that nobody used lapse, and come back."""
    while True:
        await asyncio.sleep(FLOORS_LOOK_S)
        keeper.look()
