"""How functions are compiled. Needs numba, which the service does without: import it only where simulations run."""

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
    """Compile on first use and keep the result on disk; where no folder is writable, compile in each process.

    Other threads run meanwhile: who shares arrays between them sees to it.
    """
    try:
        made: Any = numba.njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:  # numba: "no locator available"
        made = numba.njit(error_model="numpy", nogil=True)(function)
    return cast("_Function", made)


def _forget_what_is_out_of_date(cache: Path, *rooms: Path) -> None:
    """Remove what was compiled from other sources than those that the rooms hold now.

    numba looks at the file of the function alone: it would go on with what another module held before, and can't read a
    cache that names a module which has gone.
    """
    digest = hashlib.sha256()
    for room in rooms:
        for source in sorted(room.rglob("*.py")):
            digest.update(source.read_bytes())
    stamp = cache / "compiled-from"
    with contextlib.suppress(OSError):  # what can't be written to numba leaves alone, too
        if not stamp.exists() or stamp.read_text() != digest.hexdigest():
            for kept in cache.glob("*.nb[ic]"):
                kept.unlink(missing_ok=True)
            stamp.write_text(digest.hexdigest())


_forget_what_is_out_of_date(_ENGINE / "__pycache__", _ENGINE, Path(extender.core.__file__).parent)
