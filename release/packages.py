"""The Python packages: wheel and source, what is in the image as an SBOM, and kubectl's plugin in one file."""

import sys
import tempfile
from pathlib import Path
from typing import Final

from release.archives import tar_gz, zip_app
from release.errors import ReleaseError
from release.running import ROOT, epoch, run

REQUIREMENTS: Final = ROOT / "requirements"
_COMPILED: Final = (".so", ".pyd", ".dylib")
_LEFT_OUT: Final = ("bin", "extender/page/static")
_MAIN: Final = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("kubectl kerf needs Python 3.11 or newer, and python3 is " + sys.version.split()[0])
from extender.cli.client.kubectl_plugin import main

main()
"""


def install_tools(into: Path) -> None:
    """A virtual environment with what makes releases, locked. Raises ReleaseError."""
    run(sys.executable, "-m", "venv", into)
    locks = [part for name in ("bootstrap", "build", "release") for part in ("-r", REQUIREMENTS / f"{name}.txt")]
    _pip(into, "install", "--require-hashes", *locks)


def build(tools: Path, into: Path) -> list[Path]:
    """Wheel and source. Raises ReleaseError."""
    dated = {"SOURCE_DATE_EPOCH": str(epoch())}
    run(
        tools / "bin" / "python",
        "-m",
        "hatchling",
        "build",
        "--target",
        "sdist",
        "--target",
        "wheel",
        "-d",
        into,
        env=dated,
    )
    return sorted(into.glob("kerf-*"))


def wheel_in(folder: Path) -> Path:
    """The one wheel of Kerf's in a folder. Raises ReleaseError."""
    found = list(folder.glob("kerf-*.whl"))
    if len(found) != 1:
        raise ReleaseError(f"{folder} has {len(found)} wheels of Kerf's, not one")
    return found[0]


def write_sbom(tools: Path, wheel: Path, target: Path) -> None:
    """What the image's Python has, as CycloneDX: installed as by the Dockerfile, and looked at. Raises ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="kerf-sbom-") as folder:
        serving = Path(folder) / "kerf"
        run(sys.executable, "-m", "venv", "--without-pip", serving)
        python = ("--python", serving / "bin" / "python")
        _pip(tools, *python, "install", "--require-hashes", "--only-binary", ":all:", "-r", REQUIREMENTS / "serve.txt")
        _pip(tools, *python, "install", "--no-deps", "--no-index", wheel)
        write_sbom_of(tools, serving / "bin" / "python", target)


def write_sbom_of(tools: Path, python: Path, target: Path) -> None:
    """What an interpreter can import, as CycloneDX. Raises ReleaseError."""
    how = ("--output-reproducible", "--output-format", "JSON", "--pyproject", ROOT / "pyproject.toml")
    target.parent.mkdir(parents=True, exist_ok=True)
    run(tools / "bin" / "cyclonedx-py", "environment", *how, "--output-file", target, python)


def build_plugin(tools: Path, wheel: Path, target: Path) -> None:
    """`kubectl-kerf` and its licence as an archive for every platform that has Python. Raises ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="kerf-plugin-") as folder:
        modules = Path(folder)
        lock = REQUIREMENTS / "plugin.txt"
        _pip(tools, "install", "--target", modules, "--require-hashes", "--only-binary", ":all:", "-r", lock)
        _pip(tools, "install", "--target", modules, "--no-deps", "--no-index", "--no-compile", wheel)
        for path in list(modules.rglob("*")):
            name = path.relative_to(modules).as_posix()
            if path.is_file() and (name.endswith(_COMPILED) or "__pycache__" in name or name.startswith(_LEFT_OUT)):
                path.unlink()  # PyYAML does without, and the rest is one platform's, or nobody's
        program = zip_app(modules, _MAIN, epoch())
    licence = (ROOT / "LICENSE").read_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    tar_gz(target, {"kubectl-kerf": (program, True), "LICENSE": (licence, False)}, epoch())


def _pip(tools: Path, *words: str | Path) -> None:
    run(tools / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", *words)
