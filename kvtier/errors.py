"""Every error kvtier raises on purpose. A miss is not here: outcomes are values, only surprises are errors.

Each message names the field or key, its value and what is allowed. The class name travels over gRPC as
trailing metadata, so that a client raises the very class the daemon meant (`by_kind`).
"""


class KVTierError(Exception):
    """Root of all errors of this package."""


class InvalidArgument(KVTierError, ValueError):
    """An argument is outside what is allowed."""


class ConfigError(InvalidArgument):
    """A configuration field has a value the daemon cannot start with."""


class NamespaceMismatch(InvalidArgument):
    """The namespace is known with another chunk size or another fingerprint."""


class FingerprintMismatch(NamespaceMismatch):
    """Two fingerprints share one namespace id: refused, so that nobody reads the other's bytes."""


class UnknownNamespace(KVTierError):
    """No namespace of that id in this boot of the daemon."""


class UnknownSession(KVTierError):
    """No such session: never opened, or its end was seen."""


class UnknownLease(KVTierError):
    """The lease was never granted, was given back, or belongs to another session."""


class LeaseExpired(UnknownLease):
    """The lease was not given back within the daemon's lease timeout and was taken back."""


class ChunkNotReady(KVTierError):
    """The bytes of a leased chunk are not in DRAM: still on their way from storage, or lost on it."""


class DaemonUnavailable(KVTierError):
    """No daemon answers at the address, or it did not answer within the deadline."""


class ProtocolMismatch(KVTierError):
    """Client and daemon speak different versions of the shared memory protocol."""


class Draining(KVTierError):
    """The daemon is stopping and grants nothing new."""


class LimitReached(KVTierError):
    """A fixed limit (sessions, namespaces, pending attaches) is used up."""


class StorageUnavailable(KVTierError):
    """What was asked for needs the storage directory, which does not answer or refuses."""


class AlreadyServing(KVTierError):
    """Another daemon holds the arena or the address."""


class PermissionRefused(KVTierError):
    """The peer is not who may do this."""


class InternalError(KVTierError):
    """A fault of the daemon itself; its log has the details."""


def by_kind(kind: str, message: str) -> KVTierError:
    """The error a daemon named `kind`; InternalError with both words when this version does not know it."""
    found = _KINDS.get(kind)
    return found(message) if found else InternalError(f"{kind}: {message}")


def _subclasses(root: type[KVTierError]) -> dict[str, type[KVTierError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _subclasses(child)
    return found


_KINDS = _subclasses(KVTierError)
