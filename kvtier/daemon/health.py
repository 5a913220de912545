"""HTTP for probes and scrapes: /metrics, /healthz (the process answers), /readyz (it grants new leases).

/readyz answers 200 or 503 and says why; an arena that could be populated in part only is ready, and says so.
One thread, one request at a time, each bounded: what comes here is a scraper and a probe.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvtier.errors import ConfigError

REQUEST_S_MAX: Final = 2.0


class Health:
    """The HTTP server of one daemon. `readiness` returns (ready, a word on it); called on this thread."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, readiness: Callable[[], tuple[bool, str]]
    ) -> None:
        """Binds at once (port 0: any free one); ConfigError when that fails."""

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S_MAX
            server_version = "kvtier"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif path == "/healthz":
                    self._answer(HTTPStatus.OK, b"ok\n")
                elif path == "/readyz":
                    ready, word = readiness()
                    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
                    self._answer(status, f"{word}\n".encode())
                else:
                    self._answer(HTTPStatus.NOT_FOUND, b"known are /metrics, /healthz and /readyz\n")

            def _answer(
                self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8"
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not logged."""

        try:
            self._server = _Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"http = '{host}:{port}' cannot be listened on: {error}") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="kvtier-http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; waits for a request in progress."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away in the middle of an answer is no event."""
