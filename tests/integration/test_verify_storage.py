"""`kvtier verify` and `kvtier ls --storage` on what real daemons have written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Daemon, keys_of, store, until

from kvtier import Hit
from kvtier.io.native import scan_segment

CHUNK = 64 << 10
PRINT = {"model": "verified", "dtype": "bfloat16"}
StartDaemon = Callable[..., Daemon]


def kvtier(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvtier.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def verify(root: Path) -> tuple[int, dict[str, Any]]:
    done = kvtier("verify", "--json", root)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def on_storage(daemon: Daemon, chunks: int) -> None:
    """Until it has written so many."""
    until(lambda: daemon.counters()["storage_demoted_chunks"] >= chunks, f"{chunks} demoted")


def test_what_daemons_write_is_sound_and_damage_is_named(start_daemon: StartDaemon, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = ("--storage", str(root), "--storage-poll", "100ms")
    one, two = (start_daemon("64MiB", *options) for _ in range(2))
    keys = keys_of("first", 40), keys_of("second", 25)
    for daemon, wanted in zip((one, two), keys, strict=True):
        with daemon.client() as client:
            assert store(client.namespace(PRINT, CHUNK), wanted) == len(wanted)
        on_storage(daemon, len(wanted))

    # While they live: open segments, tails.
    code, found = verify(root)
    assert (code, found["hosts"], found["records"]) == (0, 2, 65), found["findings"]
    (row,) = (json.loads(line) for line in kvtier("ls", "--storage", root, "--json").stdout.splitlines())
    assert row["fingerprint"] == PRINT
    assert row["chunk_bytes"] == CHUNK
    assert sorted(host["records"] for host in row["hosts"]) == [25, 40]
    assert {host["lease"] for host in row["hosts"]} == {"held"}

    # After they have left: sealed.
    one.finish()
    two.finish()
    code, found = verify(root)
    assert (code, found["records"], found["findings"]) == (0, 65, [])
    assert len(list(root.rglob("seg-*.idx"))) == len(list(root.rglob("seg-*.kvs"))) == found["segments"]

    victim = max(root.rglob("seg-*.kvs"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[4096 + 4096 + 1000] ^= 4
    victim.write_bytes(data)
    code, found = verify(root)
    assert code == 1
    record = found["findings"][0]
    assert (record["path"], record["offset"], record["severity"]) == (str(victim), 4096, "bad")
    assert bytes.fromhex(record["key"]) in keys[0]
    assert record["what"].startswith("checksum of the payload is 0x")


def test_chunks_go_through_lz4_and_come_back(start_daemon: StartDaemon, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = ("--storage", str(root), "--storage-poll", "100ms", "--storage-codec", "lz4-shuffle2")
    keys = keys_of("shrinks", 20)
    # 16-bit numbers with one exponent: what the shuffle is for.
    chunks = [
        bytes(byte for low in range(CHUNK // 2) for byte in ((low * 7 + i) % 251, 0x3F)) for i in range(20)
    ]
    before = start_daemon("64MiB", *options)
    with before.client() as client, client.namespace(PRINT, CHUNK).reserve(keys) as write:
        for view, chunk in zip(write.views, chunks, strict=True):
            view[:] = chunk
        write.commit()
    on_storage(before, 20)
    before.finish()
    code, found = verify(root)
    assert (code, found["records"]) == (0, 20), found["findings"]
    (segment,) = root.rglob("seg-*.kvs")
    records = scan_segment(str(segment), True)["records"]
    assert {record["codec"] for record in records} == {"lz4-shuffle2"}
    assert max(record["stored_bytes"] for record in records) < CHUNK

    after = start_daemon("64MiB", *options)
    with after.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: ns.lookup(keys) == Hit(20, 0, 20), "seen on storage")
        with ns.lease(keys) as read:
            read.wait(10.0)
            assert list(read.failed) == []
            assert [bytes(view) for view in read.views] == chunks
