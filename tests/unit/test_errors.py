import grpc
import pytest

from kvtier import errors
from kvtier.daemon.faults import code_of


def test_a_kind_makes_the_round_trip():
    error = errors.by_kind("NamespaceMismatch", "chunk_bytes is 1")
    assert type(error) is errors.NamespaceMismatch
    assert isinstance(error, ValueError)
    assert str(error) == "chunk_bytes is 1"


def test_an_unknown_kind_is_still_ours():
    error = errors.by_kind("FromTheFuture", "text")
    assert type(error) is errors.InternalError
    assert str(error) == "FromTheFuture: text"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.NamespaceMismatch("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.FingerprintMismatch("x"), grpc.StatusCode.ALREADY_EXISTS),
        (errors.LeaseExpired("x"), grpc.StatusCode.NOT_FOUND),
        (errors.ProtocolMismatch("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.LimitReached("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.StorageUnavailable("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.Draining("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.InternalError("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_codes(error, code):
    assert code_of(error) is code
