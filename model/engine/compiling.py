"""Compilation with numba. The service has no numba: import this only in simulations."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

import extender.core

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ENGINE: Final = Path(__file__).parent


def compiled(function: _Function) -> _Function:
    """Compile on first use and cache the result on disk; if no folder is writable, compile in each process.

    Compiled functions release the GIL: callers must synchronise access to shared arrays.
    """
    try:
        jitted: Any = numba.njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:  # numba: "no locator available"
        jitted = numba.njit(error_model="numpy", nogil=True)(function)
    return cast("_Function", jitted)


def _forget_what_is_out_of_date(cache: Path, *folders: Path) -> None:
    """Clear the cache if any source file in `folders` has changed.

    numba only checks the file of the function itself: it would keep inlined code of other modules, and fails on a cache
    that names a removed module.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    stamp = cache / "compiled-from"
    with contextlib.suppress(OSError):  # numba doesn't use a folder that isn't writable either
        if not stamp.exists() or stamp.read_text() != digest.hexdigest():
            for file in cache.glob("*.nb[ic]"):
                file.unlink(missing_ok=True)
            stamp.write_text(digest.hexdigest())


_forget_what_is_out_of_date(_ENGINE / "__pycache__", _ENGINE, Path(extender.core.__file__).parent)
