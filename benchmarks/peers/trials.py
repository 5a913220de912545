"""The four trials, the same for every system. Each returns the cells of its row."""

import os
import random
import signal
import time
from collections.abc import Callable

from faces import CHUNK_BYTES, CHUNKS, Client, Seen, Server, descriptors, resident_bytes

PROMPTS = 8
LOOP_S = 3.0
HURT_S = 0.5  # from the loop's begin
STOPPED_S = 12.0
HIT_S = 15.0
SETTLE_S = 20.0
FLIP_EVERY = 2 * CHUNK_BYTES

Row = dict[str, str]


def killed(server: Server) -> Row:
    """The server gets SIGKILL while a client loads; the same client, then a new one, after the restart."""
    server.start()
    client = Client(server.face())
    stored = client.ask("store", 0, PROMPTS).stored
    before = client.ask("load", 0, PROMPTS)
    client.send("loop", LOOP_S, PROMPTS, 0)
    time.sleep(HURT_S)
    server.kill()
    meanwhile = client.answer()
    began_s = time.monotonic()
    server.start()
    ready_s = time.monotonic() - began_s
    fresh = Client(server.face())
    after, hit_s = Seen(), 0.0
    while not hit_s and time.monotonic() < began_s + ready_s + HIT_S:
        after = fresh.ask("load", 0, PROMPTS)
        hit_s = time.monotonic() - began_s if after.served else 0.0
    return {
        "served before": f"{before.served} of {stored}",
        "longest call": _longest(meanwhile),
        "served after": f"{after.served} of {stored}",
        "wrong": str(before.wrong + meanwhile.wrong + after.wrong),
        "server ready": f"{ready_s:.1f} s",
        "first hit of a new client": f"{hit_s:.1f} s" if hit_s else f"none in {HIT_S:g} s",
    }


def stopped(server: Server) -> Row:
    """The server hangs (SIGSTOP) for a while, then goes on."""
    server.start()
    client = Client(server.face())
    stored = client.ask("store", 0, PROMPTS).stored
    client.send("loop", STOPPED_S + LOOP_S, PROMPTS, 0)
    time.sleep(HURT_S)
    _signal(server, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    _signal(server, signal.SIGCONT)
    seen = client.answer()
    after = client.ask("load", 0, PROMPTS)
    return {
        "stopped for": f"{STOPPED_S:g} s",
        "longest call": _longest(seen),
        "served after": f"{after.served} of {stored}",
        "wrong": str(seen.wrong + after.wrong),
    }


def flipped(server: Server) -> Row:
    """Bits in the files of the disk tier are flipped while the server is down; memory is empty afterwards."""
    server.start()
    client = Client(server.face())
    stored = client.ask("store", 0, PROMPTS).stored
    _until(lambda: sum(path.stat().st_size for path in server.disk_files()) >= stored * CHUNK_BYTES)
    client.kill()
    server.stop()
    server.start_empty()
    control = _loaded(server)
    server.stop()
    flips = _flip(server)
    server.start_empty()
    after = _loaded(server)
    return {
        "served before, wrong": f"{control.served} of {stored}, {control.wrong}",
        "flipped bits": f"{flips} in {len(server.disk_files())} files",
        "served after": f"{after.served} of {stored}",
        "wrong chunks served": str(after.wrong),
    }


def leaks(server: Server, kills: int) -> Row:
    """Clients get SIGKILL while they store and load."""
    server.start()
    first = Client(server.face())
    stored = first.ask("store", 0, PROMPTS).stored
    first.ask("loop", 1.0, PROMPTS, 1000)
    first.kill()
    time.sleep(1.0)  # what the first client brings for good is no leak
    before = (server.shm_files(), descriptors(server.pid), resident_bytes(server.pid))
    for number in range(kills):
        client = Client(server.face())
        client.send("loop", 30.0, PROMPTS, 2000 + 500 * number)
        time.sleep(random.uniform(0.1, 0.4))
        client.kill()
    time.sleep(SETTLE_S / 2)
    shm, fds, resident = server.shm_files(), descriptors(server.pid), resident_bytes(server.pid)
    last = Client(server.face())
    after = last.ask("load", 0, PROMPTS)
    last.kill()
    time.sleep(SETTLE_S / 2)
    return {
        "clients killed": str(kills),
        "shm files": f"{shm - before[0]:+d}",
        "descriptors of the server": f"{fds - before[1]:+d}",
        "its own memory": f"{(resident - before[2]) / (1 << 20):+.1f} MiB",
        "held by the dead": str(server.held()),
        "served after": f"{after.served} of {stored}",
        "wrong": str(after.wrong),
    }


def _loaded(server: Server) -> Seen:
    """By a new client, until it gets all there is or HIT_S are over; its best try."""
    client = Client(server.face())
    best = Seen()
    end_s = time.monotonic() + HIT_S
    while best.served < PROMPTS * CHUNKS and time.monotonic() < end_s:
        seen = client.ask("load", 0, PROMPTS)
        best.served, best.wrong = max(best.served, seen.served), max(best.wrong, seen.wrong)
        time.sleep(0.2)  # a system may still be looking through its files
    client.kill()
    return best


def _flip(server: Server) -> int:
    """One bit in every 512 KiB of the files, as if they were one: in about every second chunk."""
    flips, past = 0, 0
    for path in server.disk_files():
        data = bytearray(path.read_bytes())
        for start in range(-past % FLIP_EVERY, len(data), FLIP_EVERY):
            at = random.randrange(start, min(start + CHUNK_BYTES, len(data)))
            data[at] ^= 1 << random.randrange(8)
            flips += 1
        past += len(data)
        path.write_bytes(data)
    return flips


def _signal(server: Server, number: int) -> None:
    os.kill(server.pid, number)


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError(f"not within {SETTLE_S:g} s")
        time.sleep(0.05)


def _longest(seen: Seen) -> str:
    return f"{seen.longest_s * 1000:.0f} ms ({seen.longest_call})"
