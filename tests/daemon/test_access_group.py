"""`access_group`: engines of another user in one group may attach; everybody else still gets nothing."""

import os
import stat

import pytest
from harness import child, keys_of, load, running_daemon, store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

GID = 54321
CHUNK = 65536
PRINT = {"model": "access-group"}

ENGINE = """
import os, sys
from harness import keys_of, load, store
from kvtier import Client, KVTierError
address, meta, uid, gid, extra = sys.argv[1:]
os.setgroups([int(gid_) for gid_ in extra.split(",") if gid_])
os.setgid(int(gid)); os.setuid(int(uid))
try:
    client = Client.connect(address, deadline_ms=5000, timeout_s=10.0)
except KVTierError as error:
    print("refused", error)
    sys.exit()
ns = client.namespace({"model": "access-group"}, 65536)
print(load(ns, keys_of("root", 3)), store(ns, keys_of("engine", 2)))
try:
    os.open(meta, os.O_RDWR)
except PermissionError:
    print("metadata closed")
client.close()
"""


def said(daemon, uid, gid, extra=""):
    with child(ENGINE, daemon.address, daemon.shm_dir / "arena.meta", uid, gid, extra) as process:
        return process.communicate(timeout=60)[0]


def test_members_attach_and_others_do_not():
    with running_daemon("64MiB", "--access-group", str(GID)) as daemon:
        os.chmod(daemon.directory, 0o755)  # the operator's own directory: the daemon leaves it as it is
        for path in daemon.directory.iterdir():
            if stat.S_ISSOCK(path.stat().st_mode):
                assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, GID)
        assert {stat.S_IMODE(path.stat().st_mode) for path in daemon.shm_dir.iterdir()} == {0o600}
        with daemon.client() as client:
            ns = client.namespace(PRINT, CHUNK)
            store(ns, keys_of("root", 3))
            assert said(daemon, 65534, GID) == "3 2\nmetadata closed\n"
            assert load(ns, keys_of("engine", 2)) == 2
            assert said(daemon, 65533, 65533, f"7,{GID}") == "3 0\nmetadata closed\n"
            assert said(daemon, 65534, 65534).startswith("refused")
            for path in daemon.directory.iterdir():  # even where the modes would let him in
                if stat.S_ISSOCK(path.stat().st_mode):
                    path.chmod(0o666)
            assert f"uid 65534 may not attach; uid 0 may, and group {GID}" in said(daemon, 65534, 65534)
