#!/bin/sh
# The C++ tests, each under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.
# Builds into build/native-asan and build/native-tsan. Arguments go to ctest (for example -R store).
# KVTIER_SANITIZERS=asan or =tsan runs one of the two; both by default. What leaks fails.
# Needs cmake and ninja, from PATH or from .venv (make setup). Non-zero when a test fails or none ran.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$PATH:$root/.venv/bin
jobs=$(nproc 2>/dev/null || echo 2)

for tool in cmake ninja; do
  command -v "$tool" >/dev/null || { echo "$tool not found: run make setup" >&2; exit 1; }
done

run() {
  build=$root/build/$1
  sanitizers=$2
  shift 2
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" \
    -DKVTIER_TESTS=ON -DKVTIER_SANITIZE="$sanitizers" >"$build.configure.log" 2>&1 || {
    cat "$build.configure.log" >&2
    exit 1
  }
  cmake --build "$build" -j "$jobs"
  ctest --test-dir "$build" --output-on-failure --no-tests=error --timeout 300 "$@"
}

# The CPU plugin that the PJRT tests wrap; without it they fail and say so.
if [ -z "${KVTIER_PJRT_CPU_PLUGIN:-}" ]; then
  for plugin in "$root"/.venv/lib/python3*/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so; do
    if [ -f "$plugin" ]; then export KVTIER_PJRT_CPU_PLUGIN="$plugin"; fi
  done
fi

mkdir -p "$root/build"
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tpu_sync_native/tests/tsan.supp
for sanitizer in ${KVTIER_SANITIZERS:-asan tsan}; do
  case $sanitizer in
    asan) run native-asan "address;undefined" "$@" ;;
    tsan) run native-tsan "thread" "$@" ;;
    *)
      echo "KVTIER_SANITIZERS=$sanitizer: asan or tsan" >&2
      exit 2
      ;;
  esac
done
