"""The annotation by which a node is set aside, or never is: the one place where that is written down.

Kerf writes it, the leader alone; whoever looks after the cluster writes `never`, or removes it. It is a note and no
taint: pods that run there go on, and pods that are not Kerf's to place come.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from extender.plugins.protocol import UnreadableError

SET_ASIDE: Final = "kerf.dev/set-aside"
"""JSON: see `Note`; or `never`."""
NEVER: Final = "never"
MAX_TIMES: Final = 32
_MAX_CHARS: Final = 1024

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**34)]
_Text = Annotated[str, msgspec.Meta(max_length=160)]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node is set aside, and for how long."""

    pods: _Count
    """That failed on it soon after their start."""
    namespaces: _Count
    """That these are of."""
    since: _Seconds
    """Unix time at which it was set aside, or opened on trial."""
    until: _Seconds
    """Unix time at which it is opened again."""
    times: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMES)] = 1
    """In a row, without a pod that has lived well in between."""
    boot: _Text = ""
    """Of the node's kernel: another one has started since where this is not the node's."""
    trial: bool = False
    """Whether it is open again, and one failure of each of as many namespaces sets it aside anew."""


_decoder: Final = msgspec.json.Decoder(Note)


def read_note(annotations: Mapping[str, str]) -> Note | None:
    """What is written on a node, None where it is nothing, or `never`. Raises UnreadableError."""
    text = annotations.get(SET_ASIDE, "").strip()
    if not text or text.lower() == NEVER:
        return None
    try:
        if len(text) > _MAX_CHARS:
            raise UnreadableError(f"{len(text)} characters, more than {_MAX_CHARS}")
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError, UnreadableError) as error:
        raise UnreadableError(f'{SET_ASIDE} is ignored: write "{NEVER}", or remove it: {str(error)[:200]}') from None


def num_failed(annotations: Mapping[str, str]) -> int:
    """Pods that failed on a node that takes no more for that; 0 where it takes pods. Raises UnreadableError."""
    note = read_note(annotations)
    return 0 if note is None or note.trial else note.pods


def is_exempt(annotations: Mapping[str, str]) -> bool:
    """Whether Kerf is to leave a node alone: somebody has written so, or something that can't be read."""
    try:
        return bool(annotations.get(SET_ASIDE, "").strip()) and read_note(annotations) is None
    except UnreadableError:
        return True


def text_of(note: Note) -> str:
    """A note as its annotation has it."""
    return msgspec.json.encode(note).decode()
