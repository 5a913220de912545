"""The one place where errors become gRPC codes.

The class name goes with them as trailing metadata, so that the client raises the very same class.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc

from kvtier import errors, logs
from kvtier.wire.codec import ERROR_KIND_METADATA

_CODES: Final[dict[type[errors.KVTierError], grpc.StatusCode]] = {
    errors.FingerprintMismatch: grpc.StatusCode.ALREADY_EXISTS,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownNamespace: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSession: grpc.StatusCode.NOT_FOUND,
    errors.UnknownLease: grpc.StatusCode.NOT_FOUND,
    errors.ProtocolMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Draining: grpc.StatusCode.UNAVAILABLE,
    errors.LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StorageUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.PermissionRefused: grpc.StatusCode.PERMISSION_DENIED,
}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")


def code_of(error: errors.KVTierError) -> grpc.StatusCode:
    """That of the nearest class in the table."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, ValueError) and not isinstance(error, errors.KVTierError):
        error = errors.InvalidArgument(str(error))  # how the native store refuses an argument
    if not isinstance(error, errors.KVTierError):
        logs.get("service").error("internal error", exc_info=error)
        error = errors.InternalError("internal error; the daemon's log has the details")
    await context.abort(code_of(error), str(error), ((ERROR_KIND_METADATA, type(error).__name__),))
    raise AssertionError("abort raises")


def unary(method: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Awaitable[R]]:
    """Errors of a call with one answer."""

    @functools.wraps(method)
    async def guarded(self: S, request: Q, context: Context) -> R:
        try:
            return await method(self, request, context)
        except Exception as error:
            await _abort(context, error)

    return guarded


def stream(
    method: Callable[[S, Q, Context], AsyncIterator[R]],
) -> Callable[[S, Q, Context], AsyncIterator[R]]:
    """Errors of a call with a stream of answers."""

    @functools.wraps(method)
    async def guarded(self: S, request: Q, context: Context) -> AsyncIterator[R]:
        try:
            async for answer in method(self, request, context):
                yield answer
        except Exception as error:
            await _abort(context, error)

    return guarded
