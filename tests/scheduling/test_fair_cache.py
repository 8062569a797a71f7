"""Bounded memory of pods: who has most in it gives way."""

from extender.scheduling.fair_cache import FairCache


def test_what_is_put_is_there_until_it_is_taken() -> None:
    cache: FairCache[str] = FairCache(10)
    cache.put("a", "u1", "one", 1.0)
    cache.put("b", "u1", "moved", 2.0)
    cache.put("a", "u2", "two", 3.0)
    assert (cache.get("u1"), cache.get("u3"), len(cache), "u2" in cache) == ("moved", None, 2, True)
    assert list(cache.of("b")) == [("u1", "moved")]
    assert (cache.pop("u1"), cache.pop("u1"), list(cache.values())) == ("moved", None, ["two"])
    cache.clear()
    assert not len(cache)


def test_who_makes_many_pods_has_his_own_forgotten() -> None:
    cache: FairCache[int] = FairCache(100)
    for number in range(10):
        cache.put("good", f"good-{number}", number, 0.0)
    for number in range(1_000):
        cache.put("hostile", f"hostile-{number}", number, 1.0)
    assert all(f"good-{number}" in cache for number in range(10))
    assert [value for _, value in cache.of("hostile")] == list(range(910, 1_000))


def test_what_weighs_more_leaves_less_room() -> None:
    cache: FairCache[int] = FairCache(100)
    for number in range(100):
        cache.put("hostile", str(number), number, 0.0, weight=17)
    assert len(cache) == 5
    cache.put("good", "g", 0, 0.0)
    assert "g" in cache


def test_what_is_old_is_forgotten_and_what_is_put_again_is_new() -> None:
    cache: FairCache[int] = FairCache(100)
    for number, uid in enumerate(["a", "b", "c", "a"]):
        cache.put("ns", uid, number, float(number))
    cache.put("other", "d", 9, 0.5)
    cache.expire(2.0)
    assert [uid for uid, _ in cache.of("ns")] == ["c", "a"]
    assert "d" not in cache
