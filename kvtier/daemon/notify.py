"""Readiness for systemd (Type=notify): one datagram to the socket it names."""

import os
import socket
from collections.abc import Mapping

from kvtier import logs


def notify(state: str, env: Mapping[str, str] | None = None) -> None:
    """Send e.g. `READY=1`; nothing happens without NOTIFY_SOCKET."""
    name = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if not name:
        return
    target = "\0" + name[1:] if name.startswith("@") else name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), target)
    except OSError as error:
        logs.get("notify").warning("the service manager was not told", state=state, error=error.strerror)
