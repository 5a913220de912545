"""What vllm_torchtpu asks of a KV connector: the release that was read, and every way in which it calls it.

`tests/device/torchtpu_wheel.py WHEEL` prints this for a release; a test compares it with the pinned wheel,
and checks that each call fits our class.
"""

VERSION = "0.29.0"

# Class names that its platform lets pass.
NAMES = frozenset(
    {
        "DecodeBenchConnector",
        "TPUConnector",
        "TPUMultiConnector",
        "TPURaidenConnector",
        "TPURaidenOffloadingConnector",
    }
)

# (hook, positional arguments, keywords)
CALLS: frozenset[tuple[str, int, tuple[str, ...]]] = frozenset(
    {
        ("bind_connector_metadata", 1, ()),
        ("build_connector_worker_meta", 0, ()),
        ("clear_connector_metadata", 0, ()),
        ("get_block_ids_with_load_errors", 0, ()),
        ("get_block_ids_with_load_errors_group_index", 0, ()),
        ("get_finished", 1, ()),
        ("get_handshake_metadata", 0, ()),
        ("get_kv_connector_stats", 0, ()),
        ("handle_preemptions", 1, ()),
        ("register_kv_caches", 1, ()),
        ("register_runner", 1, ()),
        ("set_host_xfer_buffer_ops", 1, ()),
        ("start_load_kv", 1, ()),
        ("start_load_kv", 1, ("report_completion", "wait_for_completion")),
        ("wait_for_save", 0, ()),
    }
)

# Methods that its own offloading connector defines: there it differs from vLLM's.
HOOKS: frozenset[tuple[str, tuple[str, ...]]] = frozenset(
    {
        ("__init__", ("vllm_config", "role", "kv_cache_config")),
        ("build_connector_worker_meta", ()),
        ("get_block_ids_with_load_errors", ()),
        ("get_block_ids_with_load_errors_group_index", ()),
        ("get_finished", ("finished_req_ids",)),
        ("get_required_kvcache_layout", ("vllm_config",)),
        ("prefer_cross_layer_blocks", ()),
        ("register_kv_caches", ("kv_caches",)),
        ("reset_cache", ()),
        ("take_events", ()),
    }
)
