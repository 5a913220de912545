"""`kvtier verify` names what is wrong, and nothing that is not."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from segment_bytes import HOST, UNIT, Root, Segment, lease

from kvtier.storage.findings import Report
from kvtier.storage.verify import Unreadable, verify

OTHER = bytes(range(200, 216))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Two hosts: one with a sealed segment of four records and an open one, one that was adopted."""
    root = Root(tmp_path / "root")
    folder = root.host()
    sealed, opened = root.segment(1), root.segment(2)
    for segment, keys in ((sealed, "abcd"), (opened, "ef")):
        for key in keys:
            segment.add(key.encode() * 20, random.Random(key).randbytes(root.chunk_bytes))
    Root.write(folder, sealed)
    Root.write(folder, opened, sealed=False)
    adopted = root.host(OTHER, f"{OTHER.hex()}.adopt.{HOST.hex()}")
    segment = root.segment(7, OTHER)
    segment.add(b"g" * 64, bytes(root.chunk_bytes))
    Root.write(adopted, segment)
    return root


def host(root: Root) -> Path:
    return root.namespace / "hosts" / HOST.hex()


def flip(path: Path, at: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def look(path: Path, check_payloads: bool = True) -> Report:
    return verify(path, check_payloads)


def only_bad(path: Path) -> tuple[str, int | None, bytes | None, str]:
    """Name, offset, key and words of the one bad thing."""
    report = look(path)
    assert len(report.bad) == 1, report.findings
    (finding,) = report.bad
    return Path(finding.path).name, finding.offset, finding.key, finding.what


def command(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "kvtier.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_sound_root(root: Root) -> None:
    report = look(root.path)
    assert report.findings == []
    assert (report.namespaces, report.hosts, report.segments, report.indexes) == (1, 2, 3, 3)
    assert (report.records, report.foreign) == (7, 0)
    assert report.bytes == sum(path.stat().st_size for path in root.path.rglob("*.kvs"))


def test_every_part_of_it_can_be_looked_at_alone(root: Root) -> None:
    for path, records in (
        (root.path / "v1" / root.id.hex(), 7),
        (host(root), 6),
        (host(root) / "seg-0000000001.kvs", 4),
        (host(root) / "seg-0000000001.idx", 0),
        (host(root) / "tail.idx", 0),
        (host(root) / "lease", 0),
        (root.namespace / "meta.json", 0),
        (root.path / "kvtier.json", 0),
    ):
        report = look(path)
        assert report.findings == [], path
        assert report.records == records, path
    (root.path / "link").symlink_to(host(root))  # the path itself is the caller's word
    assert look(root.path / "link").records == 6


def test_looking_changes_nothing(root: Root) -> None:
    def state() -> dict[Path, tuple[int, int, bytes]]:
        files = (path for path in root.path.rglob("*") if path.is_file())
        return {p: (p.stat().st_mtime_ns, p.stat().st_mode, p.read_bytes()) for p in files}

    for path in root.path.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = state()
    try:
        assert look(root.path).findings == []
        assert state() == before
    finally:
        for path in root.path.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)


# ---- bytes ----


@pytest.mark.parametrize("at", [*range(0, 168, 5), 168, 255, 256, 1000, 4095])
def test_a_flip_in_a_record_header(root: Root, at: int) -> None:
    path = host(root) / "seg-0000000001.kvs"
    start = UNIT + UNIT + 8192  # of the second record
    flip(path, start + at)
    report = look(root.path)
    record, entry = report.bad
    assert (Path(record.path).name, record.offset) == (path.name, start)
    assert record.what.startswith("record header: ")
    # What it was, its index still knows.
    assert (Path(entry.path).name, entry.offset, entry.key) == ("seg-0000000001.idx", start, b"b" * 20)
    assert report.records == 6


@pytest.mark.parametrize("seed", range(20))
def test_flips_in_payloads(root: Root, seed: int) -> None:
    path = host(root) / "seg-0000000001.kvs"
    random_ = random.Random(seed)
    record = random_.randrange(4)
    start = UNIT + record * (UNIT + 8192)
    flip(path, start + UNIT + random_.randrange(root.chunk_bytes), 1 << random_.randrange(8))
    report = look(root.path)
    found, _ = report.bad
    assert (Path(found.path).name, found.offset, found.key) == (
        path.name,
        start,
        b"abcd"[record : record + 1] * 20,
    )
    assert found.what.startswith("checksum of the payload is 0x")
    assert look(root.path, check_payloads=False).bad == []
    assert [f.offset for f in look(path).bad] == [start]


@pytest.mark.parametrize("at", [0, 8, 12, 16, 40, 48, 56, 64, 72, 4000])
def test_a_flip_in_a_segment_header(root: Root, at: int) -> None:
    flip(host(root) / "seg-0000000001.kvs", at)
    name, offset, _, what = only_bad(root.path)
    assert (name, offset) == ("seg-0000000001.kvs", 0)
    assert what.startswith("segment header: ")


@pytest.mark.parametrize(
    "at", [0, 8, 12, 16, 40, 48, 72, 80, 88, 92, 500, UNIT, UNIT + 70, UNIT + 4 * 96 - 1]
)
@pytest.mark.parametrize("name", ["seg-0000000001.idx", "seg-0000000002.idx"])
def test_a_flip_in_an_index(root: Root, name: str, at: int) -> None:
    if name == "seg-0000000002.idx":
        (host(root) / "tail.idx").rename(host(root) / name)  # unsealed where sealed is due
        assert only_bad(root.path)[3] == "sealed is 0; 1 is wanted in a file of this name"
        return
    flip(host(root) / name, at)
    assert only_bad(root.path)[0] == name
    assert "index" in only_bad(root.path)[3]


@pytest.mark.parametrize("name", ["seg-0000000001.kvs", "seg-0000000002.kvs"])
def test_truncation(root: Root, name: str) -> None:
    path = host(root) / name
    whole = path.read_bytes()
    for size in range(0, len(whole), 512):
        path.write_bytes(whole[:size])
        report = look(host(root))
        assert report.bad, size
        assert {Path(finding.path).name for finding in report.bad} <= {name, "seg-0000000001.idx", "tail.idx"}


def test_a_torn_end_that_nobody_was_promised_is_no_damage(root: Root) -> None:
    path = host(root) / "seg-0000000002.kvs"
    segment = root.segment(2)
    whole = path.read_bytes()
    segment.data, segment.entries = bytearray(whole), []
    segment.add(b"z" * 16, bytes(root.chunk_bytes))
    grown = bytes(segment.data)
    for size in range(len(whole) + 512, len(grown), 512):
        path.write_bytes(grown[:size])
        report = look(root.path)
        assert report.bad == [], size
        assert any("torn end" in f.what or "no record" in f.what for f in report.findings), size
    path.write_bytes(grown)  # whole, but not in the tail yet
    assert look(root.path).findings == []
    path.write_bytes(grown[:-UNIT])
    assert look(path).bad  # alone, nothing says what was promised


def test_an_index_that_says_what_is_not_there(root: Root) -> None:
    path, index = host(root) / "seg-0000000001.kvs", host(root) / "seg-0000000001.idx"
    segment = root.segment(1)
    for key in "abcd":
        segment.add(key.encode() * 20, random.Random(key).randbytes(root.chunk_bytes))
    assert bytes(segment.data) == path.read_bytes()

    def only_index_bad(change: Any) -> str:
        entry = dict(segment.entries[1])
        kept, segment.entries[1] = segment.entries[1], entry
        change(entry)
        index.write_bytes(segment.index(True))
        segment.entries[1] = kept
        report = look(root.path)
        assert {Path(finding.path).name for finding in report.bad} == {index.name}
        return report.bad[0].what

    assert "entry does not describe its record: key is " in only_index_bad(lambda e: e.update(key=b"x" * 20))
    assert "payload_crc is 1;" in only_index_bad(lambda e: e.update(payload_crc=1))
    assert "entry leads to no record" in only_index_bad(lambda e: e.update(offset=e["offset"] + UNIT))
    dropped = segment.entries.pop(2)
    index.write_bytes(segment.index(True))
    assert only_bad(root.path) == (
        index.name,
        dropped["offset"],
        b"c" * 20,
        "a sound record is not in the index",
    )


# ---- places ----


def test_what_stands_in_the_wrong_place(root: Root) -> None:
    folder = host(root)
    (folder / "seg-0000000001.kvs").rename(folder / "seg-0000000003.kvs")
    (folder / "seg-0000000001.idx").rename(folder / "seg-0000000003.idx")
    words = {Path(f.path).name: f.what for f in look(root.path).bad}
    assert words == {
        "seg-0000000003.kvs": "segment header: number is 1; 3 is wanted",
        "seg-0000000003.idx": "number is 1; 3 is wanted",
    }
    moved = root.host(OTHER)
    (folder / "seg-0000000003.kvs").rename(moved / "seg-0000000001.kvs")
    (folder / "seg-0000000003.idx").rename(moved / "seg-0000000001.idx")
    assert all(f"host is {HOST.hex()}; {OTHER.hex()} is wanted" in f.what for f in look(root.path).bad)
    assert len(look(root.path).bad) == 2


def test_an_index_without_its_segment(root: Root) -> None:
    (host(root) / "seg-0000000001.kvs").unlink()
    (host(root) / "seg-0000000002.kvs").unlink()
    report = look(root.path)
    assert report.bad == []
    assert {Path(f.path).name: f.what for f in report.findings} == {
        "seg-0000000001.idx": "an index without its segment: all misses",
        "tail.idx": "of segment 2, which is gone",
    }


def test_epochs(root: Root) -> None:
    (root.namespace / "epoch-1").touch()
    report = look(root.path)
    assert report.bad == []
    assert all("epoch is 0; 1 is the namespace's" in f.what for f in report.findings)
    assert len(report.findings) == 3
    later = root.segment(9, epoch=2)
    Root.write(host(root), later)
    assert {Path(f.path).name for f in look(root.path).bad} == {"seg-0000000009.kvs", "seg-0000000009.idx"}


def test_leases(root: Root) -> None:
    path = host(root) / "lease"
    path.write_bytes(lease(OTHER))
    assert only_bad(root.path)[3] == f"host is {OTHER.hex()}; {HOST.hex()} is wanted"
    path.write_bytes(lease()[:100])
    assert only_bad(root.path)[3] == "lease has 100 bytes; 256 are wanted"
    path.unlink()
    (finding,) = look(root.path).findings
    assert finding.severity == "note"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ('{"chunk_bytes":5000,"fingerprint":{"dtype":"bfloat16","model":"other"}}\n', "another namespace's"),
        ('{"chunk_bytes":5000,"fingerprint":{"dtype":"bfloat16","model":"tiny"}}', "not in canonical form"),
        (
            '{"chunk_bytes":5000, "fingerprint":{"dtype":"bfloat16","model":"tiny"}}\n',
            "not in canonical form",
        ),
        ('{"chunk_bytes":0,"fingerprint":{"model":"tiny"}}', "chunk_bytes is 0"),
        ('{"chunk_bytes":5000}', "other fields"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "can't decode byte 0xff"),
    ],
)
def test_meta_that_is_not_the_namespaces(root: Root, text: str, words: str) -> None:
    (root.namespace / "meta.json").write_text(text, encoding="latin-1")
    name, _, _, what = only_bad(root.path)
    assert name == "meta.json"
    assert words in what


def test_a_namespace_of_another_chunk_size(root: Root) -> None:
    meta = root.namespace / "meta.json"
    meta.write_text(meta.read_text().replace("5000", "6000"))
    assert {f.what.split(": ")[-1] for f in look(root.path).bad} == {"chunk_bytes is 5000; 6000 is wanted"}


def test_strangers_are_named_and_left_alone(root: Root) -> None:
    outside = root.path.parent / "outside"
    outside.mkdir()
    bad = Segment(5000)
    (outside / "seg-0000000001.kvs").write_bytes(bad.data[:100])
    (host(root) / "seg-0000000005.kvs").symlink_to(outside / "seg-0000000001.kvs")
    (root.namespace / "hosts" / bytes(16).hex()).symlink_to(outside)
    (root.path / "v1" / bytes(16).hex()).symlink_to(root.namespace)
    (host(root) / "seg-1.kvs").write_text("mine")
    (host(root) / "seg-0000000006.kvs").mkdir()
    (root.path / "notes.txt").write_text("mine")
    (root.path / "v1" / "..hidden").write_text("mine")
    os.mkfifo(host(root) / "seg-0000000008.kvs")
    report = look(root.path)
    assert report.bad == []
    assert report.foreign == 8 == len(report.findings)
    assert report.records == 7
    assert sum("symbolic link" in finding.what for finding in report.findings) == 3
    (host(root) / ".tmp-12-0123456789abcdef").touch()
    assert look(root.path).foreign == 8
    assert any("temporary" in finding.what for finding in look(root.path).findings)


# ---- the command ----


def test_exit_codes(root: Root) -> None:
    done = command("verify", root.path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 sound records" in done.stdout
    flip(host(root) / "seg-0000000001.kvs", UNIT + UNIT + 10)
    done = command("verify", root.path)
    assert done.returncode == 1, done.stdout + done.stderr
    path = host(root) / "seg-0000000001.kvs"
    assert f"{path}:\n  bad  at 4096 " in done.stdout
    assert f"key {(b'a' * 20).hex()} checksum of the payload is 0x" in done.stdout
    done = command("verify", "--json", root.path)
    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert record["sound"] is False
    assert record["findings"][0]["key"] == (b"a" * 20).hex()
    assert record["findings"][0]["offset"] == UNIT
    assert command("verify", "--headers-only", root.path).returncode == 0


def test_what_cannot_be_read(root: Root, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("mine")
    for name, words in (
        ("absent", "No such file"),
        ("empty", "is no storage root, no namespace and no host's directory"),
        ("text", "is no segment, index, lease"),
    ):
        with pytest.raises(Unreadable, match=words):
            look(tmp_path / name)
    done = command("verify", tmp_path / "absent")
    assert done.returncode == 2
    assert "absent: No such file" in done.stderr
    (root.path / "kvtier.json").write_text('{"format": 2}')
    done = command("verify", root.path)
    assert done.returncode == 2
    assert "format is 2; this version of kvtier reads format 1" in done.stderr
    (root.path / "kvtier.json").unlink()
    assert only_bad(root.path)[::3] == ("kvtier.json", "is missing, or is no file")


def test_ls(root: Root) -> None:
    rows = [json.loads(line) for line in command("ls", "--storage", root.path, "--json").stdout.splitlines()]
    (row,) = rows
    assert (row["id"], row["chunk_bytes"], row["epoch"]) == (root.id.hex(), 5000, 0)
    assert row["fingerprint"] == {"dtype": "bfloat16", "model": "tiny"}
    mine, adopted = row["hosts"]
    assert (mine["host"], mine["segments"], mine["records"], mine["lease"]) == (HOST.hex(), 2, 6, "held")
    assert (adopted["host"], adopted["adopted_by"], adopted["records"]) == (OTHER.hex(), HOST.hex(), 1)
    done = command("ls", "--storage", root.path)
    assert "tiny bfloat16" in done.stdout
    assert root.id.hex() in done.stdout
    done = command("ls", "--storage", root.path, root.id.hex()[:5])
    assert HOST.hex() in done.stdout
    assert command("ls", "--storage", root.path, "zz").returncode == 1
    done = command("ls", "--storage", root.path / "v1")
    assert done.returncode == 2
    assert "is no storage root" in done.stderr
