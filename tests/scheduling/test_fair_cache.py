"""A bounded cache by pod: the namespace with the most in it loses its oldest."""

from extender.scheduling.fair_cache import FairCache


def test_a_value_is_there_until_it_is_removed() -> None:
    cache: FairCache[str] = FairCache(10)
    cache.put("a", "u1", "one", 1.0)
    cache.put("b", "u1", "moved", 2.0)
    cache.put("a", "u2", "two", 3.0)
    assert (cache.get("u1"), cache.get("u3"), len(cache), "u2" in cache) == ("moved", None, 2, True)
    assert list(cache.values()) == ["moved", "two"]
    assert (cache.pop("u1"), cache.pop("u1"), list(cache.values())) == ("moved", None, ["two"])
    cache.clear()
    assert not len(cache)


def test_a_namespace_with_many_pods_has_its_own_forgotten() -> None:
    cache: FairCache[int] = FairCache(100)
    for number in range(10):
        cache.put("good", f"good-{number}", number, 0.0)
    for number in range(1_000):
        cache.put("hostile", f"hostile-{number}", number, 1.0)
    assert list(cache.values()) == [*range(10), *range(910, 1_000)]


def test_heavier_values_leave_less_room() -> None:
    cache: FairCache[int] = FairCache(100)
    for number in range(100):
        cache.put("hostile", str(number), number, 0.0, weight=17)
    assert len(cache) == 5
    cache.put("good", "g", 0, 0.0)
    assert "g" in cache


def test_old_values_expire_and_one_that_is_put_again_is_new() -> None:
    cache: FairCache[int] = FairCache(100)
    for number, uid in enumerate(["a", "b", "c", "a"]):
        cache.put("ns", uid, number, float(number))
    cache.put("other", "d", 9, 0.5)
    cache.expire(2.0)
    assert list(cache.values()) == [2, 3]
