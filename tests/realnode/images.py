"""Images as archives that `docker save` writes: of one layer, made on the spot; and what is in those of others."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def described(archive: Path) -> dict[str, Any]:
    """The configuration of the one image in an archive."""
    with tarfile.open(archive) as packed:
        (image,) = _json(packed, "manifest.json")
        found: dict[str, Any] = _json(packed, image["Config"])
        return found


def files_in(archive: Path) -> set[str]:
    """Names of all files in the layers of the one image in an archive."""
    found: set[str] = set()
    with tarfile.open(archive) as packed:
        (image,) = _json(packed, "manifest.json")
        for name in image["Layers"]:
            layer = packed.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=layer) as files:
                found.update(member.name.removeprefix("./") for member in files if member.isfile())
    return found


def _json(packed: tarfile.TarFile, name: str) -> Any:
    content = packed.extractfile(name)
    assert content is not None, name
    return json.load(content)
