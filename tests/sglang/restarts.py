"""Engines that are killed and followed by others, which must answer as an engine without any cache does."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import Host
from sglang_engines import PROMPT_PAGES, PROMPTS, Answers, Engine, References

ASKED = PROMPTS[:4]  # together more than the device holds
PAGES = len(ASKED) * PROMPT_PAGES


@dataclass
class Restarts:
    """Engines whose logs are in one folder."""

    folder: Path
    references: References
    _engines: int = 0

    def wanted(self, model: Path) -> Answers:
        """Without any cache."""
        return self.references.answers(model)

    def successor(self, model: Path, host: Host, engine: Mapping[str, Any], ranks: int = 1) -> Engine:
        """An engine that has computed nothing yet, on a host where another one has computed ASKED.

        engine: the arguments of both.
        """
        wanted = self.wanted(model)
        environment: dict[str, str] = {}
        if ranks > 1:
            engine = {**engine, "tp_size": ranks}
            environment = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))}
        with self._engine(model, host, engine, environment) as first:
            assert first.generate(ASKED).same_as(wanted)
            host.wait_for(lambda: host.chunks() >= PAGES * ranks, f"{PAGES} pages of each rank are stored")
            first.kill()
        return self._engine(model, host, engine, environment)

    def _engine(
        self, model: Path, host: Host, engine: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Engine:
        self._engines += 1
        log = self.folder / f"engine-{self._engines}.log"
        return Engine(model, log, address=host.address, engine=engine, environment=environment)
