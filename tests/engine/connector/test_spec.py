"""Which engines are served without the host's tier, that they are told why, and where it is said."""

import logging
from types import SimpleNamespace

import pytest
from kvtier_connectors.vllm_connector import logs, spec
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

    monkeypatch.setattr(current_platform, "device_type", "xpu", raising=False)
    assert "xpu" in unsupported(engine())


@pytest.fixture
def fresh():
    spec.load_client.cache_clear()
    yield
    spec.load_client.cache_clear()


@pytest.mark.parametrize("error", [ImportError("no _core"), RuntimeError("protobuf is too old")])
def test_compiled_parts_that_cannot_be_loaded_are_said_once(fresh, monkeypatch, caplog, error):
    import kvtier

    def broken(name):
        raise error

    monkeypatch.delattr(kvtier, "Client", raising=False)
    monkeypatch.setattr(kvtier, "__getattr__", broken)
    assert spec.load_client() is None
    assert spec.load_client() is None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert str(error) in said[0]
    assert "serves without cache" in said[0]


@pytest.fixture
def loggers():
    """vLLM's and ours; afterwards they are as they were."""
    found = [logging.getLogger(name) for name in ("vllm", *logs.NAMES)]
    before = [(one.handlers[:], one.level, one.propagate) for one in found]
    yield found
    for one, (handlers, level, propagate) in zip(found, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def test_our_lines_go_where_the_engines_go(loggers):
    engine, *ours = loggers
    written = []
    handler = logging.Handler()
    handler.emit = written.append
    engine.handlers[:] = [handler]
    engine.setLevel(logging.INFO)
    for one in ours:
        one.handlers.clear()
    for _ in range(2):
        logs.join_engine_log()
    logging.getLogger("kvtier.client").info("attached")
    logging.getLogger("kvtier_connectors.vllm_connector").debug("not at this level")
    assert [record.getMessage() for record in written] == ["attached"]


def test_who_has_configured_logging_keeps_it(loggers):
    engine, *ours = loggers
    engine.handlers[:] = [logging.NullHandler()]
    own = logging.NullHandler()
    for one in ours:
        one.handlers[:] = [own]
    logs.join_engine_log()
    assert all(one.handlers == [own] for one in ours)
    engine.handlers.clear()
    ours[0].handlers.clear()
    logs.join_engine_log()
    assert ours[0].handlers == []
