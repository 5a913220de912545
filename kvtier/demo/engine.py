"""`kvtier demo`: a real vLLM engine reloads its prefixes from the host's arena, in a new process.

1. A daemon on temporary paths; one engine without kvtier (the reference), one with it.
2. Both answer the same growing conversations, turn by turn.
3. The engine with kvtier is killed (SIGKILL). Its KV cache in the arena stays.
4. A new engine process takes the conversations up: their prefixes are loaded, not computed.
5. That one is killed too, and the daemon is stopped and started: DRAM is empty. A third engine process does
   the same from storage.

The tokens must be the same everywhere (temperature 0, float32), or the demo fails.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from kvtier.demo import models, trace
from kvtier.demo.conversations import SHRINK, Conversation, conversations
from kvtier.demo.daemon import LocalDaemon, held, temporary_paths
from kvtier.demo.engine_process import EngineFailed, EngineProcess
from kvtier.errors import KVTierError

CONVERSATIONS = 3
TURNS = 5  # the last is answered by the second and by the third engine
ANSWER_TOKENS = 16
MODEL_TOKENS_MAX = 16384
PROMPT_TOKENS_MIN = 6000  # of the last turn: long enough to be worth a cache on a tiny model
DRAM = "512MiB"

_ENGINE = {
    "max_model_len": MODEL_TOKENS_MAX,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
}
_STATS = "from kvtier.cli.main import main; main()"


@dataclass(frozen=True)
class Turn:
    """What one engine made of one conversation's last turn."""

    tokens: list[int]
    ttft_s: float
    hit_tokens: int
    storage_bytes: int


def run_engine_demo(console: Console | None = None) -> int:
    """Run it and print as it goes; about three minutes. Returns the exit code.

    0: all tokens were equal and every prefix was a hit. Needs the engine's environment (vLLM, torch,
    transformers), and says so when it is missing.
    """
    console = console or Console()
    missing = [name for name in ("vllm", "torch", "transformers") if find_spec(name) is None]
    if missing:
        console.print(
            f"kvtier demo needs {', '.join(missing)}; `make demo` sets up an environment with vLLM for CPU."
        )
        return 1
    try:
        with ExitStack() as stack:
            return _Show(console, stack).run()
    except (EngineFailed, KVTierError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}", markup=True, highlight=False)
        return 1


class _Show:
    def __init__(self, console: Console, stack: ExitStack) -> None:
        self._console = console
        self._stack = stack
        self._directory, shm_dir = stack.enter_context(temporary_paths("kvt-demo-"))
        root = self._directory / "storage"
        root.mkdir()
        self._daemon = LocalDaemon(
            self._directory, dram=DRAM, shm_dir=shm_dir, options=("--storage", str(root))
        )
        self._same = True

    def run(self) -> int:
        self._introduce()
        with self._step("the model: tiny, real random weights"):
            self._model = models.make_model("dense", models.default_cache_dir())
        talks = self._conversations()
        with self._step(f"kvtier serve, {DRAM} of DRAM, storage in a directory"):
            self._stack.enter_context(self._daemon)
        with self._step("two vLLM engines on CPU: one without kvtier, one with it"):
            reference = self._engine("without", kvtier=False)
            first = self._engine("first", kvtier=True)
            for engine in (reference, first):
                self._ready(engine)

        with self._step(f"{len(talks)} conversations, {TURNS - 1} turns each, without kvtier"):
            expected = self._talk(reference, talks)
        with self._step("the same with kvtier: what is computed is stored in the arena"):
            answers = self._talk(first, talks)
        self._compare("first engine", answers, expected)

        stored = self._settled_chunks(first)
        first.kill()
        self._all_given_back()
        self._say(f"[bold]SIGKILL[/] to the engine. {stored} chunks stay in the arena, every lease is back.")
        with self._step("a second engine process"):
            second = self._engine("second", kvtier=True)
            self._ready(second)

        cold = [self._last_turn(reference, talk) for talk in talks]
        dram = [self._last_turn(second, talk) for talk in talks]
        self._compare("second engine", [turn.tokens for turn in dram], [turn.tokens for turn in cold])

        second.kill()
        self._all_given_back()
        with self._step("the daemon ends and starts again with an empty arena: what there was is on storage"):
            self._daemon.stop()
            self._daemon.start(fresh=True)
        with self._step("a third engine process"):
            third = self._engine("third", kvtier=True)
            self._ready(third)
            self._storage_known(stored)
        storage = [self._last_turn(third, talk) for talk in talks]
        self._compare("third engine", [turn.tokens for turn in storage], [turn.tokens for turn in cold])
        self._print_turns(talks, cold, dram, storage)
        self._print_stats()
        return self._verdict(dram, storage)

    # ---- the play ----

    def _conversations(self) -> list[Conversation]:
        return conversations(
            trace.load(),
            count=CONVERSATIONS,
            turns=TURNS,
            prompt_tokens_min=PROMPT_TOKENS_MIN,
            prompt_tokens_max=MODEL_TOKENS_MAX - ANSWER_TOKENS,
            token_ids=range(models.FIRST_TOKEN, models.VOCABULARY),
        )

    def _engine(self, name: str, *, kvtier: bool) -> EngineProcess:
        # An engine core in its own process, as in production: only so is time to first token worth measuring.
        engine = EngineProcess(
            self._directory / f"engine-{name}.log",
            address=self._daemon.address if kvtier else None,
            environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        )
        self._stack.enter_context(engine)
        engine.start(self._model, _ENGINE)
        return engine

    def _ready(self, engine: EngineProcess) -> None:
        engine.started()
        warm_up = [models.FIRST_TOKEN + i % 1000 for i in range(600)]
        engine.call("generate", prompts=[warm_up], max_tokens=4)

    def _talk(self, engine: EngineProcess, talks: list[Conversation]) -> list[list[int]]:
        """Answers of all turns but the last, the conversations taking turns as users do."""
        answers: list[list[int]] = []
        for number in range(TURNS - 1):
            for talk in talks:
                answers += _generate(engine, talk.prompts[number])["tokens"]
        return answers

    def _last_turn(self, engine: EngineProcess, talk: Conversation) -> Turn:
        engine.call("forget")  # so that nothing comes from the engine's own memory
        hits = self._hits(engine)
        stored = engine.call("tier_bytes").get("storage", 0)
        answer = _generate(engine, talk.prompts[-1])
        return Turn(
            tokens=answer["tokens"][0],
            ttft_s=answer["ttft_s"][0],
            hit_tokens=self._hits(engine) - hits,
            storage_bytes=int(engine.call("tier_bytes").get("storage", 0) - stored),
        )

    @staticmethod
    def _hits(engine: EngineProcess) -> int:
        return int(engine.call("metrics").get("external_prefix_cache_hits", 0))

    def _all_given_back(self) -> None:
        """The daemon has seen the engine's end: no session, lease, pin or reserved slot is left."""
        deadline = time.monotonic() + 10
        while found := held(self._daemon.stats()):
            if time.monotonic() > deadline:
                raise EngineFailed(f"10 s after the engine's end the daemon still holds {', '.join(found)}")
            time.sleep(0.05)

    def _storage_known(self, chunks: int) -> None:
        """The daemon has read which chunks are on storage: it does so once an engine has named its model."""
        deadline = time.monotonic() + 20
        while (known := self._daemon.stats().counters["storage_records"]) < chunks:
            if time.monotonic() > deadline:
                raise EngineFailed(f"of {chunks} chunks {known} are known on storage after 20 s")
            time.sleep(0.05)

    def _settled_chunks(self, engine: EngineProcess) -> int:
        """Chunks in the arena once the engine's last stores are committed."""
        deadline = time.monotonic() + 20
        while True:
            stats = self._daemon.stats()
            if not any(session.reserved_slots or session.pinned_slots for session in stats.sessions):
                return sum(namespace.chunks for namespace in stats.namespaces)
            if time.monotonic() > deadline:
                raise EngineFailed(f"the engine's stores were not committed in 20 s\n{engine.log_tail()}")
            engine.call("generate", prompts=[[models.FIRST_TOKEN] * 8], max_tokens=1)

    # ---- what people see ----

    def _introduce(self) -> None:
        self._console.print(
            Panel(
                "A real vLLM engine answers growing agent conversations and is killed.\n"
                "A new engine process goes on, with its prefixes from the host's arena.\n"
                "DRAM is emptied; another one goes on, with its prefixes from storage.\n"
                f"[dim]Conversations: recorded agent sessions, {SHRINK} times shorter. Greedy, float32.[/]",
                title="kvtier demo",
                box=box.ROUNDED,
                expand=False,
            )
        )

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        began = time.monotonic()
        with self._console.status(text):
            yield
        self._say(f"{text} [dim]({time.monotonic() - began:.1f} s)[/]")

    def _say(self, text: str) -> None:
        self._console.print(f"[green]●[/] {text}", highlight=False)

    def _compare(self, who: str, answers: list[Any], expected: list[Any]) -> None:
        equal = sum(a == b for a, b in zip(answers, expected, strict=True))
        self._same &= equal == len(expected)
        mark = "[green]✓[/]" if equal == len(expected) else "[bold red]✗[/]"
        self._console.print(f"  {mark} {who}: {equal} of {len(expected)} answers the same as without kvtier")

    def _print_turns(
        self, talks: list[Conversation], cold: list[Turn], dram: list[Turn], storage: list[Turn]
    ) -> None:
        title = "The next turn, in new processes: time to first token without kvtier and by tier"
        table = Table(
            box=box.SIMPLE_HEAD, title=title, title_justify="left", collapse_padding=True, pad_edge=False
        )
        table.add_column("session", no_wrap=True)
        for heading in ("prompt", "hit", "without", "DRAM", "", "storage", ""):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("tokens", no_wrap=True)
        for talk, *turns in zip(talks, cold, dram, storage, strict=True):
            first, *warm = turns
            hits = min(turn.hit_tokens for turn in warm)
            cells = [f"{len(talk.prompts[-1]):,}", f"{hits:,}", f"{first.ttft_s * 1e3:,.0f} ms"]
            for turn in warm:
                cells += [f"[bold]{turn.ttft_s * 1e3:,.0f} ms[/]"]
                cells += [f"{first.ttft_s / turn.ttft_s:.1f} x"]
            same = all(turn.tokens == first.tokens for turn in warm)
            table.add_row(talk.id, *cells, "[green]same[/]" if same else "[bold red]differ[/]")
        self._console.print(table)

    def _print_stats(self) -> None:
        self._say("kvtier stats")
        # The command a user would type, on this very terminal.
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", _STATS, "stats", "--address", self._daemon.address], check=True)

    def _verdict(self, dram: list[Turn], storage: list[Turn]) -> int:
        hits = all(turn.hit_tokens > 0 for turn in dram + storage)
        read = sum(turn.storage_bytes for turn in storage) > 0
        if self._same and hits and read:
            self._say("[bold green]Same tokens, prefixes from the arena and from storage.[/]")
            return 0
        what = "a prefix did not come from the arena or from storage" if self._same else "tokens differ"
        self._console.print(f"[bold red]The demo failed: {what}.[/]")
        return 1


def _generate(engine: EngineProcess, prompt: list[int]) -> dict[str, Any]:
    answer: dict[str, Any] = engine.call("generate", prompts=[prompt], max_tokens=ANSWER_TOKENS)
    return answer
