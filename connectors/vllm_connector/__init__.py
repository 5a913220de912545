"""vLLM: `--kv-transfer-config '{"kv_connector":"KVTierConnector","kv_role":"kv_both"}'` and nothing else.

`register` is the entry point of `vllm.general_plugins`. vLLM calls it in every one of its processes, whether
kvtier is selected or not: it only names the connector; modules load when the connector is chosen.
"""

import logging

logger = logging.getLogger(__name__)

CONNECTOR_NAME = "KVTierConnector"


def register() -> None:
    """Make `KVTierConnector` known to vLLM by name. Never raises: an engine without kvtier must start."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError as error:
        logger.warning(
            "kvtier: this vLLM has no KV connector factory (%s); KVTierConnector stays unknown", error
        )
        return
    try:
        KVConnectorFactory.register_connector(
            CONNECTOR_NAME, "kvtier_connectors.vllm_connector.connector", CONNECTOR_NAME
        )
    except ValueError:
        logger.debug("kvtier: KVTierConnector is registered already")
