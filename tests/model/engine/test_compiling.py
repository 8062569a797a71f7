"""What was compiled is used again, and only as long as nothing that went into it has changed."""

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

    assert left() == {".txt"}  # of sources that nobody knows
    assert left() == {".txt", ".nbi", ".nbc"}
    (room / "rules.py").write_text("ONE = 2")
    assert left() == {".txt"}
    assert left() == {".txt", ".nbi", ".nbc"}


def test_a_cache_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    _forget_what_is_out_of_date(tmp_path / "none", tmp_path)
    assert not (tmp_path / "none").exists()
