"""One engine process of a trial: the closed loop of an adapter, on tensors in its own memory.

A request is a prompt of a few chunks: lookup, lease, load into the tensors, compare every byte, release; then
reserve, store and commit what was not there. Whatever kvtier raises is a miss, as adapters have it. Half of
the prompts are known to all engines, the others nobody has asked for before.

The parent asks over a pipe: "report" is answered by the tally, "look" begins to wait for the next hit, "end"
ends the process in order.
"""

import logging
import random
import time
from multiprocessing.connection import Connection
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from kvtier.bench.reliability.tally import Tally
from kvtier.bench.reliability.waits import Waits
from kvtier.client.client import Client
from kvtier.client.values import SlotLease
from kvtier.errors import DaemonUnavailable, KVTierError
from kvtier.io import native

CHUNK_BYTES: Final = 64 << 10
CHUNKS: Final = 6  # of a prompt
BLOCKS_PER_CHUNK: Final = 4
SHARED_PROMPTS: Final = 40
KEY_BYTES: Final = 32
LOAD_S_MAX: Final = 1.0  # what an engine lets a load wait for chunks from storage
_COPY_S: Final = 30.0  # a copy that takes longer hangs
_IDLE_S: Final = 0.002
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)

Work = Literal["both", "store", "load"]
Keys = npt.NDArray[np.uint8]


def main(pipe: Connection, address: str, number: int, seed: int, work: Work) -> None:
    """The process's life. The end of the pipe ends it as well."""
    logging.getLogger("kvtier").setLevel(logging.CRITICAL)  # losses are counted, and are what it is here for
    with Client.connect(address, name=f"trial/{number}", managed=True) as client:
        engine = _Engine(client, number, seed, work)
        while _heed(pipe, engine):
            engine.request()


def _heed(pipe: Connection, engine: "_Engine") -> bool:
    try:
        while pipe.poll():
            word = pipe.recv()
            if word == "end":
                return False
            if word == "look":
                engine.tally.first_hit_s = 0.0
            pipe.send(engine.report())
    except (EOFError, OSError):
        return False  # the parent is gone
    return True


class _Engine:
    def __init__(self, client: Client, number: int, seed: int, work: Work) -> None:
        self.tally = Tally()
        self._client = client
        self._number = number
        self._work = work
        self._random = random.Random(seed)  # noqa: S311  a trial is replayed from its seed
        self._waits = Waits(self.tally)
        self._ns = client.namespace({"benchmark": "reliability"}, CHUNK_BYTES)
        self._tensors = np.zeros((CHUNKS, CHUNK_BYTES // 8), np.uint64)
        self._ramp = np.arange(CHUNK_BYTES // 8, dtype=np.uint64) * _ODD
        self._copies: native.CopyEngine | None = None
        self._attachment = 0
        self._layout = 0
        self._job = 0
        self._fresh = 0

    def report(self) -> Tally:
        self.tally.losses = self._client.counters()["losses"]
        return self.tally

    def request(self) -> None:
        """One prompt; nothing that is wrong with the cache may come out of here."""
        self.tally.requests += 1
        try:
            self._serve(self._prompt())
        except KVTierError:
            time.sleep(_IDLE_S)  # recomputing takes its time as well
        except Exception as error:
            self.tally.failed += 1
            self.tally.why = self.tally.why or f"{type(error).__name__}: {error}"

    def _serve(self, keys: Keys) -> None:
        with self._waits.timed("lookup"):
            hit = self._ns.lookup(keys)
        loaded = self._load(keys) if hit and self._work != "store" else 0
        if loaded < CHUNKS and self._work != "load":
            self._store(keys[loaded:])
        if not hit:
            time.sleep(_IDLE_S)

    def _prompt(self) -> Keys:
        shared = self._random.random() < {"both": 0.5, "store": 0.0, "load": 1.0}[self._work]
        if not shared:
            self._fresh += 1
        prompt = self._random.randrange(SHARED_PROMPTS) if shared else self._fresh
        name = np.array([0 if shared else self._number + 1, prompt], np.uint64)
        keys = np.zeros((CHUNKS, KEY_BYTES // 8), np.uint64)
        keys[:, 0] = (name[1] * np.uint64(CHUNKS) + np.arange(1, CHUNKS + 1, dtype=np.uint64)) * _ODD
        keys[:, 1:3] = name
        return keys.view(np.uint8)

    # ---- the two flows ----

    def _load(self, keys: Keys) -> int:
        with self._waits.timed("lease"):
            lease = self._ns.lease_slots(keys)
        try:
            count = len(lease)
            self._tensors[:count] = 0
            valid = self._move("load", lease)
            self.tally.lost += count - valid
            for i in range(valid):
                right = np.array_equal(self._tensors[i], self._content(keys[i]))
                self.tally.wrong += not right
            self.tally.loaded += valid
            if valid and not self.tally.first_hit_s:
                self.tally.first_hit_s = time.monotonic()
            return valid
        finally:
            with self._waits.timed("release"):
                self._ns.release_slots(lease)

    def _store(self, keys: Keys) -> None:
        with self._waits.timed("reserve"):
            grants = self._ns.reserve_slots(keys)
        granted = np.flatnonzero(grants.grants == 0)
        for i, key in enumerate(granted):
            self._tensors[i] = self._content(keys[key])
        stored = 0
        try:
            stored = self._move("store", grants)
        finally:
            keep = (np.arange(len(grants)) < stored).astype(np.uint8)
            with self._waits.timed("commit"):
                self._ns.commit_slots(grants, keep)
        self.tally.stored += stored

    def _move(self, direction: Literal["load", "store"], lease: SlotLease) -> int:
        """Between the tensors and the slots; how many leading chunks are right."""
        if not len(lease):
            return 0
        copies = self._copy_engine()
        if lease.attachment != self._attachment:
            raise DaemonUnavailable("the lease is of an earlier session")
        self._job += 1
        blocks = np.arange(len(lease) * BLOCKS_PER_CHUNK, dtype=np.int64)
        copies.submit(self._job, direction, [self._layout], [len(blocks)], blocks, blocks, lease.refs)
        if not copies.wait([self._job], _COPY_S):
            self.tally.hung += 1
            raise TimeoutError(f"a {direction} did not end in {_COPY_S:g} s")
        ((_, _, _, _, valid),) = copies.poll()
        return valid

    def _copy_engine(self) -> native.CopyEngine:
        """Of the present attachment: one serves one arena."""
        if self._copies is None or self._client.attachment != self._attachment:
            attachment = self._client.attachment
            copies = self._client.copy_engine(threads=1, load_deadline_ms=int(LOAD_S_MAX * 1000))
            if self._copies is not None:
                self._copies.close()
            page_bytes = CHUNK_BYTES // BLOCKS_PER_CHUNK
            region = (self._tensors.ctypes.data, page_bytes, page_bytes)
            self._layout = copies.add_layout([region], CHUNKS * BLOCKS_PER_CHUNK, BLOCKS_PER_CHUNK)
            self._copies, self._attachment = copies, attachment
        return self._copies

    def _content(self, key: Keys) -> npt.NDArray[np.uint64]:
        """The one right content of a chunk: every word depends on the whole key and on its place."""
        words = key.view(np.uint64)
        seed = np.uint64(words[0] + words[1] * np.uint64(3) + words[2] * np.uint64(7))
        content: npt.NDArray[np.uint64] = self._ramp ^ seed
        return content
