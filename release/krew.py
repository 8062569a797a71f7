"""The manifest by which krew installs kubectl's plugin."""

import hashlib
import json
from pathlib import Path
from string import Template
from typing import Final

from release.errors import ReleaseError

_TEMPLATE: Final = Path(__file__).with_name("krew.yaml")
PLATFORMS: Final = (("linux", "amd64"), ("linux", "arm64"), ("darwin", "amd64"), ("darwin", "arm64"))


def manifest(version: str, archive: Path, downloads: str, homepage: str) -> str:
    """The manifest: `downloads` is the folder on the web where the archive will be. Raises ReleaseError."""
    for url in (downloads, homepage):
        if not url.startswith("https://") or any(char in url for char in ' "\n$'):
            raise ReleaseError(f"{url!r} is no address that krew downloads from")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": architecture}},
            "uri": f"{downloads}/{archive.name}",
            "sha256": digest,
            "bin": "kubectl-kerf",
            "files": [{"from": name, "to": "."} for name in ("kubectl-kerf", "LICENSE")],
        }
        for system, architecture in PLATFORMS
    ]
    lines = "".join(f"\n    - {json.dumps(platform)}" for platform in platforms)  # JSON is YAML
    return Template(_TEMPLATE.read_text()).substitute(version=version, homepage=homepage, platforms=lines)
