"""Signatures by cosign, without keys: by the identity of the workflow that runs."""

from collections.abc import Iterable
from pathlib import Path

from release.running import run


def sign(reference: str, sbom: Path | None = None) -> None:
    """Sign an image or chart, named by its digest, and attest a CycloneDX SBOM to it. Raises ReleaseError."""
    run("cosign", "sign", "--yes", reference)
    if sbom is not None:
        run("cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", sbom, reference)


def sign_files(files: Iterable[Path]) -> list[Path]:
    """Sign files; the bundles beside them, NAME.sigstore.json, prove it. Raises ReleaseError."""
    bundles = []
    for file in files:
        bundle = file.with_name(f"{file.name}.sigstore.json")
        run("cosign", "sign-blob", "--yes", "--bundle", bundle, file)
        bundles.append(bundle)
    return bundles
