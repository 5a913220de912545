"""The engine processes of a trial, as the parent holds them: started, asked, stopped, killed, counted."""

import multiprocessing
import os
from multiprocessing.context import ForkServerContext
from typing import Final

from kvtier.bench.reliability import engine
from kvtier.bench.reliability.tally import Tally
from kvtier.bench.report import BenchSkipped

_ANSWER_S: Final = 60.0
_END_S: Final = 10.0


class EngineEnded(BenchSkipped):
    """An engine process has ended by itself."""


class Member:
    """One engine process."""

    def __init__(self, context: ForkServerContext, address: str, number: int, seed: int, work: engine.Work):
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=engine.main, args=(theirs, address, number, seed, work), daemon=True
        )
        self._process.start()
        theirs.close()  # so that its end shows as end of file

    def ask(self, word: str) -> Tally:
        """Its answer to "report" or "look"."""
        try:
            self._pipe.send(word)
            if not self._pipe.poll(_ANSWER_S):
                raise BenchSkipped(f"an engine process did not answer in {_ANSWER_S:g} s")
            answer = self._pipe.recv()
        except (OSError, EOFError):
            self._process.join(_END_S)
            raise EngineEnded(f"an engine process has ended ({self._process.exitcode})") from None
        if not isinstance(answer, Tally):
            raise TypeError(f"{answer!r} is no tally")
        return answer

    def signal(self, number: int) -> None:
        """Send a signal; a stop has happened on return."""
        pid = self._process.pid
        if pid is None:
            raise BenchSkipped("an engine process was never started")
        os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        self._process.kill()
        self._process.join(_END_S)

    def end(self) -> bool:
        """In order. False: it had to be killed."""
        try:
            self._pipe.send("end")
        except OSError:
            return False  # it has ended by itself
        self._process.join(_END_S)
        in_order = self._process.exitcode == 0
        if self._process.is_alive():
            self.kill()
        return in_order


class Crew:
    """Engines that serve all through a trial, and others that come to be killed."""

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._seed = seed
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([engine.__name__])
        self._started = 0
        self._staying: list[Member] = []
        self.total = Tally()  # of members that have ended

    def start(self, work: engine.Work = "both") -> Member:
        """One more, whom the caller looks after."""
        self._started += 1
        seed = self._seed * 1000 + self._started
        return Member(self._context, self._address, self._started, seed, work)

    def stay(self, count: int) -> None:
        """Engines that serve until `finish`."""
        self._staying += [self.start() for _ in range(count)]

    @property
    def staying(self) -> tuple[Member, ...]:
        """Those who serve all through."""
        return tuple(self._staying)

    def ask(self, word: str) -> list[Tally]:
        """Every staying engine's answer."""
        return [member.ask(word) for member in self._staying]

    def count(self, tally: Tally) -> None:
        """What a member that is about to end has seen."""
        self.total.add(tally)

    def finish(self) -> Tally:
        """End the staying ones; what all have seen. One that does not end in order has failed."""
        for member in self._staying:
            try:
                self.count(member.ask("report"))
            except EngineEnded as error:
                self.total.why = self.total.why or str(error)
            self.total.failed += not member.end()
        self._staying = []
        return self.total

    def abandon(self) -> None:
        """After a fault of the trial itself."""
        for member in self._staying:
            member.kill()
        self._staying = []
