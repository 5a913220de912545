"""The control plane's rules, over gRPC, without shared memory."""

from contextlib import closing

import grpc
import kvtier.wire._gen.kvtier_pb2 as pb
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness import key_of, keys_of, store, until

from kvtier.daemon.service import CHUNKS_LISTED_MAX, KEYS_MAX, SERVICE_NAME
from kvtier.errors import (
    Draining,
    InvalidArgument,
    NamespaceMismatch,
    UnknownLease,
    UnknownNamespace,
    UnknownSession,
)
from kvtier.format.fingerprint import canonical_json, namespace_id

PRINT = {"model": "m"}
TEXT = canonical_json(PRINT)
ID = namespace_id(TEXT)
CHUNK = 65536


@pytest.fixture
def control(daemon):
    with closing(daemon.control()) as channel:
        yield channel


@pytest.fixture
def tool(control):
    control.open_namespace(TEXT, CHUNK)
    with closing(control.open_session("a tool")) as session:
        yield session


def test_a_namespace_is_the_same_for_the_same_fingerprint(control):
    first = control.open_namespace(TEXT, CHUNK)
    assert (first.id, first.chunk_bytes, first.fingerprint_json) == (ID, CHUNK, TEXT)
    assert control.open_namespace(TEXT, CHUNK) == first
    other = control.open_namespace(canonical_json({"model": "n"}), CHUNK)
    assert (other.id, other.index) != (first.id, first.index)
    assert [item.id for item in control.list_namespaces()] == [first.id, other.id]
    assert first.boot_id == control.daemon_stats().boot_id


def test_another_chunk_size_is_refused(control):
    control.open_namespace(TEXT, CHUNK)
    with pytest.raises(NamespaceMismatch, match=f"chunk_bytes is {CHUNK * 2}; .* known with {CHUNK}"):
        control.open_namespace(TEXT, CHUNK * 2)
    assert control.open_namespace(TEXT, CHUNK).chunk_bytes == CHUNK


@pytest.mark.parametrize("chunk_bytes", [0, 1 << 40])
def test_chunk_sizes_that_cannot_be(control, chunk_bytes):
    with pytest.raises(InvalidArgument, match=str(chunk_bytes)):
        control.open_namespace(TEXT, chunk_bytes)
    assert control.list_namespaces() == []


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1}', "[]", '{"a":NaN}'])
def test_fingerprints_that_are_not_canonical(control, text):
    with pytest.raises(InvalidArgument, match="fingerprint"):
        control.open_namespace(text, CHUNK)


def stored(daemon, keys):
    """By an engine, which has gone since."""
    with daemon.client() as client:
        assert store(client.namespace(PRINT, CHUNK), keys) == len(keys)


def test_the_hot_calls(daemon, control, tool):
    keys = keys_of("a", 4)
    assert tool.lookup(ID, keys) == 0
    stored(daemon, keys[:2])
    assert tool.lookup(ID, keys) == 2
    read = tool.lease(ID, keys)
    assert len({slot.offset for slot in read.slots}) == 2
    tool.touch(ID, keys)
    info = next(item for item in control.list_sessions() if item.session == tool.session)
    assert (info.client, info.read_leases, info.pinned_slots, info.reserved_slots) == ("a tool", 1, 2, 0)
    tool.release(read.lease)
    assert control.daemon_stats().counters["hits"] == 2
    assert control.evict(ID, 1) == CHUNK
    assert control.clear_namespace(ID) == 1
    assert tool.lookup(ID, keys) == 0
    assert control.open_namespace(TEXT, CHUNK).epoch == 2


def test_who_has_no_shared_memory_makes_no_chunk(daemon, tool):
    """Not by a lease of an engine's either: it holds what lay in the slot before."""
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Control"].methods}
    assert not calls & {"Reserve", "Commit", "Abort"}
    with daemon.client() as client, client.namespace(PRINT, CHUNK).reserve(keys_of("a", 2)) as write:
        assert len(write.keys) == 2
        for lease in range(1, 9):
            with pytest.raises(UnknownLease):
                tool.release(lease)
        assert tool.lookup(ID, keys_of("a", 2)) == 0
        assert tool.lease(ID, keys_of("a", 2)).lease == 0


def test_leases_that_are_not(daemon, tool):
    stored(daemon, keys_of("a", 1))
    read = tool.lease(ID, keys_of("a", 1))
    tool.release(read.lease)
    for lease in (read.lease, 0, 1 << 60):
        with pytest.raises(UnknownLease, match="lease"):
            tool.release(lease)
    assert tool.lease(ID, [key_of("nobody stored this")]).lease == 0


def test_a_lease_of_another_session(daemon, control, tool):
    stored(daemon, keys_of("a", 1))
    read = tool.lease(ID, keys_of("a", 1))
    with closing(control.open_session("another")) as other, pytest.raises(UnknownLease):
        other.release(read.lease)
    tool.release(read.lease)


@pytest.mark.parametrize("length", [0, 15, 65, 4096])
def test_keys_of_a_wrong_length(tool, length):
    for call in (tool.lookup, tool.lease, tool.prefetch, tool.touch):
        with pytest.raises(InvalidArgument, match=rf"keys\[1\] has {length} bytes; 16 to 64"):
            call(ID, [bytes(16), bytes(length)])


def test_keys_at_both_ends_of_the_allowed_length(daemon, tool):
    keys = [b"s" * 16, b"l" * 64, b"l" * 63 + b"m"]
    stored(daemon, keys)
    assert tool.lookup(ID, keys) == 3


def test_batches_are_bounded(control, tool):
    with pytest.raises(InvalidArgument, match=f"{KEYS_MAX + 1} keys; at most {KEYS_MAX}"):
        tool.lookup(ID, [bytes(16)] * (KEYS_MAX + 1))
    with pytest.raises(InvalidArgument, match="at most"):
        control.list_chunks(ID, limit=CHUNKS_LISTED_MAX + 1)


def test_namespaces_nobody_opened(control, tool):
    for call in (lambda: tool.lookup(bytes(16), [bytes(16)]), lambda: control.evict(bytes(16), 1)):
        with pytest.raises(UnknownNamespace, match="00000000"):
            call()
    with pytest.raises(InvalidArgument, match="has 3 bytes; 16"):
        control.list_chunks(b"abc")


def test_a_session_that_ended_gives_everything_back(daemon, control, tool):
    stored(daemon, keys_of("a", 3))
    tool.lease(ID, keys_of("a", 3))
    assert control.daemon_stats().counters["pinned_slots"] == 3
    tool.close()
    until(lambda: not control.list_sessions(), "the end of the stream was seen")
    assert control.daemon_stats().counters["pinned_slots"] == 0
    with pytest.raises(UnknownSession, match="not an open session"):
        tool.lease(ID, keys_of("a", 3))


def test_an_engines_session_is_not_a_tools(daemon, tool):
    with daemon.client() as client:
        client.stats()
        number = max(item.session for item in daemon.stats().sessions)
        assert number != tool.session
        tool.session = number
        with pytest.raises(UnknownSession):
            tool.lease(ID, keys_of("a", 1))


def test_chunks_in_pages(daemon, control):
    keys = keys_of("a", 5)
    stored(daemon, keys)
    with daemon.client() as client, client.namespace(PRINT, CHUNK).reserve(keys_of("b", 1)):
        first = control.list_chunks(ID, limit=4)
        rest = control.list_chunks(ID, after_slot=first[-1].slot)
    chunks = first + rest
    assert len(first) == 4
    assert {chunk.key for chunk in chunks if chunk.state == "committed"} == set(keys)
    assert [chunk.state for chunk in chunks].count("reserved") == len(chunks) - 5
    assert all(chunk.offset % 4096 == 0 and chunk.generation > 0 for chunk in chunks)


def test_drain_waits_and_reports(daemon, control, tool):
    stored(daemon, keys_of("a", 1))
    tool.lease(ID, keys_of("a", 1))
    assert control.drain(0.05) == 1
    assert tool.lease(ID, keys_of("a", 1)).lease == 0  # an answer, not an error
    with pytest.raises(Draining):
        control.open_session("late")
    with pytest.raises(InvalidArgument, match="deadline_s"):
        control.drain(-1)
    tool.close()
    assert control.drain(5) == 0


def test_health_follows_the_drain(daemon, control):
    with grpc.insecure_channel(daemon.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def status(name):
            return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status

        assert {status(name) for name in ("", SERVICE_NAME)} == {health_pb2.HealthCheckResponse.SERVING}
        control.drain(0)
        assert status(SERVICE_NAME) == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reflection_names_the_services(daemon):
    with grpc.insecure_channel(daemon.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reply = next(stub.ServerReflectionInfo(iter([request]), timeout=10))
    names = {item.name for item in reply.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


def test_the_daemon_lives_on_few_threads(daemon, tool):
    for i in range(50):
        tool.lookup(ID, keys_of(i, 10))
    assert len(list(daemon_tasks(daemon))) <= 24


def daemon_tasks(daemon):
    import os

    return os.listdir(f"/proc/{daemon.process.pid}/task")


def test_the_first_reserve_finds_room_however_long_the_arena_takes(start_daemon):
    daemon = start_daemon("1GiB", "--slab", "1GiB")
    stored(daemon, keys_of("early", 4))
