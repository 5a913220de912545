"""The table of devices: where a region is, and what cannot be copied as it lies."""

from types import SimpleNamespace

import numpy as np
import pytest
from kvtier_connectors.vllm_connector import devices
from kvtier_connectors.vllm_connector.devices import CudaTensors, HostTensors, TpuTensors

import kvtier
from kvtier.client.torch_tpu import DeviceLayout


class Tensor:
    """An int8 view of `rows` rows of a storage."""

    def __init__(self, storage=1, offset=0, stride=8192, size=8192 * 8, device="tpu"):
        self.device = SimpleNamespace(type=device, index=3)
        self._storage, self._offset, self._stride, self._size = storage, offset, stride, size

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self._storage, nbytes=lambda: self._size)

    def data_ptr(self):
        return 1000 + self._offset

    def storage_offset(self):
        return self._offset

    def stride(self, _dimension):
        return self._stride

    def element_size(self):
        return 1


@pytest.fixture
def tpu(monkeypatch):
    """`tpu(layout)`: torch_tpu's part, where every buffer has this layout."""

    def install(layout):
        class Tensors:
            device = "a plugin"

            def __init__(self, bases):
                self.count = len(bases)

            def layouts(self):
                return [layout] * self.count

            def buffers(self):
                return np.arange(self.count, dtype=np.uint64)

        monkeypatch.setattr(kvtier, "TorchTpuTensors", Tensors, raising=False)
        monkeypatch.setattr(devices, "_tpu_name", lambda: "v9")

    return install


def test_views_of_one_storage_are_one_buffer(tpu):
    tpu(DeviceLayout(8192 * 8, 1, "linear"))
    tensors = TpuTensors([Tensor(1), Tensor(2), Tensor(1, offset=4096)])
    assert tensors.region(0, 8192) == (0, 8192, 8192)
    assert tensors.region(1, 4096) == (1 << 44, 8192, 4096)
    assert tensors.region(2, 4096) == (4096, 8192, 4096)
    assert tensors.job_options()["buffers"].tolist() == [0, 1]
    assert (tensors.device, tensors.windows, tensors.words) == ("a plugin", True, "tpu v9 linear")


def test_padded_tiles_are_refused(tpu):
    tpu(DeviceLayout(8192 * 16, 8192, "(8,128) of 64,16"))
    with pytest.raises(ValueError, match="131072 bytes on the device for 65536"):
        TpuTensors([Tensor()]).region(0, 8192)


@pytest.mark.parametrize(("offset", "stride", "page"), [(4096, 8192, 8192), (0, 4096, 8192), (0, 8192, 4096)])
def test_blocks_that_cut_tiles_are_refused(tpu, offset, stride, page):
    tpu(DeviceLayout(8192 * 8, 8192, "(8,128) of 128,16"))
    assert TpuTensors([Tensor()]).region(0, 8192) == (0, 8192, 8192)
    with pytest.raises(ValueError, match="cut tiles"):
        TpuTensors([Tensor(offset=offset, stride=stride)]).region(0, page)


def test_addresses_that_last():
    assert HostTensors([Tensor(device="cpu")]).region(0, 100) == (1000, 8192, 100)
    gpu = CudaTensors([Tensor(device="cuda")])
    assert gpu.device == kvtier.CudaDevice(3)
    assert gpu.region(0, 100) == (1000, 8192, 100)
    assert not gpu.windows
