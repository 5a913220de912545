"""One engine's part in the replay, without an engine: a process that loads, verifies and stores chunks.

What it does per request is what an adapter does: look up, lease the leading hits, read them, give them back;
reserve the rest, write it, commit. Every byte of every chunk is a function of its key, so every byte that is
read is compared. The first word also says which process wrote the chunk.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from kvtier import ChunkNotReady, Client, Grant, KVTierError, Namespace, ReadLease
from kvtier.demo.schedule import KEY_BYTES

PROMOTE_S = 15.0  # longest wait for chunks on their way from storage; the daemon gives up before
DEADLINE_MS = 5000  # a loaded machine is no fault here; `kvtier bench` measures the waits
NAMESPACE = {"demo": "replay", "pattern": 1}
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Outcome:
    """What became of one request, or the sum of many."""

    chunks: int = 0  # asked for
    looked_up: int = 0  # of these, what lookup promised
    below: int = 0  # of these, not in DRAM but on storage
    missed: int = 0  # leased and not arrived from storage: a miss
    loaded: int = 0  # read and verified
    foreign: int = 0  # of these, written by another process
    wrong: int = 0  # with at least one wrong byte
    lost: int = 0  # changed under the lease
    stored: int = 0
    present: int = 0
    pending: int = 0
    no_space: int = 0
    load_s: float = 0.0
    store_s: float = 0.0

    def add(self, other: "Outcome") -> None:
        """Add another's counts."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class Worker:
    """Loads and stores chunks of one namespace."""

    def __init__(self, ns: Namespace, number: int) -> None:
        self._ns = ns
        self._number = np.uint64(number)
        self._ramp = np.arange(ns.chunk_bytes // 8, dtype=np.uint64) * _ODD
        self._words = np.empty_like(self._ramp)
        self._equal = np.empty(len(self._ramp), np.bool_)

    def serve(self, keys: npt.NDArray[np.uint8]) -> Outcome:
        """One request whose prompt has these chunks."""
        hit = self._ns.lookup(keys)
        outcome = Outcome(chunks=len(keys), looked_up=hit.chunks, below=hit.storage_chunks)
        began_s = time.perf_counter()
        with self._ns.lease(keys) as read:
            arrived = self._arrived(read)
            for key, view in zip(read.keys, arrived, strict=False):
                self._verify(key, view, outcome)
            outcome.loaded = len(arrived)
            outcome.missed = len(read) - len(arrived)
            outcome.lost = len(set(read.failed) & set(read.keys[: len(arrived)]))
        outcome.load_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        if outcome.loaded < len(keys):
            with self._ns.reserve(keys[outcome.loaded :]) as write:
                for key, view in zip(write.keys, write.views, strict=True):
                    self._write(key, view)
                write.commit()
                outcome.stored = len(write.keys)
                outcome.present = write.grants.count(Grant.PRESENT)
                outcome.pending = write.grants.count(Grant.PENDING)
                outcome.no_space = write.grants.count(Grant.NO_SPACE)
        outcome.store_s = time.perf_counter() - began_s
        return outcome

    @staticmethod
    def _arrived(read: ReadLease) -> list[memoryview]:
        """The leading chunks that are in DRAM once all have arrived, or been lost on the way."""
        if read.wait(PROMOTE_S):
            return list(read.views)
        views: list[memoryview] = []
        with suppress(ChunkNotReady):
            views.extend(iter(read.views))
        return views

    def _write(self, key: bytes, view: memoryview) -> None:
        words = np.frombuffer(view, np.uint64)
        seed = _seed(key)
        np.bitwise_xor(self._ramp, seed, out=words)
        words[0] = seed ^ self._number

    def _verify(self, key: bytes, view: memoryview, outcome: Outcome) -> None:
        seed = _seed(key)
        np.bitwise_xor(np.frombuffer(view, np.uint64), self._ramp, out=self._words)
        np.equal(self._words, seed, out=self._equal)
        writer = self._words[0] ^ seed
        self._equal[0] = writer < np.uint64(2)
        outcome.foreign += int(writer != self._number)
        outcome.wrong += int(not self._equal.all())


def _seed(key: bytes) -> np.uint64:
    # Low bit zero: the first word carries the writer's number there.
    return np.uint64(int.from_bytes(key[:8], "little") & ~1)


def main(pipe: Connection, address: str, chunk_bytes: int, number: int) -> None:
    """The process's life: keys in, JSON out; an empty message or the end of file ends it."""
    try:
        with Client.connect(address, name=f"replay/{number}", deadline_ms=DEADLINE_MS) as client:
            ns = client.namespace(NAMESPACE, chunk_bytes)
            worker = Worker(ns, number)
            pipe.send_bytes(b"{}")
            while message := pipe.recv_bytes():
                keys = np.frombuffer(message, np.uint8).reshape(-1, KEY_BYTES)
                pipe.send_bytes(json.dumps(asdict(worker.serve(keys))).encode())
    except KVTierError as error:
        pipe.send_bytes(json.dumps({"error": str(error)}).encode())
    except EOFError:
        return  # the parent is gone; the daemon takes back what we hold
