import pytest

from kvtier.config import load
from kvtier.daemon import limits
from kvtier.errors import ConfigError
from kvtier.io import machine


@pytest.fixture
def world(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "a/b").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n")
    return proc, cgroup


def test_the_machine_without_cgroups(world):
    proc, cgroup = world
    assert machine.memory_limit_bytes(proc, cgroup) == (1000 << 10, "the machine's memory")
    assert machine.memory_available_bytes(proc) == 400 << 10


def test_the_tightest_cgroup_above_us_counts(world):
    proc, cgroup = world
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (cgroup / "a/b/memory.max").write_text("max\n")
    (cgroup / "a/memory.max").write_text("512000\n")
    limit_bytes, what = machine.memory_limit_bytes(proc, cgroup)
    assert limit_bytes == 512000
    assert str(cgroup / "a/memory.max") in what


def test_the_older_cgroups(world):
    proc, cgroup = world
    (proc / "self/cgroup").write_text("3:cpu:/x\n2:memory,hugetlb:/a\n")
    (cgroup / "memory/a").mkdir(parents=True)
    (cgroup / "memory/a/memory.limit_in_bytes").write_text("4096\n")
    assert machine.memory_limit_bytes(proc, cgroup)[0] == 4096


def test_the_filesystem_of_a_path(world, tmp_path):
    proc, _ = world
    mounts = ["/ rw - ext4 /dev/a rw", "/dev rw - devtmpfs d rw", "/dev/shm rw shared:1 - tmpfs tmpfs rw"]
    (proc / "self/mountinfo").write_text("".join(f"1 0 0:1 / {line}\n" for line in mounts))
    for path, kind in (
        ("/dev/shm/kvtier", "tmpfs"),
        ("/dev/shmx", "devtmpfs"),
        ("/var", "ext4"),
        ("/", "ext4"),
    ):
        assert machine.filesystem(tmp_path.__class__(path), proc) == kind
    assert machine.filesystem(tmp_path, proc / "nothing") == ""


def test_an_arena_that_cannot_fit_names_field_value_and_limit(monkeypatch):
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: (8 << 30, "the machine's memory"))
    with pytest.raises(ConfigError, match=r"dram = 9 GiB .* is larger than the machine's memory, 8 GiB"):
        limits.check_machine(load({"dram": "9GiB"}, env={}))
    with pytest.raises(ConfigError, match="index"):  # the index does not fit beside it
        limits.check_machine(load({"dram": "8GiB"}, env={}))
    limits.check_machine(load({"dram": "7GiB"}, env={}))


def test_an_arena_larger_than_the_mount(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "free_bytes", lambda directory: 5 << 20)
    with pytest.raises(ConfigError, match=f"the free space of {tmp_path}, 5 MiB"):
        limits.check_free(load({"dram": "8MiB", "shm_dir": str(tmp_path)}, env={}))


def test_a_mount_that_is_no_shared_memory_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "filesystem", lambda path: "ext4")
    warning = limits.check_free(load({"dram": "8MiB", "shm_dir": str(tmp_path)}, env={}))
    assert warning is not None
    assert "ext4" in warning
