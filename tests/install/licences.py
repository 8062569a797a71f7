"""Writes docs/reference/licences.md: what the service is installed with, and under which licences: `make licences`."""

import re
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "licences.md"

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0"),
        *("CNRI-Python", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
    }
)
"""Licences, by SPDX, that allow use and distribution beside Apache-2.0 without conditions on Kerf's own source."""
_NAMES = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "PSFL": "PSF-2.0",
}
"""What packages say that name no SPDX expression."""
_UNSAID = {"axe-playwright-python": "MIT AND MPL-2.0"}
"""What is in the files of packages whose metadata names none."""
_HEAD = """\
# Licences

What is installed with Kerf's service (`requirements/serve.txt`), and under which licences; Kerf itself is Apache-2.0.
Written by `make licences` from the packages' own metadata; a test compares it with what is locked, and refuses licences
that are not in its list. For known vulnerabilities: `pip-audit --require-hashes -r requirements/serve.txt`.

| package | licence |
|---|---|
"""


@dataclass(frozen=True)
class Locked:
    """A line of a lock file."""

    name: str
    version: str
    num_hashes: int


def locked(path: Path) -> list[Locked]:
    """What a lock file names, for whatever platform."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    found = [(re.match(r"([A-Za-z0-9_.-]+)==([^\s;]+)", line), line.count("--hash=")) for line in lines]
    return [Locked(match[1], match[2], hashes) for match, hashes in found if match is not None]


def licence_of(name: str) -> str | None:
    """The SPDX expression of an installed package, what it says where that is none; None where it isn't installed."""
    found = next(iter(metadata.distributions(name=name, path=[sysconfig.get_path("purelib")])), None)
    if found is None:  # copies that Ray puts on the path of imports do not count
        return None
    about = found.metadata
    if "License-Expression" in about:
        return about["License-Expression"]
    if name in _UNSAID:
        return _UNSAID[name]
    said = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if text.startswith("License ::")]
    said = [text for text in said if text != "OSI Approved"] or [
        about["License"].strip().split("\n")[0] if "License" in about else ""
    ]
    return " OR ".join(sorted({_NAMES.get(text, text) for text in said}))


def allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met by licences of the list."""
    words = expression.replace("(", " ").replace(")", " ")
    return any(
        all(name.strip().partition(" WITH ")[0] in ALLOWED for name in choice.split(" AND "))
        for choice in words.split(" OR ")
    )


def page() -> str:
    """docs/reference/licences.md as it should be."""
    rows = {(item.name, licence_of(item.name)) for item in locked(ROOT / "requirements" / "serve.txt")}
    lines = [f"| {name} | {licence} |\n" for name, licence in sorted(rows, key=str) if licence is not None]
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
