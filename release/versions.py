"""One version in all places that name it, and what a tag says of it."""

import re
import tomllib
from pathlib import Path
from typing import Final

from release.errors import ReleaseError
from release.notes import section

_TAG: Final = re.compile(r"v(\d+\.\d+\.\d+)")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_REGISTRY: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?(/[a-z0-9._-]+)*")
_PLACES: Final = {
    "extender/__init__.py": r'^__version__ = "(.*)"$',
    "manifests/helm/kerf/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "manifests/install.yaml": r"image: kerf:(.*)$",
    "manifests/static-pod/kerf.yaml": r"image: kerf:(.*)$",
}
"""Files, and how they say the version."""


def version_of(root: Path) -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def checked(root: Path, tag: str) -> str:
    """The version of a tag, where everything agrees with it. Raises ReleaseError with all that does not."""
    version = version_of(root)
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ReleaseError(f"tag {tag!r}: a release's is vX.Y.Z")
    faults = [] if match[1] == version else [f"tag {tag}, but pyproject.toml has {version}"]
    for name, pattern in _PLACES.items():
        said = set(re.findall(pattern, (root / name).read_text(), re.MULTILINE))
        if said != {version}:
            faults.append(f"{name} has {', '.join(sorted(said)) or 'no version'}, but pyproject.toml has {version}")
    try:
        section((root / "CHANGELOG.md").read_text(), version)
    except ReleaseError as error:
        faults.append(str(error))
    if faults:
        raise ReleaseError("\n".join(faults))
    return version


def names(registry: str, repository: str) -> dict[str, str]:
    """Where images and chart go, given a registry's host (perhaps with a path) and OWNER/NAME. Raises ReleaseError."""
    if not _REGISTRY.fullmatch(registry):
        raise ReleaseError(f"{registry!r} is no registry: set the repository's variable REGISTRY to its host")
    if not _REPOSITORY.fullmatch(repository):
        raise ReleaseError(f"{repository!r} is no OWNER/NAME of a repository")
    owner, name = repository.lower().split("/")  # as references of images have to be
    return {
        "image": f"{registry}/{owner}/{name}",
        "fit_image": f"{registry}/{owner}/{name}-fit",
        "charts": f"oci://{registry}/{owner}/charts",
    }
