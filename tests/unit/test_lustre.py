import os
import stat
import sys

import pytest

from kvtier.io import lustre, machine


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A root that says it is on Lustre, and an `lfs` that writes down how it was called."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    root.mkdir()
    lfs = tools / "lfs"
    lfs.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "print(os.environ.get('LFS_COUNT', '1') if sys.argv[1] == 'getstripe' else '')\n"
        "if os.environ.get('LFS_FAILS'): sys.exit('no such pool')\n"
    )
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(machine, "filesystem", lambda path: "lustre")
    return root


def calls(root):
    path = root.parent / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_new_root_is_striped_once(root):
    assert "is striped" in lustre.stripe(root)
    assert calls(root) == [f"setstripe -E 256M -c 1 -S 4M -E -1 -c 4 -S 4M {root}/v1"]
    assert stat.S_IMODE((root / "v1").stat().st_mode) == 0o700


def test_the_group_of_a_shared_root_may_write(root):
    root.chmod(0o2770)
    lustre.stripe(root)
    assert stat.S_IMODE((root / "v1").stat().st_mode) == 0o2770


def test_a_layout_that_an_operator_chose_stays(root, monkeypatch):
    (root / "v1").mkdir()
    monkeypatch.setenv("LFS_COUNT", "8")
    assert "stays" in lustre.stripe(root)
    assert [call.split()[0] for call in calls(root)] == ["getstripe"]


def test_failure_is_told_and_nothing_else(root, monkeypatch):
    monkeypatch.setenv("LFS_FAILS", "1")
    assert "no such pool" in lustre.stripe(root)


def test_without_lfs(root, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "lfs is not installed" in lustre.stripe(root)
    assert not (root / "v1").exists()


def test_a_planted_link_is_not_followed(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", root / "v1")
    assert "symbolic link" in lustre.stripe(root)
    assert calls(root) == []


def test_other_file_systems_are_left_alone(root, monkeypatch):
    monkeypatch.setattr(machine, "filesystem", lambda path: "ext4")
    assert lustre.stripe(root) == ""
    assert not (root / "v1").exists()
