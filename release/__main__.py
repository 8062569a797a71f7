"""The steps of a release as commands: python3 -m release STEP."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from release import chart, image, krew, packages, publishing, signing
from release.errors import ReleaseError
from release.notes import linked, section
from release.running import ROOT, tell
from release.versions import checked, names, version_of

DIST: Final = ROOT / "dist"
TOOLS: Final = ROOT / "build" / "release"
SBOM: Final = DIST / "kerf.cdx.json"

Arguments = argparse.Namespace


def check(given: Arguments) -> None:
    """The tag is of the version that everything says, and where things go is known."""
    tell(version=checked(ROOT, given.tag), **names(given.registry, given.repository))


def tools(given: Arguments) -> None:
    """What makes releases is installed, locked, in build/release."""
    packages.install_tools(TOOLS)


def wheel(given: Arguments) -> None:
    """Wheel and source, in dist/python."""
    for path in packages.build(TOOLS, DIST / "python"):
        print(path)


def sbom(given: Arguments) -> None:
    """What the image's Python has, in dist/kerf.cdx.json."""
    packages.write_sbom(TOOLS, packages.wheel_in(DIST / "python"), SBOM)


def plugin(given: Arguments) -> None:
    """kubectl's plugin, and krew's manifest of it, in dist."""
    archive = DIST / f"kubectl-kerf-v{version_of(ROOT)}.tar.gz"
    packages.build_plugin(TOOLS, packages.wheel_in(DIST / "python"), archive)
    told = krew.manifest(version_of(ROOT), archive, f"{given.home}/releases/download/v{version_of(ROOT)}", given.home)
    (DIST / "kerf.krew.yaml").write_text(told)


def build_image(given: Arguments) -> None:
    """An image for all platforms, pushed; its base and its digest are told."""
    base = image.base_image(image.dockerfile())
    digest = image.build(given.name, version_of(ROOT), base, given.purpose, given.home)
    tell(base=base, digest=digest)


def sign(given: Arguments) -> None:
    """An image or chart, by its digest."""
    signing.sign(given.reference, SBOM if given.sbom else None)


def pack_chart(given: Arguments) -> None:
    """The chart with the images by their digests, in dist."""
    of = chart.Image(given.image, given.digest), chart.Image(given.fit_image, given.fit_digest)
    print(chart.pack(version_of(ROOT), *of, DIST))


def push_chart(given: Arguments) -> None:
    """The packed chart, pushed; its name and digest are told."""
    digest = chart.push(DIST / f"kerf-{version_of(ROOT)}.tgz", given.to)
    tell(name=f"{given.to.removeprefix('oci://')}/kerf", digest=digest)


def sign_files(given: Arguments) -> None:
    """All files of dist."""
    for path in signing.sign_files(_files()):
        print(path)


def notes(given: Arguments) -> None:
    """What is new, as it stands in the changelog."""
    print(section((ROOT / "CHANGELOG.md").read_text(), version_of(ROOT)))


def publish(given: Arguments) -> None:
    """The release on GitHub, with all files of dist."""
    text = section((ROOT / "CHANGELOG.md").read_text(), version_of(ROOT))
    publishing.publish(given.tag, linked(text, f"{given.home}/blob/{given.tag}"), _files(signed=True))


def _files(*, signed: bool = False) -> list[Path]:
    found = sorted(path for path in DIST.rglob("*") if path.is_file())
    return [path for path in found if signed or not path.name.endswith(".sigstore.json")]


_HOME: Final = {"help": "address of the repository on the web", "required": True}
_OPTIONS: Final[dict[Callable[[Arguments], None], tuple[tuple[str, dict[str, object]], ...]]] = {
    check: (
        ("tag", {}),
        ("--registry", {"required": True}),
        ("--repository", {"required": True, "help": "OWNER/NAME"}),
    ),
    tools: (),
    wheel: (),
    sbom: (),
    plugin: (("--home", _HOME),),
    build_image: (
        ("name", {"help": "REGISTRY/OWNER/NAME"}),
        ("--purpose", {"choices": ("serve", "fit"), "default": "serve", "help": "the Dockerfile's FOR"}),
        ("--home", _HOME),
    ),
    sign: (("reference", {"help": "NAME@DIGEST"}), ("--sbom", {"action": "store_true", "help": "attest dist's SBOM"})),
    pack_chart: tuple((f"--{name}", {"required": True}) for name in ("image", "digest", "fit-image", "fit-digest")),
    push_chart: (("to", {"help": "oci://REGISTRY/OWNER/charts"}),),
    sign_files: (),
    notes: (),
    publish: (("tag", {}), ("--home", _HOME)),
}
_NAMES: Final[dict[Callable[[Arguments], None], str]] = {build_image: "image", pack_chart: "chart"}


def parser() -> argparse.ArgumentParser:
    """All steps and what each is given."""
    found = argparse.ArgumentParser("python3 -m release", description="The steps of a release.")
    steps = found.add_subparsers(required=True, metavar="STEP")
    for step, options in _OPTIONS.items():
        name = _NAMES.get(step, step.__name__.replace("_", "-"))
        of_step = steps.add_parser(name, help=step.__doc__, description=step.__doc__)
        of_step.set_defaults(step=step)
        for option, how in options:
            of_step.add_argument(option, **how)  # type: ignore[arg-type]
    return found


def main(words: Sequence[str]) -> int:
    """Do one step; the exit status."""
    given = parser().parse_args(words)
    try:
        given.step(given)
    except ReleaseError as error:
        prefix = "::error::" if os.environ.get("GITHUB_ACTIONS") else ""
        print(f"{prefix}{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
