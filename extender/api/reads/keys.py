"""How keys of answers are written."""


def camel(name: str) -> str:
    """`memory_free_mib` is `memoryFreeMiB`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest).replace("Mib", "MiB")
