"""A daemon's claim on its address: made anew where names were removed, and never another daemon's."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvtier.address import parse_address
from kvtier.daemon.listen import Claim
from kvtier.errors import AlreadyServing
from kvtier.io.lockfile import HeldElsewhere, LockFile


@contextmanager
def claimed(directory: Path) -> Iterator[Claim]:
    """Nobody listens on its sockets: what is bound to a name does not matter."""
    claim = Claim(parse_address(f"unix:{directory}/kvtier.sock"))
    bind(directory)
    claim.note()
    try:
        yield claim
    finally:
        claim.release()


def bind(directory: Path) -> None:
    for name in ("kvtier.sock", "kvtier.sock.session"):
        os.mknod(directory / name, stat.S_IFSOCK | 0o600)


def remove_all(directory: Path) -> None:
    for path in directory.glob("kvtier.sock*"):
        path.unlink()


def test_names_come_back_in_a_directory_that_others_share(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with claimed(tmp_path) as claim:
        assert not claim.lost()
        remove_all(tmp_path)
        assert claim.lost()
        claim.renew()
        bind(tmp_path)
        claim.note()
        assert not claim.lost()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_made_anew_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    with claimed(directory) as claim:
        remove_all(directory)
        directory.rmdir()
        claim.renew()
        assert directory.stat().st_mode & 0o077 == 0


def test_what_fails_behind_the_lock_is_tried_again(tmp_path: Path) -> None:
    with claimed(tmp_path) as claim:
        remove_all(tmp_path)
        claim.renew()  # and then a socket cannot be made
        assert claim.lost()
        claim.renew()
        bind(tmp_path)
        claim.note()
        assert not claim.lost()
        with pytest.raises(HeldElsewhere):
            LockFile(tmp_path / "kvtier.sock.lock")


def test_another_daemons_names_stay_when_this_one_ends(tmp_path: Path) -> None:
    with claimed(tmp_path) as former:
        remove_all(tmp_path)
        with claimed(tmp_path) as other:
            with pytest.raises(AlreadyServing):
                former.renew()
            former.release()
            assert not other.lost()
            assert sorted(os.listdir(tmp_path)) == [
                "kvtier.sock",
                "kvtier.sock.lock",
                "kvtier.sock.session",
            ]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_is_nobodys(tmp_path: Path) -> None:
    with claimed(tmp_path):
        (tmp_path / "kvtier.sock.lock").unlink()
    assert list(tmp_path.iterdir()) == []
