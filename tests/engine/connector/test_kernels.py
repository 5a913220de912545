"""Which attention kernels a worker runs, from its layers to the scheduler."""

import pickle
from types import SimpleNamespace

from kvtier_connectors.vllm_connector.kernels import KernelReport, kernels_of, merged


class Backend:
    """An attention backend's class."""


def layer(isa=None):
    chosen = SimpleNamespace(get_attn_backend=lambda: Backend)
    if isa:
        chosen.isa = isa
    return chosen


def test_layers_that_keep_kv_are_named_with_backend_and_instruction_set():
    layers = {"a": layer("vec"), "b": layer(), "mlp": SimpleNamespace()}
    name = f"{Backend.__module__}.Backend"
    assert kernels_of(layers) == {"a": f"{name} vec", "b": name}


def test_workers_are_merged_and_other_connectors_passed_over():
    one, two = KernelReport({"a": "x", "b": "x"}), KernelReport({"a": "y", "c": "z"})
    reports = [pickle.loads(pickle.dumps(report)) for report in (one, two)]
    assert merged([*reports, object()]) == {"a": "x | y", "b": "x", "c": "z"}
    assert merged(reversed(reports)) == merged(reports)
