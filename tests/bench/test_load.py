"""The load bench, cut short: nothing wrong, nobody starved, a floor that holds; and a wrong byte is seen."""

from itertools import islice

from harness import running_daemon

from kvtier.bench.load import Run, drive
from kvtier.bench.load_engine import CHUNK_BYTES, Engine, prompts
from kvtier.client.client import Client

ARENA_CHUNKS = (128 << 20) // CHUNK_BYTES
FLOOR_BYTES = 96 << 20


def sound(run: Run) -> None:
    assert run.errors == []
    assert run.sum("wrong") == 0
    assert run.sum("compared") == run.sum("loaded") > 0
    assert run.fairness > 0.8
    for call in ("lookup", "lease", "load", "reserve", "store"):
        assert 0 < run.us(call, 50) <= run.us(call, 99.9)


def flooded() -> Run:
    """Long enough for a flood of ten arenas beside some requests, however busy the machine is."""
    for seconds in (2.0, 4.0, 8.0, 16.0, 32.0):
        run = drive(seconds, 2, flood=True, floor_bytes=FLOOR_BYTES)
        assert run.flood is not None
        served = all(engine["requests"] > 10 for engine in run.engines)
        if run.errors or (served and run.flood["stored"] > 10 * ARENA_CHUNKS):
            break
    return run


def test_engines_share_a_daemon_and_a_floor_keeps_their_chunks() -> None:
    floored = flooded()
    quiet = drive(floored.seconds, 2)
    for run in (quiet, floored):
        sound(run)
    assert floored.flood is not None
    assert floored.flood["stored"] > 10 * ARENA_CHUNKS  # it was a flood
    assert floored.flood["no_space"] == 0  # and found room beside the floor
    assert floored.hit_rate > 0.8 * quiet.hit_rate


def test_a_wrong_byte_is_seen() -> None:
    with running_daemon("64MiB") as daemon, Client.connect(daemon.address, deadline_ms=5000) as client:
        engine = Engine(client, "engine")
        keys = next(keys for keys in islice(prompts(0), 50) if len(keys) > 2)
        engine.request(keys)
        engine.request(keys)
        assert (engine.tally.loaded, engine.tally.compared, engine.tally.wrong) == (len(keys), len(keys), 0)
        ns = client.namespace({"benchmark": "load", "tenant": "engine"}, CHUNK_BYTES)
        lease = ns.lease_slots(keys)
        ns.slot_view(lease, 1, writable=True)[CHUNK_BYTES // 2] ^= 1
        ns.release_slots(lease)
        engine.request(keys)
        assert engine.tally.wrong == 1
        assert engine.tally.errors == []
        engine.close()


def test_fairness_is_jains_index() -> None:
    def of(*requests: int) -> float:
        return Run(1.0, [{"requests": count} for count in requests]).fairness

    assert of(5, 5, 5, 5) == 1.0
    assert of(8, 0, 0, 0) == 0.25
    assert of(3, 1) == 0.8
