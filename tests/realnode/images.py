"""Images made on the spot: archives as `docker save` writes them, of one layer."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def image_of_program(target: Path, name: str, program: Path) -> None:
    """Write an image that holds one static program and runs it."""
    layer = target.with_suffix(".layer.tar")
    with tarfile.open(layer, "w") as archive:
        archive.add(program, f"usr/local/bin/{program.name}")
    image_of_layer(target, name, layer, Entrypoint=[f"/usr/local/bin/{program.name}"])
    layer.unlink()


def image_of_layer(target: Path, name: str, layer: Path, **config: Sequence[str]) -> None:
    """Write an image whose files are those of a tar archive; `config` as in a Dockerfile."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    described = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        archive.add(layer, "layer.tar")
        _add(archive, {"config.json": described, "manifest.json": manifest})


def _add(archive: tarfile.TarFile, documents: Mapping[str, object]) -> None:
    for name, document in documents.items():
        content = json.dumps(document).encode()
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
