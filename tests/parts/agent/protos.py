"""Writes the modules of the kubelet's protobuf definitions: `make protos`."""

import sys
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).parents[3] / "extender" / "parts" / "agent" / "kubelet_api"
DEFINITIONS = sorted(FOLDER.glob("*.proto"))


def write(into: Path) -> None:
    """Each definition's module, and its types."""
    outputs = [f"--python_out={into}", f"--pyi_out={into}"]
    if protoc.main(["protoc", f"--proto_path={FOLDER}", *outputs, *(path.name for path in DEFINITIONS)]) != 0:
        sys.exit("protoc failed")


if __name__ == "__main__":
    write(FOLDER)
