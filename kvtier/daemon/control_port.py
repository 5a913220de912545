"""Where the control calls are served: the gRPC servers at the daemon's address, the present one and those
that end their calls.
"""

import asyncio
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health  # type: ignore[attr-defined]  # not in its stubs
from grpc_reflection.v1alpha import reflection

from kvtier import logs
from kvtier.address import Address
from kvtier.daemon import service
from kvtier.daemon.listen import Claim
from kvtier.errors import ConfigError
from kvtier.io.tls import Tls
from kvtier.wire.codec import MESSAGE_BYTES_MAX

STOP_S: Final = 0.5
FORMER_S: Final = 60.0
"""What a call may still take that came in by a socket which is gone."""


class ControlPort:
    """One daemon's. tls: of a TCP address; None: no TLS."""

    def __init__(self, claim: Claim, control: service.Service, tls: Tls | None) -> None:
        self._claim = claim
        self._control = control
        self._tls = None if claim.address.path is not None else tls
        self._health = grpc_health.HealthServicer()
        self._log = logs.get("daemon")
        self._servers: list[grpc.aio.Server] = []  # the last one listens, those before end their calls
        self._retired: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Serve at the address, in place of whatever has its name. ConfigError when that cannot be.

        A server removes the name that it has bound when it stops. So it binds one of its own, which is then
        renamed: the address outlives it.
        """
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ),
        )
        name = service.add_to(server, self._control)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (name, reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection(names, server)
        path, target = self._claim.address.path, self._claim.address.grpc_target
        if path is not None:
            bound_path = path.with_name(f"{path.name}.{len(self._servers)}")
            target = Address(path=bound_path).grpc_target
        self._bind(server, target)
        await server.start()
        self._servers.append(server)
        if path is not None:
            self._claim.access.open_socket(bound_path)
            self._claim.place(bound_path)
        for served in ("", name):
            await self._health.set(served, health_pb2.HealthCheckResponse.SERVING)

    def _bind(self, server: grpc.aio.Server, target: str) -> None:
        address = self._claim.address
        try:
            if self._tls is None:
                bound = server.add_insecure_port(target)
            else:
                bound = server.add_secure_port(target, _credentials(self._tls))
        except RuntimeError as error:
            why = f"address = '{address}' cannot be listened on: {error}"
            if self._tls is not None:
                why += " (or tls_cert and tls_key are not a certificate and its key)"
            raise ConfigError(why) from None
        if not bound:
            raise ConfigError(f"address = '{address}' cannot be listened on")
        if address.path is None and (self._tls is None or not self._tls.ca):
            self._log.warning("any user of this host can reach a TCP address", address=str(address))

    async def listen_anew(self) -> None:
        """The name of a Unix socket is gone: calls under way go on, the next ones come to a new server."""
        if self._claim.address.path is None:
            return
        former = self._servers[-1]
        await self.listen()
        self._retired.add(asyncio.create_task(former.stop(FORMER_S)))

    async def set_not_serving(self) -> None:
        """Say by gRPC's health service that no new work is taken."""
        await self._health.set(service.SERVICE_NAME, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self) -> None:
        """End the calls, bounded."""
        await asyncio.gather(*(server.stop(STOP_S) for server in self._servers))


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.cert)],
        root_certificates=tls.ca or None,
        require_client_auth=bool(tls.ca),
    )
