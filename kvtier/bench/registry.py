"""Every benchmark, one line each: its name, its question, and the module whose `run(scale)` answers it."""

from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from kvtier.bench.report import Result
from kvtier.bench.scale import Scale


@dataclass(frozen=True)
class Bench:
    """One named question."""

    name: str
    question: str
    options: tuple[str, ...] = ()
    """Of the command line, which its `run` takes besides the scale."""

    def run(self, scale: Scale, **options: float | None) -> list[Result]:
        """Answer it. BenchSkipped says what is missing here."""
        module = import_module("kvtier.bench." + self.name.replace("-", "_"))
        return cast("list[Result]", module.run(scale, **options))

    def explanation(self) -> str:
        """How it is measured: the head of its file."""
        module = import_module("kvtier.bench." + self.name.replace("-", "_"))
        return (module.__doc__ or "").strip()


BENCHES: Final = {
    bench.name: bench
    for bench in (
        Bench("lookup", "how much of a prompt is cached: how long until an adapter knows?"),
        Bench("lease", "how long does an engine wait for slots, under traffic and after a pause?"),
        Bench("copy", "how fast do bytes move between an engine's blocks and the arena, at what cost?"),
        Bench("device", "how fast do blocks move to and from a device, and what does a step feel of it?"),
        Bench("storage", "how fast do chunks go to storage and come back, next to what the disk can do?"),
        Bench("restart", "a killed daemon is back: how long until its chunks are hit?"),
        Bench("reliability", "what do engines notice when processes die, hang, or storage fails?"),
        Bench("load", "what does an engine feel of the others on its host?", ("seconds", "engines")),
        Bench("index-memory", "how much memory does the index take for one chunk?"),
        Bench("checksum", "what does a checksum of every chunk in memory cost?"),
        Bench("codec", "does it pay to compress chunks on storage?"),
        Bench("idle-cpu", "what does a daemon cost that nobody uses?"),
        Bench("sglang", "how fast do SGLang's pages go to kvtier and back, next to its file backend?"),
        Bench("engine-step", "how much slower is a vLLM engine while kvtier stores what it computes?"),
    )
}
