"""The gRPC surface, called with junk: every answer is a clean status, and the daemon goes on.

KVTIER_FUZZ_SECONDS calls for so long.
"""

import os
import random
import time
from contextlib import closing
from typing import Any

import grpc
import kvtier.wire._gen.kvtier_pb2 as pb
from harness import Daemon

CALLS = 400
# Streams that stay open, and what ends the daemon's service on purpose.
LEFT_OUT = {"Session", "Drain"}
UNCLEAN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}
NUMBERS = [0, 1, 2, 16, 64, 4096, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def junk(field: Any, draw: random.Random, depth: int) -> Any:
    """A value of the field's type; enums and numbers within their width."""
    if field.type == field.TYPE_MESSAGE:
        return message(field.message_type._concrete_class, draw, depth + 1)
    if field.type == field.TYPE_BYTES:
        return draw.randbytes(draw.choice([0, 1, 15, 16, 32, 64, 65, 5000]))
    if field.type == field.TYPE_STRING:
        return draw.choice(
            ["", "{}", '{"model": "m"}', "\0", "\u2028" * 9, "9" * 5000, '{"a": 1e999}', "[" * 900]
        )
    if field.type == field.TYPE_BOOL:
        return draw.random() < 0.5
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return draw.choice([0.0, -1.0, 0.01, float("nan"), float("-inf"), 1e300])
    wide = field.type in (field.TYPE_UINT64, field.TYPE_INT64, field.TYPE_FIXED64)
    signed = field.type in (field.TYPE_INT64, field.TYPE_INT32, field.TYPE_ENUM)
    return draw.choice(NUMBERS) % 2 ** ((64 if wide else 32) - signed)


def message(kind: Any, draw: random.Random, depth: int = 0) -> Any:
    """One with some of its fields set."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth > 2 or draw.random() < 0.3:
            continue
        values = [junk(field, draw, depth) for _ in range(draw.randrange(4))]
        target = getattr(made, field.name)
        if hasattr(target, "extend") and not isinstance(target, (str, bytes)):
            target.extend(values)
        elif values and field.type == field.TYPE_MESSAGE:
            if not hasattr(target, "keys"):
                target.CopyFrom(values[0])
        elif values:
            setattr(made, field.name, values[0])
    return made


def test_junk_has_a_clean_answer(daemon: Daemon, seed: int) -> None:
    seconds = os.environ.get("KVTIER_FUZZ_SECONDS")
    draw = random.Random(seed)
    methods = [m for m in pb.DESCRIPTOR.services_by_name["Control"].methods if m.name not in LEFT_OUT]
    until_s = time.monotonic() + float(seconds or 60)
    answers: dict[str, int] = {}
    with closing(grpc.insecure_channel(daemon.address)) as channel:
        done = 0
        while time.monotonic() < until_s and (seconds or done < CALLS):
            done += 1
            method = draw.choice(methods)
            raw = draw.random() < 0.1
            request = message(method.input_type._concrete_class, draw).SerializeToString()
            if raw:
                request = draw.randbytes(draw.randrange(64))
            call = channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
            try:
                call(request, timeout=20.0)
                code, details = grpc.StatusCode.OK, ""
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            # Bytes that are no message get the library's own answer, before any code of ours.
            assert raw or code not in UNCLEAN, f"{method.name}: {code.name}: {details}"
            answers[code.name] = answers.get(code.name, 0) + 1
    assert answers.get("OK", 0) > 0
    assert answers.get("INVALID_ARGUMENT", 0) > 0
    assert daemon.alive
    with closing(daemon.control()) as control:
        control.daemon_stats()
