#!/bin/sh
# Makes (or completes) a virtual environment with SGLang on plain CPUs, and what builds and tests kvtier in it.
#
#   PYTHON=python3.11 requirements/install-sglang-cpu.sh VENV
#
# PYTHON (default python3.11) must be 3.11, the version that the engine's compiled parts are pinned for here. Where packages come from
# is pip's own configuration. Running it again on a finished environment changes nothing. About 3 GB, two minutes.
# The engine compiles its page hash at first use: g++, ninja and OpenSSL's headers (libssl-dev) are needed.
set -eu

venv=${1:?usage: install-sglang-cpu.sh VENV}
python=${PYTHON:-python3.11}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
list=$here/sglang-cpu.txt

if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "install-sglang-cpu.sh: $python is $("$python" --version 2>&1); set PYTHON to a Python 3.11" >&2
    exit 2
fi

test -x "$venv/bin/python" || "$python" -m venv "$venv"
py=$venv/bin/python
"$py" -m pip install -q --no-warn-conflicts -r "$list" -r "$here/build.txt"
# shellcheck disable=SC2046  # one word per requirement
"$py" -m pip install -q --no-warn-conflicts --no-deps $(sed -n 's/^# bare: //p' "$list")

"$py" - <<'PYTHON'
import importlib.metadata

print("torch", importlib.metadata.version("torch"), "sglang", importlib.metadata.version("sglang"))
PYTHON
