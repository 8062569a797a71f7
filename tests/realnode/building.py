"""Kerf's image, made by `make image` without a registry: buildah, on a base of Debian's packages."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.controlplane.binaries import BuildError, cached
from tests.controlplane.kerf import ROOT
from tests.controlplane.processes import clean_environment
from tests.realnode.images import image_of_layer
from tests.realnode.machine import run

REPOSITORY, TAG = "localhost/kerf", "realnode"
_BASE = "localhost/debian-python:12"
_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lacking_builder() -> str:
    """Why no image can be made here; "" where one can."""
    missing = [program for program in ("buildah", "debootstrap") if not shutil.which(program)]
    return f"making images needs Debian's packages {', '.join(missing)}" if missing else ""


def kerf_image(folder: Path) -> Path:
    """Run `make image`; the archive that it made. Raises BuildError."""
    name = f"{REPOSITORY}:{TAG}"
    storage, archive = folder / "storage.conf", folder / "kerf.tar"
    places = f'graphroot = "{folder}/images"\nrunroot = "{folder}/containers"\n'
    storage.write_text(f'[storage]\ndriver = "vfs"\n{places}')
    environment = clean_environment(CONTAINERS_STORAGE_CONF=str(storage), BUILDAH_ISOLATION="chroot")
    _run(["buildah", "pull", "--quiet", f"docker-archive:{_base()}"], environment)
    flags = " ".join(("--pull=never", *_package_settings(folder)))
    make = ["make", "-C", str(ROOT), "image", "BUILDER=buildah", f"IMAGE={name}", f"BASE={_BASE}", f"ARGS={flags}"]
    _run(make, environment)
    _run(["buildah", "push", "--quiet", name, f"docker-archive:{archive}:{name}"], environment)
    return archive


def _base() -> Path:
    """Debian 12 with its Python, as an image; made once."""

    def build(into: Path) -> None:
        root, layer = into / "root", into / "layer.tar"
        run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)])
        shutil.rmtree(root / "var" / "cache" / "apt")
        with tarfile.open(layer, "w") as archive:
            archive.add(root, ".", filter=lambda entry: None if entry.isdev() else entry)
        image_of_layer(into / "base.tar", _BASE, layer, Env=[_PATH], Cmd=["python3"])
        layer.unlink()
        shutil.rmtree(root)

    return cached("debian-python-12", build) / "base.tar"


def _package_settings(folder: Path) -> list[str]:
    """Flags by which pip finds packages during the build as it does here."""
    settings = folder / "pip.conf"
    values = {
        name: os.environ[f"PIP_{name.upper().replace('-', '_')}"]
        for name in ("index-url", "timeout", "trusted-host")
        if f"PIP_{name.upper().replace('-', '_')}" in os.environ
    }
    settings.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    return [f"--volume={settings}:/etc/pip.conf:ro", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"]


def _run(command: list[str], environment: dict[str, str]) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)}:\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
