import os

import pytest

from kvtier.io.lockfile import HeldElsewhere, LockFile


def test_the_second_holder_learns_who_the_first_is(tmp_path):
    path = tmp_path / "a.lock"
    with LockFile(path):
        with pytest.raises(HeldElsewhere) as raised:
            LockFile(path)
        assert raised.value.holder == f"pid {os.getpid()}"
    assert not path.exists()
    with LockFile(path):
        assert path.read_text() == f"pid {os.getpid()}\n"


def test_a_file_without_a_holder_is_taken_over(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("pid 1234567890123\n")
    with LockFile(path):
        assert path.read_text() == f"pid {os.getpid()}\n"


def test_a_lock_whose_file_was_removed_is_none(tmp_path, monkeypatch):
    """The former holder removes the file between our open and our lock; another may have made a new one."""
    path = tmp_path / "a.lock"
    first = LockFile(path)
    opened = []
    real_open = os.open

    def open_then_lose(*arguments, **options):
        fd = real_open(*arguments, **options)
        if not opened:
            first.release()
        opened.append(fd)
        return fd

    monkeypatch.setattr(os, "open", open_then_lose)
    with LockFile(path):
        assert len(opened) == 2
        assert path.exists()


def test_links_are_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "a.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        LockFile(tmp_path / "a.lock")
    assert (tmp_path / "precious").read_text() == "kept"


def test_release_twice(tmp_path):
    lock = LockFile(tmp_path / "a.lock")
    lock.release()
    other = LockFile(tmp_path / "a.lock")
    lock.release()
    assert (tmp_path / "a.lock").exists()
    other.release()


def test_a_lock_that_is_held_to_the_end_outlives_its_release(tmp_path):
    path = tmp_path / "a.lock"
    lock = LockFile(path)
    lock.hold_to_the_end()
    lock.release()
    assert path.exists()
    with pytest.raises(HeldElsewhere):
        LockFile(path)
