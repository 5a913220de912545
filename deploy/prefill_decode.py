"""Two SGLang engines that share through kvtier what they compute: one for prompts, one for answers.

    python deploy/prefill_decode.py MODEL [--through storage] [-- ARGUMENTS OF sglang.launch_server]

Starts a kvtier daemon and two servers, and leads a conversation of two turns as a router would:

1. the prompt goes to the prefill engine, which answers one token, and stores the prompt's pages;
2. prompt and token go to the decode engine, which loads those pages and answers on, and stores its own;
3. all that and the next question go to the prefill engine, which loads the answer's pages.

No KV goes from engine to engine: each finds by its hash what the other has stored. With `--through storage`
each engine has a daemon of its own, as on two hosts, and the two share a storage root.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from kvtier import Client
from kvtier.demo.daemon import LocalDaemon, temporary_paths

START_S = 600.0
ANSWER_S = 300.0
STORED_S = 120.0
TOKEN_IDS = range(100, 2000)  # ordinary tokens of any model


@dataclass(frozen=True)
class Turn:
    """What one engine was asked, and where the KV of the prompt came from, in tokens."""

    engine: str
    prompt: list[int]
    answer: list[int]
    own: int  # from the engine's own caches
    kvtier: int

    @property
    def computed(self) -> int:
        """What was left to compute."""
        return len(self.prompt) - self.own - self.kvtier


class Server:
    """An SGLang server on a free port. Entering it waits until it answers."""

    def __init__(self, name: str, model: str, address: str, page_tokens: int, more: Sequence[str]) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        extra = {
            "backend_name": "kvtier",
            "module_path": "kvtier_connectors.sglang_hicache",
            "class_name": "KvtierHiCache",
            "interface_v1": 1,
            # SGLang asks storage for no less than 256 tokens, unless told to.
            "prefetch_threshold": page_tokens,
        }
        self._command = [
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
            *("--host", "127.0.0.1", "--port", str(self._port), "--page-size", str(page_tokens)),
            *("--enable-hierarchical-cache", "--hicache-storage-backend", "dynamic"),
            *("--hicache-storage-backend-extra-config", json.dumps(extra)),
            # By default a request runs with what has arrived when its turn comes.
            *("--hicache-storage-prefetch-policy", "wait_complete", "--enable-cache-report", *more),
        ]
        self._environment = {**os.environ, "KVTIER_ADDRESS": address}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            wait_for(self._is_up, f"the {self.name} server is up", START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, prompt: list[int], max_tokens: int) -> Turn:
        """Greedy tokens after this prompt."""
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
        reply = json.loads(self._get("/generate", body, ANSWER_S))
        meta = reply["meta_info"]
        stored = (meta.get("cached_tokens_details") or {}).get("storage", 0)
        return Turn(self.name, prompt, reply["output_ids"], meta["cached_tokens"] - stored, stored)

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"the {self.name} server ended ({self._process.returncode})")
        with suppress(OSError):
            self._get("/health", None, 10.0)
            return True
        return False

    def _get(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - http alone
            return bytes(reply.read())


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Until it is so; ends the program when that takes too long."""
    ends_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > ends_s:
            raise SystemExit(f"{what}: not within {deadline_s:g} s")
        time.sleep(0.1)


def wait_for_pages(address: str, pages: int, field: str) -> None:
    """Until the daemon there can serve so many pages. A router need not wait: what is late is computed."""

    def there() -> bool:
        with Client.connect(address) as client:
            namespaces = client.stats()["namespaces"]
        return sum(int(namespace[field]) for namespace in namespaces) >= pages

    wait_for(there, f"{pages} pages are at {address}", STORED_S)


def converse(
    prefill: Server, decode: Server, addresses: tuple[str, str], options: argparse.Namespace
) -> list[Turn]:
    """Two turns; see the head of this file."""
    draw = random.Random(options.seed)  # noqa: S311 - a prompt
    field = "storage_records" if options.through == "storage" else "chunks"

    def stored(tokens: int, address: str) -> None:
        wait_for_pages(address, tokens // options.page_size, field)

    prompt = [draw.choice(TOKEN_IDS) for _ in range(options.prompt_tokens)]
    first = prefill.ask(prompt, 1)
    stored(len(prompt), addresses[1])
    rest = decode.ask(prompt + first.answer, options.answer_tokens - 1)
    answered = rest.prompt + rest.answer
    stored(len(answered) - 1, addresses[0])  # nobody has computed the last token's KV
    question = [draw.choice(TOKEN_IDS) for _ in range(options.page_size)]
    return [first, rest, prefill.ask(answered + question, 1)]


def start_daemons(stack: ExitStack, through: str, dram: str) -> tuple[str, str]:
    """Their addresses, for the prefill and the decode engine."""
    root = Path(stack.enter_context(TemporaryDirectory(prefix="kvtier-root-")))
    storage = ("--storage", str(root), "--storage-poll", "200ms") if through == "storage" else ()
    addresses = []
    for _ in range(2 if through == "storage" else 1):
        directory, shm_dir = stack.enter_context(temporary_paths())
        daemon = LocalDaemon(directory, dram=dram, shm_dir=shm_dir, options=storage)
        addresses.append(stack.enter_context(daemon).address)
    return addresses[0], addresses[-1]


def main(arguments: Sequence[str]) -> None:
    """Run it and show where each prompt's KV came from."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    ours, more = arguments[:split], arguments[split + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--through", choices=("host", "storage"), default="host")
    parser.add_argument("--dram", default="1GiB", help="of each daemon")
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one object with all tokens")
    options = parser.parse_args(ours)
    with ExitStack() as stack:
        addresses = start_daemons(stack, options.through, options.dram)
        prefill, decode = (
            stack.enter_context(Server(name, options.model, address, options.page_size, more))
            for name, address in zip(("prefill", "decode"), addresses, strict=True)
        )
        turns = converse(prefill, decode, addresses, options)
    if options.json:
        print(json.dumps([asdict(turn) for turn in turns]))
        return
    print(f"{'engine':<10}{'prompt':>8}{'own cache':>12}{'kvtier':>8}{'computed':>10}   tokens")
    for turn in turns:
        print(f"{turn.engine:<10}{len(turn.prompt):>8}{turn.own:>12}{turn.kvtier:>8}{turn.computed:>10}")


if __name__ == "__main__":
    main(sys.argv[1:])
