"""Archives that come out the same, byte for byte, whoever packs them: sorted, dated to the commit, owned by nobody."""

import gzip
import io
import stat
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_EXECUTABLE: Final = 0o755
_PLAIN: Final = 0o644


def tar_gz(target: Path, members: Mapping[str, tuple[bytes, bool]], epoch: int) -> None:
    """Write a .tar.gz; `members` are contents by name, and whether each is to be executed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, executable) in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, _EXECUTABLE if executable else _PLAIN
            archive.addfile(entry, io.BytesIO(content))
    with target.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


def zip_app(folder: Path, main: str, epoch: int) -> bytes:
    """A Python program in one file: the modules of a folder, and the text of its `__main__`."""
    date = time.gmtime(max(epoch, 315_532_800))[:6]  # a zip begins in 1980
    members = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    packed = io.BytesIO()
    packed.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted({**members, "__main__.py": main.encode()}.items()):
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | _PLAIN) << 16
            archive.writestr(entry, content)
    return packed.getvalue()
