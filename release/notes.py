"""What is new in a version, from CHANGELOG.md."""

import re

from release.errors import ReleaseError


def section(changelog: str, version: str) -> str:
    """A version's section without its heading. Raises ReleaseError where there is none, or it says nothing."""
    parts = re.split(r"^## +(.+)$", changelog, flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if re.match(rf"\[?{re.escape(version)}\]?(?![\w.])", heading):
            if not text.strip():
                raise ReleaseError(f"CHANGELOG.md says nothing of {version}")
            return text.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section {version}: rename [Unreleased] to [{version}] - YYYY-MM-DD")


def linked(text: str, blob: str) -> str:
    """Notes whose links into the checkout lead to a place on the web, `blob`, such as .../blob/v0.1.0."""
    return re.sub(r"\]\((?![a-z]+://|#|mailto:)([^)\s]+)\)", lambda match: f"]({blob}/{match[1]})", text)
