"""The chart as it is published: with the images by their digests, packed and pushed."""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.errors import ReleaseError
from release.running import ROOT, run

CHART: Final = ROOT / "manifests" / "helm" / "kerf"


@dataclass(frozen=True)
class Image:
    """An image as it was pushed."""

    repository: str
    digest: str


def pack(version: str, image: Image, fit: Image, into: Path) -> Path:
    """The packed chart, whose values name the images. Raises ReleaseError."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kerf-chart-") as folder:
        copy = Path(folder) / "kerf"
        shutil.copytree(CHART, copy)
        values = copy / "values.yaml"
        values.write_text(stamped(values.read_text(), image, fit))
        run("helm", "package", copy, "--version", version, "--app-version", version, "--destination", into)
    return into / f"kerf-{version}.tgz"


def stamped(values: str, image: Image, fit: Image) -> str:
    """The text of values.yaml with both images set. Raises ReleaseError where it has not their places, each once."""
    for start, given in (("image", image), ("learning.image", fit)):
        for key in ("repository", "digest"):
            values = _set(values, start, key, getattr(given, key))
    return values


def push(packed: Path, to: str) -> str:
    """Push a packed chart; its digest. Raises ReleaseError."""
    told = run("helm", "push", packed, to)
    match = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", told, re.MULTILINE)
    if match is None:
        raise ReleaseError(f"helm has told no digest: {told[-500:]!r}")
    return match[1]


def _set(values: str, place: str, key: str, value: str) -> str:
    """One empty text of a mapping set: `place` is its path from the top."""
    depth = place.count(".")
    opening = r".*?^".join(f"{'  ' * level}{name}:\n" for level, name in enumerate(place.split(".")))
    inner = "  " * (depth + 1)
    pattern = rf'(^{opening}(?:{inner}[^\n]*\n|\n)*?{inner}{key}: )""$'
    changed, count = re.subn(pattern, lambda match: f'{match[1]}"{value}"', values, count=2, flags=re.M | re.S)
    if count != 1:
        raise ReleaseError(f"values.yaml has not one empty {place}.{key}, but {count}")
    return changed
