"""The images: built for all platforms on a base that is known by its digest, and pushed."""

import json
import re
import tempfile
from pathlib import Path
from typing import Final

from release.errors import ReleaseError
from release.running import ROOT, epoch, run

PLATFORMS: Final = "linux/amd64,linux/arm64"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def base_image(dockerfile: str) -> str:
    """The base that a Dockerfile names, by its digest now. Raises ReleaseError."""
    match = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    if match is None:
        raise ReleaseError("the Dockerfile names no base: ARG BASE=...")
    told = run("docker", "buildx", "imagetools", "inspect", match[1], "--format", "{{json .Manifest}}")
    return f"{match[1]}@{digest_in(told, 'digest')}"


def build(name: str, version: str, base: str, purpose: str, source: str) -> str:
    """Build and push an image for all platforms, with its SBOM and provenance; its digest. Raises ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="kerf-image-") as folder:
        metadata = Path(folder) / "metadata.json"
        flags = f"--push --sbom=true --provenance=mode=max --metadata-file={metadata}"
        run(
            *("make", "image", "BUILDER=docker", f"IMAGE={name}:{version}", f"BASE={base}", f"PLATFORMS={PLATFORMS}"),
            *(f"FOR={purpose}", f"SOURCE={source}", f"ARGS={flags}"),
            env={"SOURCE_DATE_EPOCH": str(epoch())},
        )
        return digest_in(metadata.read_text(), "containerimage.digest")


def digest_in(text: str, key: str) -> str:
    """A digest in a JSON object. Raises ReleaseError."""
    try:
        digest = str(json.loads(text)[key])
    except (ValueError, KeyError, TypeError):
        raise ReleaseError(f"no {key} in {text[:500]!r}") from None
    if not _DIGEST.fullmatch(digest):
        raise ReleaseError(f"{digest!r} is no digest")
    return digest


def dockerfile() -> str:
    """The checkout's."""
    return (ROOT / "Dockerfile").read_text()
