"""kvtier under a name that vllm_torchtpu accepts, with the hooks that it calls beyond vLLM's.

    --kv-transfer-config '{"kv_connector":"TPURaidenOffloadingConnector","kv_role":"kv_both",
                           "kv_connector_module_path":"kvtier_connectors.vllm_torchtpu"}'

vllm_torchtpu lets only connectors of a few class names pass; the module path says whose class it is. What it
calls, and how, stands in `interface.py`.
"""

from kvtier_connectors.vllm_torchtpu.connector import TPURaidenOffloadingConnector

__all__ = ["TPURaidenOffloadingConnector"]
