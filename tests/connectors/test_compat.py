"""A vLLM that differs is refused with one clear message, before anything is built."""

import sys
from types import ModuleType

import pytest
from kvtier_connectors.common.signatures import in_range, misfits
from kvtier_connectors.vllm_connector import compat


@pytest.fixture
def installed(monkeypatch):
    module = ModuleType("stand_in_engine")

    class Connector:
        def fits(self, request, tokens):
            pass

        def grown(self, request, tokens, extra=None, *args, **kwargs):
            pass

        def demanding(self, request, tokens, extra):
            pass

        def renamed(self, req, tokens):
            pass

        @classmethod
        def of_class(cls, request, tokens):
            pass

    module.Connector = Connector
    monkeypatch.setitem(sys.modules, "stand_in_engine", module)


@pytest.mark.parametrize("method", ["fits", "grown", "of_class"])
def test_fitting(installed, method):
    assert misfits({f"stand_in_engine:Connector.{method}": ("request", "tokens")}) == []


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ("demanding", "requires also (extra)"),
        ("renamed", "takes (req, tokens), not (request, tokens)"),
        ("gone", "is missing"),
    ],
)
def test_not_fitting(installed, method, complaint):
    (problem,) = misfits({f"stand_in_engine:Connector.{method}": ("request", "tokens")})
    assert problem == f"Connector.{method} {complaint}"


def test_a_missing_module_is_a_misfit():
    assert misfits({"no_such_engine:Connector.x": ()}) == ["Connector.x is missing"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.29.0", True),
        ("0.32.0+cpu", True),
        ("0.33.2", True),
        ("0.28.1", False),
        ("0.34.0", False),
        ("1.0.0", False),
        ("dev", False),
    ],
)
def test_range(version, expected):
    assert in_range(version, compat.VERSION_FIRST, compat.VERSION_LAST) is expected


def test_the_refusal_names_version_range_and_misfits(monkeypatch):
    monkeypatch.setattr(compat, "SIGNATURES", {"no_such_engine:Connector.x": ()})
    with pytest.raises(ImportError) as caught:
        compat.check_installed("0.40.0")
    message = str(caught.value)
    assert "0.40.0" in message
    assert "outside 0.29 to 0.33" in message
    assert "Connector.x is missing" in message
