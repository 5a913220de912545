"""Generate the wire code: generate.py PROTO_ROOT OUT. Imports are made relative to kvtier.wire._gen."""

import sys
from pathlib import Path

from grpc_tools import protoc


def main(root: str, out: str) -> int:
    """Run protoc, then let the service module import its messages from its own package."""
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    code = protoc.main(["protoc", f"-I{root}", *outputs, "kvtier/v1/kvtier.proto"])
    if code:
        return int(code)
    service = Path(out, "kvtier/v1/kvtier_pb2_grpc.py")
    text = service.read_text()
    fixed = text.replace("from kvtier.v1 import kvtier_pb2", "from kvtier.wire._gen import kvtier_pb2")
    if fixed == text:
        raise SystemExit(f"{service}: expected an import of kvtier.v1 to rewrite, found none")
    service.write_text(fixed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
