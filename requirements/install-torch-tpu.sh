#!/bin/sh
# Makes (or completes) a virtual environment with torch_tpu on top of the engine's environment.
#
#   requirements/install-torch-tpu.sh VENV ENGINE_VENV
#
# The engine's packages are seen through a path file, not copied: torch is there once, and the engine's environment does
# not change, where torch would load torch_tpu at every import. Half a GB, half a minute.
set -eu

venv=${1:?usage: install-torch-tpu.sh VENV ENGINE_VENV}
engine=${2:?usage: install-torch-tpu.sh VENV ENGINE_VENV}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

test -x "$venv/bin/python" || "$engine/bin/python" -m venv --without-pip "$venv"
printf "import site; site.addsitedir('%s')\n" "$(packages "$engine")" > "$(packages "$venv")/engine.pth"
"$venv/bin/python" -m pip install -q --no-deps -r "$here/torch-tpu.txt"

# torch_tpu ends the process when it is imported without a plugin.
TPU_LIBRARY_PATH="$(packages "$venv")/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so" TORCH_DEVICE_BACKEND_AUTOLOAD=0 \
    "$venv/bin/python" -W ignore -c '
import importlib.metadata, torch, torch_tpu
print("torch", torch.__version__, "torch_tpu", importlib.metadata.version("torch_tpu"))' 2>/dev/null
