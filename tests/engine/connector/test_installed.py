"""The installed vLLM fits, and knows the connector by its name alone."""

import pytest
import vllm
from kvtier_connectors.common.signatures import misfits
from kvtier_connectors.vllm_connector import CONNECTOR_NAME, compat, register
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma


def test_every_signature_we_rely_on_is_there():
    assert misfits(compat.SIGNATURES) == []
    compat.check_installed(vllm.__version__)


def test_everything_overridden_is_checked():
    from kvtier_connectors.vllm_connector.connector import KVTierConnector
    from kvtier_connectors.vllm_connector.manager import KVTierManager
    from kvtier_connectors.vllm_connector.spec import KVTierSpec
    from kvtier_connectors.vllm_connector.worker import KVTierWorker
    from kvtier_connectors.vllm_torchtpu import TPURaidenOffloadingConnector

    checked = {where.rpartition(".")[2] for where in compat.SIGNATURES}
    for ours in (KVTierConnector, KVTierManager, KVTierSpec, KVTierWorker, TPURaidenOffloadingConnector):
        inherited = {name for base in ours.__mro__[1:-1] for name in vars(base)}
        overridden = {
            name for name, value in vars(ours).items() if callable(value) or isinstance(value, classmethod)
        } & inherited
        assert overridden - checked - {"__init__", "shutdown", "__abstractmethods__"} == set()


def test_selectable_by_name_and_registering_twice_is_harmless():
    register()
    register()
    chosen = KVConnectorFactory.get_connector_class_by_name(CONNECTOR_NAME)
    assert chosen.__name__ == CONNECTOR_NAME
    assert supports_hma(chosen)


def test_hash_record_names_the_seed(monkeypatch):
    from kvtier_connectors.vllm_connector.fingerprint import hash_record
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"", raising=False)
    records = set()
    for seed in (None, "1", "2"):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if seed is not None:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        kv_cache_utils.init_none_hash(get_hash_fn_by_name("sha256_cbor"))
        records.add(hash_record("sha256_cbor")["none_hash"])
    assert len(records) == 3


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_random_seeds_are_said_loudly(algorithm, monkeypatch, caplog):
    from kvtier_connectors.vllm_connector.fingerprint import hash_record
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"seed", raising=False)
    hash_record(algorithm)
    assert "sha256_cbor" in caplog.text
    assert "PYTHONHASHSEED" in caplog.text
