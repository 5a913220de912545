"""Every field that changes bytes changes the record; what does not, does not."""

import copy
import json
from types import SimpleNamespace

import pytest
from kvtier_connectors.common import weights
from kvtier_connectors.vllm_connector import fingerprint
from kvtier_connectors.vllm_connector.layout import GroupPlan
from kvtier_connectors.vllm_connector.settings import Settings

PLAN = GroupPlan(0, 128, 2, 2, 4096, 1, False)
KERNELS = dict.fromkeys(("l0", "l1", "l2"), "cpu.Attention vec")


class ModelConfig:
    def __init__(self, **fields):
        self.fields = {"hidden_size": 256, "_name_or_path": "/somewhere", **fields}
        self._commit_hash = None

    def to_dict(self):
        return self.fields


def engine(model_path):
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model_path),
            hf_config=ModelConfig(),
            revision=None,
            seed=0,
            quantization=None,
            dtype="torch.float32",
        ),
        load_config=SimpleNamespace(load_format="auto"),
        cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256"),
        attention_config=SimpleNamespace(backend="CPU_ATTN"),
        speculative_config=None,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
        ),
    )


def framework():
    return SimpleNamespace(
        cache=SimpleNamespace(tokens_per_hash=128), kv_cache_layout="LBHNC", replicated_layout=False
    )


def groups():
    group = SimpleNamespace(
        layer_names=["l0", "l1"], kv_cache_spec="FullAttentionSpec(128)", is_eagle_group=False
    )
    return SimpleNamespace(kv_cache_groups=[group])


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    monkeypatch.setattr(fingerprint, "hash_record", lambda algorithm: {"hash": algorithm, "none_hash": "00"})
    monkeypatch.setattr(fingerprint, "device_record", lambda _: {"device": "cpu", "isa": "AVX2"})
    monkeypatch.setattr(fingerprint, "_engine_version", lambda: "0.32.0")


@pytest.fixture
def checkpoint(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 20]}}).encode()
    (tmp_path / "config.json").write_text('{"hidden_size": 256}')
    body = bytes(range(256)) * 4096
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    return tmp_path


def prints(vllm, *, config=None, kv=None, settings=None):
    return fingerprint.Fingerprints(vllm, kv or groups(), config or framework(), settings or Settings())


def record(vllm, *, plan=PLAN, kernels=KERNELS, **more):
    return prints(vllm, **more).of(plan, kernels)


def text(value):
    return json.dumps(value, sort_keys=True)


def test_the_same_engine_twice(checkpoint):
    assert text(record(engine(checkpoint))) == text(record(engine(checkpoint)))


def test_where_the_model_lies_does_not_matter(checkpoint, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere")
    for file in checkpoint.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    moved = engine(other)
    moved.model_config.hf_config = ModelConfig(_name_or_path="/elsewhere")
    assert text(record(engine(checkpoint))) == text(record(moved))


CHANGES = {
    "model configuration": lambda e: e.model_config.hf_config.fields.update(hidden_size=512),
    "overridden rope": lambda e: e.model_config.hf_config.fields.update(rope_theta=1e6),
    "quantization": lambda e: setattr(e.model_config, "quantization", "fp8"),
    "model dtype": lambda e: setattr(e.model_config, "dtype", "torch.bfloat16"),
    "kv dtype": lambda e: setattr(e.cache_config, "cache_dtype", "fp8"),
    "hash algorithm": lambda e: setattr(e.cache_config, "prefix_caching_hash_algo", "sha256_cbor"),
    "backend": lambda e: setattr(e.attention_config, "backend", "OTHER"),
    "tp": lambda e: setattr(e.parallel_config, "tensor_parallel_size", 2),
    "pp": lambda e: setattr(e.parallel_config, "pipeline_parallel_size", 2),
    "pcp": lambda e: setattr(e.parallel_config, "prefill_context_parallel_size", 2),
    "dcp": lambda e: setattr(e.parallel_config, "decode_context_parallel_size", 2),
    "made-up weights": lambda e: setattr(e.load_config, "load_format", "dummy"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_engine_is_another_record(checkpoint, name):
    changed = engine(checkpoint)
    CHANGES[name](changed)
    assert text(record(changed)) != text(record(engine(checkpoint)))


@pytest.mark.parametrize(
    "field", ["group_id", "tokens_per_block", "blocks_per_chunk", "block_bytes", "parts"]
)
def test_a_change_of_the_plan_is_another_record(checkpoint, field):
    fields = {name: getattr(PLAN, name) for name in PLAN.__slots__}
    kv = groups()
    kv.kv_cache_groups.append(copy.copy(kv.kv_cache_groups[0]))
    fields[field] += 1
    changed = record(engine(checkpoint), plan=GroupPlan(**fields), kv=kv)
    assert text(changed) != text(record(engine(checkpoint), kv=kv))


@pytest.mark.parametrize("where", ["hash_record", "device_record", "_engine_version"])
def test_seed_instruction_set_and_engine_version_matter(checkpoint, where, monkeypatch):
    before = text(record(engine(checkpoint)))
    other = "0.33.0" if where == "_engine_version" else {"none_hash": "01", "isa": "AVX512"}
    monkeypatch.setattr(fingerprint, where, lambda *_: other)
    assert text(record(engine(checkpoint))) != before


def test_layers_layout_and_hash_block_matter(checkpoint):
    before = text(record(engine(checkpoint)))
    kv, config = groups(), framework()
    kv.kv_cache_groups[0].layer_names = ["l0", "l2"]
    assert text(record(engine(checkpoint), kv=kv)) != before
    config.kv_cache_layout = "BLHNC"
    assert text(record(engine(checkpoint), config=config)) != before
    config = framework()
    config.cache.tokens_per_hash = 16
    assert text(record(engine(checkpoint), config=config)) != before


@pytest.mark.parametrize(
    "kernels",
    [
        dict.fromkeys(KERNELS, "cpu.Attention amx"),
        dict.fromkeys(KERNELS, "other.Attention vec"),
        KERNELS | {"l0": "cpu.Attention amx"},
        KERNELS | {"l1": "cpu.Attention amx"},
        KERNELS | {"l2": "cpu.Attention amx"},  # of another group or stage: the engine is another one
    ],
)
def test_other_kernels_are_another_record(checkpoint, kernels):
    """What the configuration asks for is the same in all of these: nothing."""
    one, other = record(engine(checkpoint)), record(engine(checkpoint), kernels=kernels)
    assert one["backend"] == other["backend"]
    assert text(one) != text(other)
    assert text(other) == text(record(engine(checkpoint), kernels=dict(reversed(kernels.items()))))


def test_kernels_swapped_between_layers_are_another_record(checkpoint):
    mixed = {"l0": "a", "l1": "b"}
    swapped = {"l0": "b", "l1": "a"}
    assert text(record(engine(checkpoint), kernels=mixed)) != text(
        record(engine(checkpoint), kernels=swapped)
    )


@pytest.mark.parametrize("kernels", [{}, {"l0": "cpu.Attention vec"}])
def test_kernels_that_nobody_reported_are_shared_with_nobody(checkpoint, kernels, caplog):
    first, second = (record(engine(checkpoint), kernels=kernels) for _ in range(2))
    assert text(first) != text(second)
    assert "shares its cache with no other process" in caplog.text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/model", "org/model"),
        ("gpt2", "gpt2"),
        ("/srv/models/llama-8b/", "llama-8b"),
        ("./llama-8b", "llama-8b"),
        ("/srv/hub/models--org--a-model/snapshots/0123abc", "org/a-model"),
    ],
)
def test_the_name_people_know_a_model_by(model, name):
    assert fingerprint.model_name(model) == name


def test_a_label_for_people_says_what_it_is_and_changes_nothing(checkpoint):
    vllm = engine("/srv/models/llama-8b")
    assert prints(vllm).label(PLAN) == "llama-8b float32"
    vllm.cache_config.cache_dtype = "fp8"
    vllm.parallel_config.tensor_parallel_size = 2
    kv = groups()
    kv.kv_cache_groups.append(kv.kv_cache_groups[0])
    assert prints(vllm, kv=kv).label(PLAN) == "llama-8b fp8 tp2 group 1/2"


def test_one_changed_byte_of_the_sampled_weights_is_another_identity(checkpoint):
    before = weights.digest_of(checkpoint)
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert weights.digest_of(checkpoint) != before


def test_header_and_size_are_in_the_digest(checkpoint):
    seen = {weights.digest_of(checkpoint)}
    file = checkpoint / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"F32", b"I32"))
    seen.add(weights.digest_of(checkpoint))
    file.write_bytes(data + b"\0" * 512)
    seen.add(weights.digest_of(checkpoint))
    (checkpoint / "config.json").write_text('{"hidden_size": 257}')
    seen.add(weights.digest_of(checkpoint))
    assert len(seen) == 4


def test_identities_in_order_of_certainty(checkpoint):
    def identity(model, **changes):
        fields = {"weights_id": None, "revision": None, "commit": None, "load_format": "auto", "seed": 0}
        return weights.weights_identity(str(model), **{**fields, **changes})

    assert identity(checkpoint, weights_id="v7") == "operator:v7"
    assert identity(checkpoint).startswith("files:")
    assert identity("org/model", commit="abc") == "commit:abc"
    assert identity("org/model", revision="a" * 40) == f"commit:{'a' * 40}"
    assert identity("org/model", load_format="dummy", seed=3) == "dummy:3"
    assert identity("org/model", revision="main") != identity("org/model", revision="main")


def test_unknown_weights_are_said_loudly(caplog):
    weights.weights_identity(
        "org/model", weights_id=None, revision=None, commit=None, load_format="auto", seed=0
    )
    assert "weights_id" in caplog.text


@pytest.mark.parametrize(
    ("algorithm", "environment", "stable"),
    [
        ("sha256", {}, True),
        ("sha256_cbor", {}, True),
        ("xxhash", {}, False),
        ("xxhash_cbor", {}, False),
        ("xxhash", {"PYTHONHASHSEED": "0"}, True),
    ],
)
def test_which_hashes_are_the_same_in_every_process(algorithm, environment, stable):
    assert fingerprint.hashes_are_stable(algorithm, environment) is stable
