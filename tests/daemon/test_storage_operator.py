"""Storage as an operator meets it: good roots, bad roots, what is shown and said."""

import json
import os
import subprocess
import sys

import pytest
from harness import keys_of, load, store, until

from kvtier import Hit

KVTIER = (sys.executable, "-m", "kvtier.cli.main")
CHUNK = 65536
PRINT = {"model": "m"}


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path


def kvtier(*arguments):
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run([*KVTIER, *arguments], capture_output=True, text=True, timeout=60, env=environment)


def refused(tmp_path, storage, *more):
    """The words with which a start is refused."""
    done = kvtier(
        *("serve", "--address", f"unix:{tmp_path}/s", "--dram", "16MiB", "--shm-dir", f"{tmp_path}/shm"),
        *("--storage", str(storage), *more),
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def tree(path):
    """Everything below, with its bytes: what must not be touched."""
    return {
        str(item.relative_to(path)): os.readlink(item) if item.is_symlink() else item.read_bytes()
        for item in sorted(path.rglob("*"))
        if item.is_symlink() or item.is_file()
    }


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "irectory"),
        (lambda path: path.symlink_to("/nonexistent"), str),
    ],
    ids=["missing", "a file", "a dangling link"],
)
def test_a_root_that_is_none(tmp_path, make, words):
    path = tmp_path / "root"
    make(path)
    said = refused(tmp_path, path)
    assert "storage = " in said
    assert str(path) in said
    if isinstance(words, str):
        assert words in said


def test_a_root_that_cannot_be_written(tmp_path):
    said = refused(tmp_path, "/proc/sys")  # read-only for everybody, root included
    assert "/proc/sys" in said


@pytest.mark.parametrize("marker", ['{"format": 2}\n', "not a marker", "", '{"format": 1, "x": 2'])
def test_a_marker_of_a_newer_or_unknown_format(tmp_path, root, marker):
    (root / "kvtier.json").write_text(marker)
    (root / "others.txt").write_text("theirs")
    before = tree(root)
    said = refused(tmp_path, root)
    assert str(root) in said
    assert ("its format is 2" if "2}" in marker else "kvtier.json") in said
    assert tree(root) == before


def test_words_for_bad_fields(tmp_path, root):
    assert "storage_quota" in refused(tmp_path, root, "--storage-quota", "1MiB")
    assert "storage_dead_after" in refused(tmp_path, root, "--storage-dead-after", "1s")
    assert "storage" in refused(tmp_path, "relative/path")
    said = refused(tmp_path, "s3://user:secret@bucket/x")
    assert "credentials" in said


def test_foreign_files_stay_and_do_not_matter(start_daemon, root):
    (root / "README").write_text("ours")
    (root / "v1").mkdir()
    (root / "v1" / "not-a-namespace").mkdir()
    (root / "v1" / "not-a-namespace" / "seg-0000000001.kvs").write_bytes(b"x" * 9000)
    before = tree(root)
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys_of("a", 8))
        until(lambda: daemon.counters()["storage_demoted_chunks"] == 8, "8 demoted")
        hosts = root / "v1" / ns.id.hex() / "hosts"
        mine = next(hosts.iterdir())
        for name in ("seg-1.kvs", "seg-0000000001.kvs.bak", "core", "tail.idx.old"):
            (mine / name).write_text("theirs")
        (hosts / "readme").write_text("theirs")
        (hosts / ("AB" * 16)).mkdir()  # upper case: not one of ours
        assert store(ns, keys_of("b", 8)) == 8
        until(lambda: daemon.counters()["storage_demoted_chunks"] == 16, "16 demoted")
        assert load(ns, keys_of("a", 8)) == 8
    daemon.finish()
    after = tree(root)
    assert before.items() <= after.items()
    assert (mine / "core").read_text() == "theirs"


def test_another_fingerprint_under_the_same_id(start_daemon, root):
    """DRAM goes on, storage refuses that namespace and says so; the file stays."""
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with daemon.client() as client:
        id = client.namespace(PRINT, CHUNK).id.hex()
    daemon.finish()
    meta = root / "v1" / id / "meta.json"
    meta.write_text('{"chunk_bytes":65536,"fingerprint":{"model":"other"}}\n')
    again = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with again.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        until(lambda: again.stats().namespaces[0].storage.startswith("refused"), "refused")
        assert store(ns, keys_of("a", 4)) == 4
        assert ns.lookup(keys_of("a", 4)) == Hit(4, 4, 0)
    until(lambda: "refused" in again.log(), "a line in the log", timeout_s=5)
    assert "other" in meta.read_text()
    assert again.counters()["storage_demoted_chunks"] == 0


def test_a_namespace_that_cannot_be_opened(start_daemon, root):
    """It stays unopened, and that is said, counted, and over as soon as the cause is."""
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with daemon.client() as client:
        id = client.namespace(PRINT, CHUNK).id.hex()
    daemon.finish()
    meta = root / "v1" / id / "meta.json"
    text = meta.read_text()
    meta.unlink()
    meta.mkdir()
    again = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with again.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        assert store(ns, keys_of("a", 4)) == 4
        until(lambda: "opening: EISDIR" in again.log(), "a line in the log")
        assert again.counters()["storage_namespaces_opening"] == 1
        assert again.counters()["storage_demoted_chunks"] == 0
        meta.rmdir()
        meta.write_text(text)
        until(lambda: again.counters()["storage_demoted_chunks"] == 4, "4 demoted")
        until(lambda: "storage is back" in again.log(), "a line in the log")
    assert again.counters()["storage_namespaces_opening"] == 0


@pytest.mark.parametrize("level", ["v1", "namespace", "hosts", "host", "segment"])
def test_planted_links_are_not_followed(start_daemon, root, tmp_path, level):
    """A link at any level: a miss or a refusal, and nothing appears or changes where it points."""
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys_of("a", 8))
        until(lambda: daemon.counters()["storage_demoted_chunks"] == 8, "8 demoted")
        id = ns.id.hex()
    daemon.finish()
    host = next((root / "v1" / id / "hosts").iterdir())
    victim = {
        "v1": root / "v1",
        "namespace": root / "v1" / id,
        "hosts": root / "v1" / id / "hosts",
        "host": host,
        "segment": next(host.glob("seg-*.kvs")),
    }[level]
    elsewhere = tmp_path / "elsewhere"
    victim.rename(elsewhere)
    victim.symlink_to(elsewhere)
    is_file = elsewhere.is_file()
    before = elsewhere.read_bytes() if is_file else tree(elsewhere)
    again = start_daemon("64MiB", "--storage", str(root), "--storage-poll", "100ms")
    with again.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        assert store(ns, keys_of("b", 4)) == 4
        with ns.lease(keys_of("a", 8)) as read:
            read.wait(10)
            assert len(read.keys) == len(read.failed)  # nothing was read through the link
    again.finish()
    # Where it was, or in its host's directory under the name that adoption gave it.
    assert any(path.is_symlink() for path in root.rglob(victim.name))
    assert (elsewhere.read_bytes() if is_file else tree(elsewhere)) == before


def test_what_stats_show(start_daemon, root):
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-quota", "64MiB")
    with daemon.client() as client:
        ns = client.namespace(PRINT, CHUNK)
        store(ns, keys_of("a", 8))
        done = kvtier("admin", "flush", "--address", daemon.address)
        assert done.returncode == 0, done.stderr
        done = kvtier("stats", "--address", daemon.address)
    assert "storage  ok, 8 chunks of 1 hosts" in done.stdout, done.stdout
    assert "of 64 MiB" in done.stdout
    assert "demoted  8 chunks, 512 KiB" in done.stdout
    record = json.loads(kvtier("stats", "--json", "--address", daemon.address).stdout)
    assert record["storage"] == "ok"
    assert record["namespaces"][0]["storage"] == "ready"
    assert record["namespaces"][0]["storage_records"] == 8


def test_segments_that_a_small_quota_makes_smaller(start_daemon, root):
    daemon = start_daemon("64MiB", "--storage", str(root), "--storage-quota", "64MiB")
    until(lambda: "segments are smaller" in daemon.log(), "a line in the log")
    assert '"used": "4 MiB"' in daemon.log()
    assert '"wanted": "256 MiB"' in daemon.log()
    assert daemon.counters()["storage_segment_bytes"] == 4 << 20
    fitting = start_daemon("64MiB", "--storage", str(root))
    fitting.counters()
    assert "segments are smaller" not in fitting.log()


def test_flush_without_storage(daemon):
    done = kvtier("admin", "flush", "--address", daemon.address)
    assert done.returncode == 2
    assert "--storage" in done.stderr
