"""What people see."""

import json
import os
import subprocess
import sys
from contextlib import closing

import pytest
from harness import keys_of, line_of, store

from kvtier.cli.stats import show_age

KVTIER = (sys.executable, "-m", "kvtier.cli.main")


def run(*arguments, columns=160):
    environment = os.environ | {"COLUMNS": str(columns), "KVTIER_ADDRESS": "unix:/nonexistent/kvtier.sock"}
    return subprocess.run([*KVTIER, *arguments], capture_output=True, text=True, timeout=30, env=environment)


@pytest.fixture
def filled(daemon):
    """A daemon with one namespace of four chunks, two of them leased, and the attached client."""
    with daemon.client(name="vllm/worker") as client:
        ns = client.namespace({"model": "tiny", "dtype": "float32"}, chunk_bytes=1 << 20)
        store(ns, keys_of("a", 4))
        with ns.lease(keys_of("a", 2)):
            yield daemon


def test_stats_as_a_table(filled):
    done = run("stats", "--address", filled.address)
    assert done.returncode == 0, done.stderr
    for words in (
        f"0.1.0  {filled.address}  up ",
        "4 MiB of 64 MiB (6%), 4 chunks, 2 pinned",
        "hit rate 100.0% of 2 chunks, 4 stored (4 MiB)",
        "tiny float32",
        "vllm/worker",
    ):
        assert words in done.stdout, done.stdout


def test_stats_as_json(filled):
    done = run("stats", "--json", "--address", filled.address)
    record = json.loads(done.stdout)
    assert record["counters"]["pinned_slots"] == 2
    assert record["namespaces"][0]["fingerprint"] == {"model": "tiny", "dtype": "float32"}
    assert record["sessions"][0]["client"] == "vllm/worker"


def test_stats_of_an_empty_daemon(daemon):
    done = run("stats", "--address", daemon.address)
    assert "no namespaces" in done.stdout
    assert "no sessions" in done.stdout


def test_watch_shows_a_daemon_that_comes_and_goes(filled):
    command = [*KVTIER, "stats", "--watch", "--interval", "0.1", "--address", filled.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "kvtier 0.1.0" in line_of(process, "the first page")
        finally:
            process.terminate()
            process.communicate(timeout=20)


def test_ls(filled):
    table = run("ls", "--address", filled.address)
    assert "tiny float32" in table.stdout
    rows = run("ls", "--json", "--address", filled.address).stdout.splitlines()
    id = json.loads(rows[0])["id"]
    assert len(id) == 32
    chunks = run("ls", id[:6], "--json", "--limit", "3", "--address", filled.address).stdout.splitlines()
    assert len(chunks) == 3
    keys = {key.hex() for key in keys_of("a", 4)}
    assert {json.loads(row)["key"] for row in chunks} <= keys
    assert "committed" in run("ls", id, "--address", filled.address).stdout


def test_ls_of_what_is_not_there(filled):
    done = run("ls", "ffffffffffff", "--address", filled.address)
    assert done.returncode == 1
    assert done.stderr == "kvtier: no namespace's id starts with 'ffffffffffff'; kvtier ls shows them\n"
    with closing(filled.control()) as control:
        for i in range(20):
            control.open_namespace(json.dumps({"i": i}, separators=(",", ":")), 4096)
    assert "give more of it" in run("ls", "", "--address", filled.address).stderr


def test_admin(filled):
    id = json.loads(run("ls", "--json", "--address", filled.address).stdout)["id"]
    done = run("admin", "evict", id[:8], "--bytes", "1MiB", "--address", filled.address)
    assert done.stdout == f"evicted 1 MiB of {id}\n", done.stderr
    assert run("admin", "evict", id, "--address", filled.address).stdout == f"evicted 1 MiB of {id}\n"
    assert run("admin", "clear", id, "--address", filled.address).stdout == f"cleared 2 chunks of {id}\n"
    drained = run("admin", "drain", "--deadline", "50ms", "--address", filled.address)
    assert (drained.returncode, drained.stdout) == (1, "leases left: 1\n")
    wrong = run("admin", "drain", "--deadline", "soon", "--address", filled.address)
    assert (wrong.returncode, wrong.stderr.count("deadline = 'soon' is not a duration")) == (2, 1)


def test_what_a_peer_calls_itself_cannot_write_to_the_terminal(daemon):
    with daemon.client(name="[/red]\x1b[2J\n") as client:
        client.namespace({"model": "[bold]\x07"}, chunk_bytes=4096)
        done = run("stats", "--address", daemon.address)
        assert done.returncode == 0, done.stderr
        assert "[/red]?[2J?" in done.stdout
        assert "[bold]?" in done.stdout
        assert "[bold]?" in run("ls", "--address", daemon.address).stdout


@pytest.mark.parametrize("command", [("stats",), ("stats", "--json"), ("ls",)])
def test_no_daemon_is_one_line(command):
    done = run(*command)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "kvtier: no daemon answers at unix:/nonexistent/kvtier.sock (No such file or directory)\n"
    )


def test_wrong_usage():
    assert run("nonsense").returncode == 2
    assert run("stats", "--json", "--watch").returncode == 2
    nowhere = run("stats", "--address", "nowhere")
    assert nowhere.returncode == 2
    assert nowhere.stderr == "kvtier: address is 'nowhere'; unix:/path or host:port is wanted\n"


def test_version_and_help_need_no_native_code_and_no_grpc():
    code = (
        "import sys; sys.argv = ['kvtier', *sys.argv[1:]]\n"
        "from kvtier.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "loaded = {'grpc', 'numpy', 'tpu_sync_native', 'pydantic'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    for flag, words in (("--version", "kvtier 0.1.0"), ("--help", "serve")):
        done = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout


def test_every_field_is_a_flag():
    from kvtier.config import Config

    text = run("serve", "--help").stdout
    for name in Config.model_fields:
        assert f"--{name.replace('_', '-')} " in text
        assert f"KVTIER_{name.upper()}" in text


def test_ages():
    assert [show_age(s) for s in (0, 119, 120, 7199, 7200, 200_000)] == [
        *("0 s", "119 s", "2 min", "120 min", "2 h", "2 d"),
    ]
