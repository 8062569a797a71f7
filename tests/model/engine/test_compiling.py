"""The cache of compiled functions."""

from pathlib import Path

from model.engine.compiling import _forget_what_is_out_of_date


def test_what_is_compiled_goes_when_any_source_changes(tmp_path: Path) -> None:
    cache, room = tmp_path / "cache", tmp_path / "room"
    cache.mkdir()
    room.mkdir()
    (room / "rules.py").write_text("ONE = 1")
    (cache / "other.txt").touch()

    def left() -> set[str]:
        for name in ("kernels.nbi", "kernels.1.nbc"):
            (cache / name).touch()
        _forget_what_is_out_of_date(cache, room)
        return {path.suffix for path in cache.iterdir()} - {""}

    assert left() == {".txt"}  # of unknown sources
    assert left() == {".txt", ".nbi", ".nbc"}
    (room / "rules.py").write_text("ONE = 2")
    assert left() == {".txt"}
    assert left() == {".txt", ".nbi", ".nbc"}
    _forget_what_is_out_of_date(tmp_path / "none", room)
    assert not (tmp_path / "none").exists()
