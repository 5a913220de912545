"""Probes and scrapes."""

import socket
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from harness import keys_of, store
from prometheus_client.parser import text_string_to_metric_families

from kvtier import metrics
from kvtier.cli.stats import stats


@pytest.fixture
def served(start_daemon):
    """A daemon with HTTP on, and its host:port."""
    daemon = start_daemon("8MiB", "--http", "127.0.0.1:0")
    return daemon, http_of(daemon)


def http_of(daemon):
    """Where it serves HTTP, as its ready line says."""
    return "127.0.0.1:" + daemon.log().split("http=127.0.0.1:")[1].split()[0]


def get(host_port, path):
    try:
        with urllib.request.urlopen(f"http://{host_port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_parse_and_are_the_listed_ones(served):
    daemon, host_port = served
    with daemon.client() as client:
        store(client.namespace({"model": "m"}, chunk_bytes=65536), keys_of("a", 3))
    status, text = get(host_port, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    listed = metrics.STORE + metrics.DAEMON  # this one has no storage
    assert set(families) == {metrics.PREFIX + spec.name for spec in listed}
    assert families["kvtier_stores"].type == "counter"
    assert families["kvtier_stores"].samples[0].name == "kvtier_stores_total"
    assert families["kvtier_stores"].samples[0].value == 3
    assert families["kvtier_chunk_bytes"].samples[0].value == 3 * 65536


def test_the_list_is_what_is_counted(served):
    daemon, _ = served
    assert set(daemon.counters()) == {spec.name for spec in metrics.STORE + metrics.DAEMON}


def test_storage_is_counted_where_there_is_one(start_daemon, tmp_path):
    daemon = start_daemon("64MiB", "--storage", str(tmp_path))
    assert set(daemon.counters()) == {spec.name for spec in metrics.ALL}


def test_probes(served):
    daemon, host_port = served
    assert get(host_port, "/healthz") == (200, "ok\n")
    assert get(host_port, "/readyz?verbose") == (200, "ok\n")
    assert get(host_port, "/secrets")[0] == 404
    with daemon.control() as control:
        control.drain(0)
    assert get(host_port, "/readyz") == (503, "draining\n")
    assert get(host_port, "/healthz")[0] == 200


# A daemon whose memory was taken by others between the check at its start and the population.
SHORT_OF_MEMORY = """
import sys
import kvtier.daemon.server as server
there = int(sys.argv.pop())
class Store(server.Store):
    def populated_bytes(self): return there
    def population_error(self): return "No space left on device"
server.Store = Store
from kvtier.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("there", "status", "word"), [(4 << 20, 200, "ok, but not whole"), (0, 503, "no memory")]
)
def test_an_arena_that_is_not_whole_says_so_everywhere(start_daemon, there, status, word):
    daemon = start_daemon("8MiB", "--http", "127.0.0.1:0", str(there), code=SHORT_OF_MEMORY)
    host_port = http_of(daemon)
    assert get(host_port, "/readyz") == (status, f"{word}: No space left on device\n")
    assert "\nkvtier_population_failed 1.0\n" in get(host_port, "/metrics")[1]
    assert daemon.counters()["population_failed"] == 1
    assert "the arena could not be populated" in daemon.log()
    seen = CliRunner().invoke(stats, ["--address", daemon.address], catch_exceptions=False)
    assert "could not be had" in seen.output


def test_a_silent_peer_does_not_block_probes_for_long(served):
    _, host_port = served
    host, port = host_port.split(":")
    with socket.create_connection((host, int(port))):
        assert get(host_port, "/healthz") == (200, "ok\n")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(b"\xff\x00 garbage\r\n\r\n")
    assert get(host_port, "/healthz") == (200, "ok\n")


def test_off_by_default(daemon):
    assert "http=" not in daemon.log()
