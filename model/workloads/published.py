"""Downloads of public traces from the repositories that publish them, verified by checksum.

Files appear only when complete: each is written under another name, checked, and renamed. Existing files with the
right checksum are not fetched again, so that an interrupted run can be continued.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import requests

_OPENB: Final = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/"
    "7a6c496e4f4b6ce6150be8f881cb051bf2abff42/cluster-trace-gpu-v2023/csv"
)
_PHILLY: Final = (
    "https://raw.githubusercontent.com/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/traces"
)
_TIMEOUT_S: Final = 30.0
_CHUNK: Final = 1 << 16
PHILLY: Final = "philly.csv"
PHILLY_PART: Final = "philly_2017-09_10.csv"
_PART: Final = (b"timestamp,", b"2017-09-", b"2017-10-")
"""Prefixes of the lines that are kept: heading, and the months behind Kerf's figures. One line has no time."""


class FetchError(Exception):
    """A file that can't be fetched or has a wrong checksum; the message names it and a remedy."""


@dataclass(frozen=True)
class TraceFile:
    """A file of a published trace."""

    name: str
    base: str
    """URL of its folder."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class PublishedTrace:
    """Files of one trace."""

    files: tuple[TraceFile, ...]
    licence: str
    """Owner, and licence or where to find it."""


def _openb(name: str, num_bytes: int, sha256: str) -> TraceFile:
    return TraceFile(f"openb_{name}.csv", _OPENB, num_bytes, sha256)


TRACES: Final = {
    "openb": PublishedTrace(
        (
            _openb("node_list_gpu_node", 42353, "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5"),
            _openb("node_list_all_node", 52287, "5a85c2af79c66a1efff8bbcbda430400aae56d8431370d738480967e1a9c6b15"),
            _openb("pod_list_default", 575468, "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8"),
            _openb("pod_list_cpu050", 525811, "747f43247bffc2b0bb081d7f61f0705ca8d390dafc0b647e642c92f3baf3ba1e"),
            _openb("pod_list_cpu200", 622703, "b7e9d8a1a601da84d6e0b4110b19ef5001be5e4796d33e7b82f166ba95161f87"),
            _openb("pod_list_gpushare40", 572662, "d83ce79a4eb6987524bedbb0c65e41aed3a36bf6c1b78b86234c3687a07e1d40"),
            _openb("pod_list_gpushare100", 561220, "12dbc07d6a49bf8641e2275a2ff5bf7be74b5df7d148d531e135b140b95f9a3d"),
            _openb("pod_list_gpuspec10", 579461, "2dc7e4cb9480484f08539720b433a9ec9ab5d76b396f3f7557c53a2ff78a7611"),
            _openb("pod_list_gpuspec33", 587467, "eca4f746db1e5b25864ad021b55ece3943e101a3ebd4574d09dcb95c46117652"),
            _openb("pod_list_multigpu20", 271530, "d9ec6f6c74fb980cc0b81239470c6353fceea077ea9abd610003b604c7cc2b01"),
            _openb("pod_list_multigpu50", 297219, "206f2f5959db30ecb7c44e7f13197c8ec50b7a35558ad3777cc3662ef0fe5373"),
        ),
        "Alibaba, cluster-trace-gpu-v2023: see github.com/alibaba/clusterdata",
    ),
    "philly": PublishedTrace(
        (TraceFile(PHILLY, _PHILLY, 3444496, "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da"),),
        "Microsoft, CC-BY-4.0: see github.com/msr-fiddle/philly-traces; in the format of petuum/adaptdl",
    ),
}


def fetch(
    name: str, trace: PublishedTrace, out: Path, source: str | None, on_step: Callable[[str], None]
) -> list[Path]:
    """Fetch the files of a trace into `out/name`, from the mirror `source` (a folder or a URL) if given.

    Returns their paths. Raises FetchError, OSError, and ValueError if the mirror is neither.
    """
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for file in trace.files:
        path = folder / file.name
        on_step(file.name)
        if not (path.is_file() and path.stat().st_size == file.num_bytes and _sum_of(path) == file.sha256):
            _write(path, _checked(_chunks(file, source), file))
        found.append(path)
        if file.name == PHILLY:
            part = folder / PHILLY_PART
            _write(part, (line for line in path.read_bytes().splitlines(keepends=True) if line.startswith(_PART)))
            found.append(part)
    return found


def _sum_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a file atomically."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as written:
        partial = Path(written.name)
        try:
            for chunk in chunks:
                written.write(chunk)
            written.flush()
            partial.chmod(0o644)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _checked(chunks: Iterator[bytes], file: TraceFile) -> Iterator[bytes]:
    """Pass chunks through. Raises FetchError as soon as there are too many bytes, and at the end on a mismatch."""
    digest, num_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        num_bytes += len(chunk)
        if num_bytes > file.num_bytes:
            break
        yield chunk
    if num_bytes != file.num_bytes or digest.hexdigest() != file.sha256:
        raise FetchError(
            f"{file.name}: not the published file (SHA-256 {file.sha256}, {file.num_bytes} bytes; "
            f"got {'more bytes' if num_bytes > file.num_bytes else f'{digest.hexdigest()}, {num_bytes} bytes'})"
        )


def _chunks(file: TraceFile, source: str | None) -> Iterator[bytes]:
    """Yield a file's bytes from its publisher or a mirror. Raises FetchError, ValueError."""
    base = file.base if source is None else source
    scheme = urlsplit(base).scheme
    if scheme not in ("http", "https"):
        if "://" in base:
            raise ValueError(f"--from {base}: write a folder, or a URL with http:// or https://")
        yield from _of_folder(Path(base), file.name)
        return
    url = f"{base.rstrip('/')}/{PurePosixPath(file.name)}"
    try:
        with requests.get(url, timeout=_TIMEOUT_S, stream=True) as response:
            if response.status_code != requests.codes.ok:
                raise FetchError(f"{url}: status {response.status_code}")
            yield from response.iter_content(_CHUNK)
    except requests.RequestException as error:
        raise FetchError(
            f"{url}: can't be fetched ({type(error).__name__}). Without access to it, copy the file from a machine "
            "that has access, and name its folder or a mirror with --from; kerf simulate demo needs no file"
        ) from None


def _of_folder(folder: Path, name: str) -> Iterator[bytes]:
    try:
        yield (folder / name).read_bytes()
    except OSError as error:
        raise FetchError(f"{folder / name}: {error.strerror or error}") from None
