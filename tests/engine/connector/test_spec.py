"""Which engines are served without the host's tier, and that they are told why."""

from types import SimpleNamespace

import pytest
from kvtier_connectors.vllm_connector.spec import unsupported


def engine(prefix_caching=True, nodes=1):
    return SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=prefix_caching),
        parallel_config=SimpleNamespace(nnodes_within_dp=nodes),
    )


def test_an_ordinary_engine_is_supported():
    assert unsupported(engine()) is None


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (engine(prefix_caching=False), "cannot continue a prefix"),
        (engine(nodes=2), "2 hosts"),
    ],
)
def test_the_reason_is_named(case, why):
    assert why in unsupported(case)


def test_a_device_without_a_copy_backend(monkeypatch):
    from vllm.platforms import current_platform

    monkeypatch.setattr(current_platform, "device_type", "cuda", raising=False)
    assert "cuda" in unsupported(engine())
