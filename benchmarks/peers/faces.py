"""What every system looks like to a trial: a server to harm, and a client in a process of its own."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

CHUNKS = 8  # of a prompt
CHUNK_BYTES = 256 << 10
ANSWER_S = 120.0
IDLE_S = 0.005


@dataclass
class Seen:
    """What a client has seen: of chunks served every byte is compared."""

    stored: int = 0
    served: int = 0
    wrong: int = 0
    longest_s: float = 0.0
    longest_call: str = ""
    errors: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - began_s
            if took_s > self.longest_s:
                self.longest_s, self.longest_call = took_s, call


class Face(Protocol):
    """An engine's side. Both calls note in `seen` what comes of them; they may raise."""

    seen: Seen

    def store(self, prompt: int) -> None: ...

    def load(self, prompt: int) -> None: ...


class Server(Protocol):
    """One host's server on temporary paths."""

    name: str
    pid: int

    def start(self) -> None:
        """Until it answers. Memory that an earlier one has left is served again if the system can."""

    def start_empty(self) -> None:
        """The same with nothing in memory, so that loads come from the disk tier."""

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def disk_files(self) -> list[Path]: ...

    def face(self) -> Callable[[], Face]:
        """Makes a client's face; picklable."""

    def held(self) -> int:
        """What dead clients still hold of it, in the system's own count."""

    def shm_files(self) -> int:
        """Its files of shared memory."""

    def close(self) -> None:
        """End it and remove what it has left."""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    """Without shared memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no RssAnon in /proc")


class Client:
    """A client process."""

    def __init__(self, make: Callable[[], Face]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "torch"])
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self.process.start()
        theirs.close()
        self.answer()  # it has attached

    def ask(self, *words: Any) -> Seen:
        self.send(*words)
        return self.answer()

    def send(self, *words: Any) -> None:
        self._pipe.send(words)

    def answer(self) -> Seen:
        if not self._pipe.poll(ANSWER_S):
            raise RuntimeError(f"a client did not answer in {ANSWER_S:g} s")
        answer = self._pipe.recv()
        assert isinstance(answer, Seen)
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, make: Callable[[], Face]) -> None:
    face = make()
    pipe.send(face.seen)
    while True:
        try:
            word, *rest = pipe.recv()
        except EOFError:
            return
        face.seen = Seen()
        if word == "loop":
            _loop(face, *rest)
        else:
            for prompt in range(*rest):
                _try(face, getattr(face, word), prompt)
        pipe.send(face.seen)


def _loop(face: Face, seconds: float, prompts: int, fresh: int) -> None:
    """Load what all know and store new prompts, from number `fresh` on."""
    end_s = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end_s:
        _try(face, face.load, turn % prompts)
        if fresh and turn % 4 == 0:
            _try(face, face.store, fresh + turn)
        turn += 1
        time.sleep(IDLE_S)


def _try(face: Face, call: Callable[[int], None], prompt: int) -> None:
    """Whatever a system raises is a miss; it is kept for a look."""
    try:
        call(prompt)
    except Exception as error:
        if len(face.seen.errors) < 3:
            face.seen.errors.append(f"{type(error).__name__}: {error}"[:200])
