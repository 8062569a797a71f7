"""To which pod a node's report belongs, where it knows pods by name alone: never to one that came after."""

from extender.ledger.rows import _GivenGpus

ONE, TWO = ("GPU-1",), ("GPU-2",)
NAME = "ns/p"


def running() -> _GivenGpus:
    """After the pods that there are were listed once."""
    found = _GivenGpus()
    found.starting = False
    return found


def test_what_was_given_to_a_name_is_that_of_the_pod_that_had_it() -> None:
    given = running()
    assert given.set("n", {NAME: ONE}, {NAME: "u"})
    assert given.of("n", NAME, "u") == ONE
    assert given.of("n", NAME, "another") is None
    assert given.of("n", "", "u") is None
    assert given.of("m", NAME, "u") is None


def test_a_new_pod_of_a_name_gets_nothing_of_the_one_before() -> None:
    given = running()
    given.set("n", {NAME: ONE}, {NAME: "old"})
    # Told again, with something else besides: what the name has had all along is the old one's.
    assert given.set("n", {NAME: ONE, "ns/q": TWO}, {NAME: "new", "ns/q": "q"})
    assert (given.of("n", NAME, "old"), given.of("n", NAME, "new")) == (ONE, None)
    # Other GPUs: these were given to the new one.
    given.set("n", {NAME: TWO}, {NAME: "new"})
    assert (given.of("n", NAME, "old"), given.of("n", NAME, "new")) == (None, TWO)


def test_a_name_that_has_no_pod_any_more_is_nobodys() -> None:
    given = running()
    given.set("n", {NAME: ONE}, {NAME: "u"})
    given.set("n", {NAME: TWO}, {})
    assert given.of("n", NAME, "u") is None
    given.meet("n", NAME, "new")  # it comes when all were listed: not the one that was given them
    assert given.of("n", NAME, "new") is None


def test_a_name_without_a_pod_waits_for_one_only_until_all_were_listed() -> None:
    starting, later = _GivenGpus(), running()
    for given in (starting, later):
        given.set("n", {NAME: ONE}, {})
        given.meet("n", NAME, "u")
        given.meet("m", NAME, "u")
    assert starting.of("n", NAME, "u") == ONE  # it was there all along, and is only told of now
    assert later.of("n", NAME, "u") is None
    starting.meet("n", NAME, "another")
    assert (starting.of("n", NAME, "u"), starting.of("n", NAME, "another")) == (ONE, None)
    # A node that says more meanwhile takes nothing from whom was met, and gives nothing away.
    starting.set("n", {NAME: ONE, "ns/q": TWO}, {})
    starting.meet("n", "ns/q", "q")
    assert [starting.of("n", name, uid) for name, uid in ((NAME, "u"), ("ns/q", "q"))] == [ONE, TWO]


def test_the_same_again_is_no_change() -> None:
    given = running()
    assert not given.set("n", {}, {})
    assert given.set("n", {}, {}, ("can't be read",))
    assert not given.set("n", {}, {}, ("can't be read",))
    assert given.set("n", {}, {})
    assert not given.set("n", {}, {})
    given.set("n", {"u": ONE}, {}, ("x",))
    given.forget("n")
    assert given.of("n", NAME, "u") is None
    assert not given.set("n", {}, {})


def test_by_uid_it_is_that_pods_whatever_its_name() -> None:
    given = running()
    given.set("n", {"u": ONE, NAME: TWO}, {NAME: "u"})
    assert given.of("n", NAME, "u") == ONE
    assert given.of("n", "ns/other", "u") == ONE
