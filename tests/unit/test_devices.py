"""Which backend a device names."""

import pytest

from kvtier.client.devices import CudaDevice, HostDevice, PjrtDevice, native_backend
from kvtier.errors import InvalidArgument


def test_the_host_is_plain_memory() -> None:
    can = native_backend(HostDevice()).capabilities()
    assert can["name"] == "host"
    assert can["plain_memory"]
    assert not can["buffers"]
    assert not can["replaces_buffers"]


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="CudaDevice"):
        native_backend(CudaDevice(ordinal=4711))
    with pytest.raises(InvalidArgument, match="/nowhere/plugin"):
        native_backend(PjrtDevice(library="/nowhere/plugin.so"))
