"""Seals through real daemons: what they write, who reads it, and that it is what the format says."""

import hashlib
import hmac
import json
import os
import secrets
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from harness import Daemon, bytes_of, keys_of, load, store, until

from kvtier import Hit

CHUNK = 64 << 10
UNIT = 4096
PRINT = {"model": "sealed"}
COUNT = 12
StartDaemon = Callable[..., Daemon]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def key_file(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name
    path.touch(0o600)
    path.write_bytes(content)
    return path


def flags(root: Path, seal: str, key: Path) -> tuple[str, ...]:
    options = ("--storage", str(root), "--storage-poll", "100ms")
    return (*options, "--storage-seal", seal, "--storage-key", str(key))


def written(daemon: Daemon, count: int = COUNT) -> None:
    with daemon.client() as client:
        assert store(client.namespace(PRINT, CHUNK), keys_of("sealed", count)) == count
    with closing(daemon.control()) as control:
        assert control.flush(30.0)


def verify(root: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvtier.cli.main", "verify", "--json", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def open_record(data: bytes, offset: int, master: bytes) -> bytes:
    """What docs/formats/segment.md says a reader with the key does."""
    header = data[offset : offset + 256]
    namespace = header[16:32]
    stored_bytes = struct.unpack_from("<Q", header, 80)[0]
    seal = struct.unpack_from("<I", header, 100)[0]
    salt, payload_tag, header_tag = header[168:200], header[200:216], header[216:248]
    extracted = hmac.digest(b"kvtier storage seal 1", master, hashlib.sha256)
    header_key = hmac.digest(extracted, b"header" + namespace + b"\1", hashlib.sha256)
    covered = header[:12] + bytes(4) + header[16:216] + bytes(32) + header[248:]
    assert hmac.digest(header_key, covered, hashlib.sha256) == header_tag
    info = b"payload" + bytes([seal]) + namespace + salt + b"\1"
    cipher = AESGCM(hmac.digest(extracted, info, hashlib.sha256))
    stored = data[offset + UNIT : offset + UNIT + stored_bytes]
    if seal == 2:
        return cipher.decrypt(bytes(12), stored + payload_tag, None)
    assert cipher.encrypt(bytes(12), b"", stored) == payload_tag
    return stored


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_what_is_sealed_is_read_by_who_has_the_key(
    start_daemon: StartDaemon, root: Path, tmp_path: Path, seal: str
) -> None:
    master = secrets.token_bytes(32)
    raw, digits = key_file(tmp_path, "raw", master), key_file(tmp_path, "hex", master.hex().encode() + b"\n")
    keys = keys_of("sealed", COUNT)
    one = start_daemon("64MiB", *flags(root, seal, raw))
    two = start_daemon("64MiB", *flags(root, seal, digits))
    written(one)
    with two.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: ns.lookup(keys) == Hit(COUNT, 0, COUNT), "seen by the other host")
        assert load(ns, keys) == COUNT
    one.finish()
    two.finish()
    (segment,) = root.rglob("seg-*.kvs")
    data = segment.read_bytes()
    chunks = {bytes_of(key, CHUNK) for key in keys}
    for i in range(COUNT):
        chunk = open_record(data, UNIT + i * (UNIT + CHUNK), master)
        assert chunk in chunks
        assert (chunk[:64] in data) == (seal == "mac")
    with pytest.raises(AssertionError):
        open_record(data, UNIT, secrets.token_bytes(32))
    assert master not in b"".join(daemon.log().encode() for daemon in (one, two))
    assert master.hex() not in one.log() + two.log()

    # verify, with and without the key.
    found = verify(root, "--storage-key", str(raw))
    assert (found["records"], found["findings"]) == (COUNT, [])
    (note,) = verify(root)["findings"]
    assert (note["severity"], "without --storage-key" in note["what"]) == ("note", True)
    stranger = key_file(tmp_path, "stranger", secrets.token_bytes(32))
    assert "not by the given key" in verify(root, "--storage-key", str(stranger))["findings"][0]["what"]


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_forged_records_are_misses(start_daemon: StartDaemon, root: Path, tmp_path: Path, seal: str) -> None:
    """Every second record is changed by somebody who makes all checksums right again."""
    key = key_file(tmp_path, "key", secrets.token_bytes(32))
    before = start_daemon("64MiB", *flags(root, seal, key))
    written(before)
    before.finish()
    (segment,) = root.rglob("seg-*.kvs")
    data = bytearray(segment.read_bytes())
    stride = UNIT + CHUNK
    forged = set()
    for offset in range(UNIT, UNIT + COUNT * stride, 2 * stride):
        data[offset + UNIT + 100] ^= 1
        payload = bytes(data[offset + UNIT : offset + stride])
        struct.pack_into("<II", data, offset + 88, google_crc32c.value(payload), 0)
        struct.pack_into("<I", data, offset + 12, 0)
        struct.pack_into("<I", data, offset + 12, google_crc32c.value(bytes(data[offset : offset + 256])))
        forged.add(bytes(data[offset + 104 : offset + 136]))
    segment.write_bytes(data)
    bad = [row for row in verify(root, "--storage-key", str(key))["findings"] if "seal" in row["what"]]
    assert {bytes.fromhex(row["key"]) for row in bad if row["path"].endswith(".kvs")} == forged

    after = start_daemon("64MiB", *flags(root, seal, key))
    keys = keys_of("sealed", COUNT)
    assert len(forged) == COUNT // 2
    with after.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: ns.lookup(keys) == Hit(COUNT, 0, COUNT), "seen on storage")
        for key_ in keys:
            with ns.lease([key_]) as read:
                read.wait(20.0)
                assert (key_ in read.failed or not read.keys) == (key_ in forged)
                if key_ not in forged:
                    assert read.views[0] == bytes_of(key_, CHUNK)
        assert after.counters()["storage_failed_corrupt"] == len(forged)


def test_another_key_or_seal_refuses_the_namespace_and_says_so(
    start_daemon: StartDaemon, root: Path, tmp_path: Path
) -> None:
    key, other = (key_file(tmp_path, name, secrets.token_bytes(32)) for name in ("key", "other"))
    before = start_daemon("64MiB", *flags(root, "mac", key))
    written(before)
    before.finish()
    keys = keys_of("sealed", COUNT)
    plain = ("--storage", str(root), "--storage-poll", "100ms")
    for options in (flags(root, "mac", other), flags(root, "encrypt", key), plain):
        daemon = start_daemon("64MiB", *options)
        with daemon.client() as client:
            ns = client.namespace(PRINT, CHUNK)
            until(lambda daemon=daemon: "is of another storage_seal or storage_key" in daemon.log(), "said")
            assert ns.lookup(keys) == Hit(0, 0, 0)
            assert daemon.stats().namespaces[0].storage.startswith("refused: ")
            assert store(ns, keys_of("memory goes on", 2)) == 2
            assert load(ns, keys_of("memory goes on", 2)) == 2
        daemon.finish()
        assert daemon.log().count("is of another storage_seal") == 1


def refused(tmp_path: Path, *options: str) -> str:
    command = [sys.executable, "-m", "kvtier.cli.main", "serve", "--address", f"unix:{tmp_path}/k.sock"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVTIER_")}
    done = subprocess.run(
        [*command, "--shm-dir", str(tmp_path / "shm"), "--dram", "8MiB", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_keys_that_are_none_are_refused_and_not_shown(root: Path, tmp_path: Path) -> None:
    secret = b"correct horse battery staple"
    bad = key_file(tmp_path, "bad", secret)
    said = refused(tmp_path, *flags(root, "mac", bad))
    assert "storage_key" in said
    assert "28 bytes that are no key" in said
    assert secret.decode() not in said
    good = key_file(tmp_path, "good", secrets.token_bytes(32))
    good.chmod(0o644)
    assert "open to others (mode 0644)" in refused(tmp_path, *flags(root, "mac", good))
    assert "cannot be read" in refused(tmp_path, *flags(root, "mac", tmp_path / "none"))
    good.chmod(0o600)
    assert "takes a key" in refused(tmp_path, "--storage", str(root), "--storage-seal", "mac")
    assert "storage_seal is 'none'" in refused(tmp_path, "--storage", str(root), "--storage-key", str(good))
    assert "'none', 'mac' or 'encrypt'" in refused(tmp_path, *flags(root, "aes", good))


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_what_a_dead_host_left_open_is_adopted_and_read(
    start_daemon: StartDaemon, root: Path, tmp_path: Path, seal: str
) -> None:
    key = key_file(tmp_path, "key", secrets.token_bytes(32))
    options = (*flags(root, seal, key), "--storage-dead-after", "1s", "--storage-codec", "lz4")
    dead, heir = (start_daemon("64MiB", *options) for _ in range(2))
    written(dead)
    dead.kill()
    for tail in root.rglob("tail.idx"):
        tail.unlink()  # so that it is found by its records alone
    keys = keys_of("sealed", COUNT)
    with heir.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(
            lambda: heir.counters()["storage_adopted_segments"] >= 1 or ns.lookup(keys).chunks,
            "adopted",
            60.0,
        )
        until(lambda: ns.lookup(keys) == Hit(COUNT, 0, COUNT), "found", 60.0)
        assert load(ns, keys) == COUNT
