"""The parts of a release: versions, notes, values, references."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from release.chart import CHART, Image, stamped
from release.errors import ReleaseError
from release.image import base_image, digest_in
from release.krew import manifest
from release.notes import linked, section
from release.running import tell
from release.versions import checked, names, version_of
from tests.docs.pages import ROOT

DIGEST = "sha256:" + "a" * 64
CHANGELOG = """\
# Changelog
## [Unreleased]
### Added
- something to come
## [1.10.0] - 2026-11-01
- ten, with a [guide](docs/guides/install.md) and a [page](https://example.com/x)
## [1.1.0] - 2026-10-01
### Fixed
- one
## 1.0.0

"""


def test_notes_are_a_versions_own_section_with_links_to_the_tag() -> None:
    assert section(CHANGELOG, "1.1.0") == "### Fixed\n- one\n"
    blob = "https://forge.example/o/r/blob/v1.10.0"
    assert linked(section(CHANGELOG, "1.10.0"), blob) == (
        f"- ten, with a [guide]({blob}/docs/guides/install.md) and a [page](https://example.com/x)\n"
    )
    for version, fault in (
        ("1.0.0", "says nothing of 1.0.0"),
        ("1.1", "has no section 1.1"),
        ("2.0.0", r"rename \[Unreleased\] to \[2.0.0\]"),
    ):
        with pytest.raises(ReleaseError, match=fault):
            section(CHANGELOG, version)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that name the version, and a changelog with a section for it."""
    for name in (
        *("pyproject.toml", "extender/__init__.py", "manifests/helm/kerf/Chart.yaml"),
        *("manifests/install.yaml", "manifests/static-pod/kerf.yaml"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## [{version_of(ROOT)}] - 2026-12-01\n- first\n")
    return tmp_path


def replaced(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def test_a_tag_has_to_be_of_the_version_that_the_checkout_names(checkout: Path) -> None:
    version = version_of(ROOT)
    assert checked(checkout, f"v{version}") == version
    for tag in ("0.1.0", "v0.1", "v0.1.0-rc.1", "", "v0.1.0\nx"):
        with pytest.raises(ReleaseError, match=r"a release's is vX\.Y\.Z"):
            checked(checkout, tag)
    chart = checkout / "manifests/helm/kerf/Chart.yaml"
    replaced(chart, f"appVersion: {version}", "appVersion: 0.0.9")  # the tag of the image
    with pytest.raises(ReleaseError, match=r"Chart\.yaml has 0\.0\.9, .*, but"):
        checked(checkout, f"v{version}")


def test_all_that_disagrees_is_said_at_once(checkout: Path) -> None:
    version = version_of(ROOT)
    for name in ("manifests/helm/kerf/Chart.yaml", "manifests/static-pod/kerf.yaml"):
        replaced(checkout / name, version, "9.9.9")
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n- x\n")
    with pytest.raises(ReleaseError) as error:
        checked(checkout, "v8.8.8")
    tag, chart, static_pod, changelog = str(error.value).splitlines()
    assert tag == f"tag v8.8.8, but pyproject.toml has {version}"
    assert "Chart.yaml has 9.9.9" in chart and "static-pod/kerf.yaml has 9.9.9" in static_pod
    assert "no section" in changelog


def test_references_are_in_lower_case_whatever_the_owner_is_called() -> None:
    assert names("registry.example:5000/mirror", "Team/Kerf") == {
        "image": "registry.example:5000/mirror/team/kerf",
        "fit_image": "registry.example:5000/mirror/team/kerf-fit",
        "charts": "oci://registry.example:5000/mirror/team/charts",
    }
    for registry, repository, fault in (
        ("", "o/r", "set the repository's variable REGISTRY"),
        ("https://registry.example", "o/r", "no registry"),
        ("registry.example; rm", "o/r", "no registry"),
        ("registry.example", "o", "no OWNER/NAME"),
        ("registry.example", "o/r/x", "no OWNER/NAME"),
    ):
        with pytest.raises(ReleaseError, match=fault):
            names(registry, repository)


def test_values_are_stamped_in_their_places_and_nothing_else_changes() -> None:
    before = (CHART / "values.yaml").read_text()
    after = stamped(before, Image("registry.example/kerf", DIGEST), Image("registry.example/kerf-fit", DIGEST))
    was, now = yaml.safe_load(before), yaml.safe_load(after)
    was["image"] |= {"repository": "registry.example/kerf", "digest": DIGEST}
    was["learning"]["image"] |= {"repository": "registry.example/kerf-fit", "digest": DIGEST}
    assert was == now
    assert len(before.splitlines()) == len(after.splitlines())
    with pytest.raises(ReleaseError, match=r"not one empty image.repository"):
        stamped(after, Image("x", DIGEST), Image("y", DIGEST))


def test_what_can_not_be_read_or_written_safely_is_refused(tmp_path: Path) -> None:
    assert digest_in(json.dumps({"digest": DIGEST}), "digest") == DIGEST
    for text in ("", "[]", "{}", '{"digest": 3}', '{"digest": "sha256:abc"}'):
        with pytest.raises(ReleaseError):
            digest_in(text, "digest")
    with pytest.raises(ReleaseError, match="names no base"):
        base_image("FROM scratch\n")
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"x")
    for url in ("http://x/y", "https://x/y z", "", 'https://x/"y'):
        with pytest.raises(ReleaseError, match="no address"):
            manifest("1.0.0", archive, url, "https://forge.example/o/r")
    with pytest.raises(ReleaseError, match="more than one line"):
        tell(version="1\nother=2")
