"""A history's folder as a tar archive, made while it is sent."""

import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from extender.history import files, journals

_CHUNK_BYTES: Final = 2**18


def opened(directory: Path) -> list[tuple[str, BinaryIO]]:
    """The files of a history by name, opened: what is made columns of meanwhile is in one form or the other."""
    names = [path.name for path in sorted(directory.glob(journals.PATTERN))]  # first: they go once they are in columns
    names += [files.OPEN, files.NODES, files.MANIFEST, *(path.name for path in files.parts_of(directory))]
    found: list[tuple[str, BinaryIO]] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found.append((name, (directory / name).open("rb")))
    return found


def archive(members: list[tuple[str, BinaryIO]]) -> Iterator[bytes]:
    """Chunks of the archive; closes the files. Of one that grows meanwhile what was there at first."""
    with contextlib.ExitStack() as stack:
        for _, file in members:
            stack.enter_context(file)
        for name, file in members:
            size = file.seek(0, 2)
            file.seek(0)
            header = tarfile.TarInfo(name)
            header.size = size
            yield header.tobuf()
            left = size
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:  # cut short: whoever reads it hears of that by the archive's end
                    return
                left -= len(chunk)
                yield chunk
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)
