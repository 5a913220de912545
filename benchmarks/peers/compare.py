"""Trials of kvtier and its peers, in turns in one run: kill, hang, corruption, leaks. See README.md."""

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial

import trials
from faces import Server
from lmcache_mp import LMCacheServer
from mooncake_store import MooncakeServer
from ours import KvtierServer
from vllm_files import FilesServer

SYSTEMS: dict[str, Callable[[bool], Server]] = {
    "kvtier": KvtierServer,
    "lmcache": LMCacheServer,
    "mooncake": MooncakeServer,
    "vllm-files": FilesServer,
}
WITHOUT_SERVER = ("vllm-files",)  # nothing to kill, to stop or to leak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trial", action="append", choices=["kill", "stop", "flip", "leak"])
    parser.add_argument("--system", action="append", choices=list(SYSTEMS))
    parser.add_argument("--kills", type=int, default=10, help="clients killed in the leak trial")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    todo: dict[str, tuple[bool, Callable[[Server], trials.Row]]] = {
        "kill": (False, trials.killed),
        "stop": (False, trials.stopped),
        "flip": (True, trials.flipped),
        "leak": (False, partial(trials.leaks, kills=options.kills)),
    }
    failed = False
    for name in options.trial or todo:
        disk, trial = todo[name]
        rows = []
        for system in options.system or SYSTEMS:
            if system in WITHOUT_SERVER and name != "flip":
                continue
            server = SYSTEMS[system](disk)
            try:
                rows.append({name: server.name} | trial(server))
            except Exception as error:
                failed = True
                print(
                    f"{name} on {server.name} did not end: {type(error).__name__}: {error}", file=sys.stderr
                )
            finally:
                server.close()
        _print(rows)
    sys.exit(failed)


def _print(rows: list[trials.Row]) -> None:
    if not rows:
        return
    print("\n| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
