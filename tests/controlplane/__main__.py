"""`python -m tests.controlplane build [--version 1.34]`: builds the binaries ahead of time and prints their paths."""

import argparse
import dataclasses
import sys

from tests.controlplane import binaries


def main() -> int:
    """Build, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane")
    parser.add_argument("command", choices=["build"])
    parser.add_argument("--version", help="Kubernetes minor or release; default: $KERF_TEST_KUBERNETES or 1.37")
    arguments = parser.parse_args()
    try:
        found = binaries.find_binaries(arguments.version)
    except binaries.BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for name, path in dataclasses.asdict(found).items():
        print(f"{name} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
