#!/bin/sh
# The environment of compare.py: TPU Sync's wheel, the torch it is for, a PJRT CPU plugin, and kvtier itself.
#
#   PYTHON=python3.12 benchmarks/tpu_sync/install.sh VENV
#
# libtpu is left out: 0.5 GB that only a machine with a TPU can use.
set -eu

venv=${1:?usage: PYTHON=python3.12 install.sh VENV}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)

test -x "$venv/bin/python" || "${PYTHON:-python3.12}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip install -q "$@"; }
pip torch==2.13.0 numpy
pip --no-deps torch_tpu==0.2.0 tpu_sync_torch==0.0.1rc20261023185136 lammps-jax-pjrt-cpu==0.11.2
pip absl-py frozendict immutabledict portpicker pyzmq requests
pip -r "$root/requirements/build.txt"
pip -c "$root/requirements/build.txt" --no-build-isolation "$root"
