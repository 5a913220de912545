#!/bin/sh
# The environment of compare.py: the peers beside kvtier, on top of the engine's environment (its torch, and kvtier).
#
#   benchmarks/peers/install.sh VENV ENGINE_VENV
#
# The engine's packages are seen through a path file, not copied, and do not change. LMCache's wheel asks for more than its CPU
# path imports (CUDA's Python packages, cloud clients), so nothing is installed but what packages.txt names.
set -eu

venv=${1:?usage: install.sh VENV ENGINE_VENV}
engine=$(CDPATH='' cd -- "${2:?usage: install.sh VENV ENGINE_VENV}" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

test -x "$venv/bin/python" || "$engine/bin/python" -m venv "$venv"
printf "import site; site.addsitedir('%s')\n" "$(packages "$engine")" > "$(packages "$venv")/engine.pth"
"$venv/bin/python" -m pip install -q --no-deps -r "$here/packages.txt"
