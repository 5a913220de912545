"""`kvtier demo`: a real vLLM engine reloads its prefixes from the host's arena, in a new process.

1. A daemon on temporary paths; one engine without kvtier (the reference), one with it.
2. Both answer the same growing conversations, turn by turn.
3. The engine with kvtier is killed (SIGKILL). Its KV cache in the arena stays.
4. A new engine process takes the conversations up: their prefixes are loaded, not computed.

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
TURNS = 5  # the last is answered by the second engine
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
    """What the new engine made of one conversation's last turn, beside the engine without kvtier."""

    conversation: str
    prompt_tokens: int
    hit_tokens: int
    cold_ttft_s: float
    warm_ttft_s: float
    same: bool


def run_engine_demo(console: Console | None = None) -> int:
    """Run it and print as it goes; about two minutes. Returns the exit code.

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
        self._daemon = LocalDaemon(self._directory, dram=DRAM, shm_dir=shm_dir)
        self._same = True

    def run(self) -> int:
        self._introduce()
        with self._step("the model: tiny, real random weights"):
            self._model = models.make_model("dense", models.default_cache_dir())
        talks = self._conversations()
        with self._step(f"kvtier serve, {DRAM} of DRAM"):
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

        turns = [self._last_turn(reference, second, talk) for talk in talks]
        self._compare("second engine", [turn.same for turn in turns], [True] * len(turns))
        self._print_turns(turns)
        self._print_stats()
        return self._verdict(turns)

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

    def _last_turn(self, reference: EngineProcess, second: EngineProcess, talk: Conversation) -> Turn:
        prompt = talk.prompts[-1]
        reference.call("forget")  # so that the reference computes the whole prompt, as any new engine would
        cold = _generate(reference, prompt)
        hits_before = second.call("metrics")["external_prefix_cache_hits"]
        warm = _generate(second, prompt)
        return Turn(
            conversation=talk.id,
            prompt_tokens=len(prompt),
            hit_tokens=int(second.call("metrics")["external_prefix_cache_hits"] - hits_before),
            cold_ttft_s=cold["ttft_s"][0],
            warm_ttft_s=warm["ttft_s"][0],
            same=cold["tokens"] == warm["tokens"],
        )

    def _all_given_back(self) -> None:
        """The daemon has seen the engine's end: no session, lease, pin or reserved slot is left."""
        deadline = time.monotonic() + 10
        while found := held(self._daemon.stats()):
            if time.monotonic() > deadline:
                raise EngineFailed(f"10 s after the engine's end the daemon still holds {', '.join(found)}")
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

    def _print_turns(self, turns: list[Turn]) -> None:
        table = Table(box=box.SIMPLE_HEAD, title="The next turn, in the new process", title_justify="left")
        table.add_column("conversation", no_wrap=True)
        for heading in ("prompt\ntokens", "hit\ntokens", "TTFT\nwithout", "TTFT\nwith kvtier", ""):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("tokens")
        for turn in turns:
            table.add_row(
                turn.conversation,
                f"{turn.prompt_tokens:,}",
                f"{turn.hit_tokens:,}",
                f"{turn.cold_ttft_s * 1e3:,.0f} ms",
                f"[bold]{turn.warm_ttft_s * 1e3:,.0f} ms[/]",
                f"{turn.cold_ttft_s / turn.warm_ttft_s:.1f} x",
                "[green]same[/]" if turn.same else "[bold red]differ[/]",
            )
        self._console.print(table)

    def _print_stats(self) -> None:
        self._say("kvtier stats")
        # The command a user would type, on this very terminal.
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", _STATS, "stats", "--address", self._daemon.address], check=True)

    def _verdict(self, turns: list[Turn]) -> int:
        hits = all(turn.hit_tokens > 0 for turn in turns)
        if self._same and hits:
            self._say("[bold green]Same tokens, prefixes from the arena.[/]")
            return 0
        what = "tokens differ" if not self._same else "a prefix did not come from the arena"
        self._console.print(f"[bold red]The demo failed: {what}.[/]")
        return 1


def _generate(engine: EngineProcess, prompt: list[int]) -> dict[str, Any]:
    answer: dict[str, Any] = engine.call("generate", prompts=[prompt], max_tokens=ANSWER_TOKENS)
    return answer
