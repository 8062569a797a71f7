"""What a release is made of, piece by piece: versions that agree, notes, values, references."""

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


def test_a_versions_section_is_its_own() -> None:
    assert section(CHANGELOG, "1.1.0") == "### Fixed\n- one\n"
    assert section(CHANGELOG, "1.10.0").startswith("- ten")


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("1.0.0", "says nothing of 1.0.0"),
        ("1.1", "has no section 1.1"),
        ("2.0.0", r"rename \[Unreleased\] to \[2.0.0\]"),
    ],
)
def test_a_version_of_which_nothing_is_said_is_not_released(version: str, fault: str) -> None:
    with pytest.raises(ReleaseError, match=fault):
        section(CHANGELOG, version)


def test_links_of_notes_lead_to_the_tag() -> None:
    blob = "https://forge.example/o/r/blob/v1.10.0"
    text = linked(section(CHANGELOG, "1.10.0"), blob)
    assert f"[guide]({blob}/docs/guides/install.md)" in text
    assert "[page](https://example.com/x)" in text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that name the version, as they are; but the changelog has a section for it."""
    for name in (
        *("pyproject.toml", "extender/__init__.py", "manifests/helm/kerf/Chart.yaml"),
        *("manifests/install.yaml", "manifests/static-pod/kerf.yaml"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## [{version_of(ROOT)}] - 2026-12-01\n- first\n")
    return tmp_path


def test_the_checkout_agrees_with_itself(checkout: Path) -> None:
    assert checked(checkout, f"v{version_of(ROOT)}") == version_of(ROOT)


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v0.1.0-rc.1", "latest", "", "v0.1.0\nx"])
def test_a_tag_that_is_no_releases_is_refused(checkout: Path, tag: str) -> None:
    with pytest.raises(ReleaseError, match=r"a release's is vX\.Y\.Z"):
        checked(checkout, tag)


def test_all_that_disagrees_is_said_at_once(checkout: Path) -> None:
    version = version_of(ROOT)
    for name in ("manifests/helm/kerf/Chart.yaml", "manifests/static-pod/kerf.yaml"):
        path = checkout / name
        path.write_text(path.read_text().replace(version, "9.9.9"))
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n- x\n")
    with pytest.raises(ReleaseError) as error:
        checked(checkout, "v8.8.8")
    lines = str(error.value).splitlines()
    assert lines[0] == f"tag v8.8.8, but pyproject.toml has {version}"
    assert "Chart.yaml has 9.9.9" in lines[1]
    assert "static-pod/kerf.yaml has 9.9.9" in lines[2]
    assert "no section" in lines[3]


def test_references_are_in_lower_case_whatever_the_owner_is_called() -> None:
    assert names("registry.example:5000/mirror", "Team/Kerf") == {
        "image": "registry.example:5000/mirror/team/kerf",
        "fit_image": "registry.example:5000/mirror/team/kerf-fit",
        "charts": "oci://registry.example:5000/mirror/team/charts",
    }


@pytest.mark.parametrize(
    ("registry", "repository", "fault"),
    [
        ("", "o/r", "set the repository's variable REGISTRY"),
        ("https://registry.example", "o/r", "no registry"),
        ("registry.example; rm", "o/r", "no registry"),
        ("registry.example", "o", "no OWNER/NAME"),
        ("registry.example", "o/r/x", "no OWNER/NAME"),
    ],
)
def test_what_is_no_place_for_images_is_refused(registry: str, repository: str, fault: str) -> None:
    with pytest.raises(ReleaseError, match=fault):
        names(registry, repository)


def test_values_are_stamped_in_their_places_and_nothing_else_changes() -> None:
    before = (CHART / "values.yaml").read_text()
    after = stamped(before, Image("registry.example/kerf", DIGEST), Image("registry.example/kerf-fit", DIGEST))
    was, now = yaml.safe_load(before), yaml.safe_load(after)
    assert (now["image"]["repository"], now["image"]["digest"]) == ("registry.example/kerf", DIGEST)
    assert (now["learning"]["image"]["repository"], now["learning"]["image"]["digest"]) == (
        "registry.example/kerf-fit", DIGEST,
    )  # fmt: skip
    for values in (was, now):
        for image in (values["image"], values["learning"]["image"]):
            del image["repository"], image["digest"]
    assert was == now
    assert len(before.splitlines()) == len(after.splitlines())
    with pytest.raises(ReleaseError, match=r"not one empty image.repository"):
        stamped(after, Image("x", DIGEST), Image("y", DIGEST))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 3}', '{"digest": "sha256:abc"}'])
def test_what_is_no_digest_pins_nothing(text: str) -> None:
    with pytest.raises(ReleaseError):
        digest_in(text, "digest")
    assert digest_in(json.dumps({"digest": DIGEST}), "digest") == DIGEST


def test_a_dockerfile_without_a_base_is_told() -> None:
    with pytest.raises(ReleaseError, match="names no base"):
        base_image("FROM scratch\n")


@pytest.mark.parametrize("url", ["http://x/y", "https://x/y z", "", 'https://x/"y'])
def test_krew_downloads_from_an_address_alone(tmp_path: Path, url: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"x")
    with pytest.raises(ReleaseError, match="no address"):
        manifest("1.0.0", archive, url, "https://forge.example/o/r")


def test_an_output_is_one_line() -> None:
    with pytest.raises(ReleaseError, match="more than one line"):
        tell(version="1\nother=2")


def test_a_chart_that_was_bumped_by_half_is_noticed(checkout: Path) -> None:
    """Its `appVersion` is the tag of the image."""
    path = checkout / "manifests/helm/kerf/Chart.yaml"
    path.write_text(path.read_text().replace(f"appVersion: {version_of(ROOT)}", "appVersion: 0.0.9"))
    with pytest.raises(ReleaseError, match=r"Chart\.yaml has 0\.0\.9, .*, but"):
        checked(checkout, f"v{version_of(ROOT)}")
