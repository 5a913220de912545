from dataclasses import replace

from kvtier.types import AttachGrant, ChunkInfo, DaemonStats, NamespaceInfo, SessionInfo
from kvtier.wire import codec

NAMESPACE = NamespaceInfo(
    id=bytes(range(16)), index=3, chunk_bytes=1 << 40, epoch=2,
    fingerprint_json='{"ä":1}', boot_id=(1 << 64) - 1,
    chunks=1, bytes=2, hits=3, misses=4, stores=5, evictions=6,
)  # fmt: skip
SESSION = SessionInfo(7, "vllm/worker", 4321, "engine", 1.5, 1, 2, 3, 4)
CHUNK = ChunkInfo(key=b"k" * 64, slot=5, generation=(1 << 32) - 1, pins=2, offset=1 << 45, state="committed")


def test_every_value_makes_the_round_trip():
    grant = AttachGrant(1, (1 << 64) - 1, 9, b"t" * 32, "/run/kvtier.sock.session")
    assert codec.attach_from_proto(codec.attach_to_proto(grant)) == grant
    assert codec.namespace_from_proto(codec.namespace_to_proto(NAMESPACE)) == NAMESPACE
    assert codec.session_from_proto(codec.session_to_proto(SESSION)) == SESSION
    assert codec.chunk_from_proto(codec.chunk_to_proto(CHUNK)) == CHUNK


def test_stats_make_the_round_trip_over_bytes():
    stats = DaemonStats(
        5, "0.1.0", 2.5, {"hits": 1, "misses": 1 << 63}, (NAMESPACE, replace(NAMESPACE, index=4)), (SESSION,)
    )
    message = codec.stats_to_proto(stats)
    assert codec.stats_from_proto(type(message).FromString(message.SerializeToString())) == stats
