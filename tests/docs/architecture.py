"""Draws the rooms of `extender/` and the imports between them, as docs/research/architecture.md shows them.

`python -m tests.docs.architecture [REVISION]`: the checkout, or a git revision, as SVG on standard output.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from tests.docs.pages import ROOT

ROW, BOX, STEP = 40, 300, 30
RIGHT = BOX + 10
STYLE = """
text{fill:#222;font:bold 13px sans-serif} .size,.n{font:11px sans-serif;text-anchor:end}
.n{text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:4px} .room{fill:#eef3fa;stroke:#8aa4c8}
path{fill:none;stroke:#8aa4c8;stroke-opacity:.6}
"""


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def modules(revision: str) -> dict[str, str]:
    """The text of every module by name."""
    listed = git("ls-tree", "-r", "--name-only", revision, "extender") if revision else git("ls-files", "extender")
    paths = [path for path in listed.splitlines() if path.endswith(".py")]
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): read(revision, path) for path in paths
    }


def read(revision: str, path: str) -> str:
    """A file of a revision, or of the checkout."""
    return git("show", f"{revision}:{path}") if revision else (ROOT / path).read_text()


def imported(text: str) -> Iterator[str]:
    """The modules that a text imports; `from a import b` may name the module `a.b`, or something in `a`."""
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)


def picture(revision: str) -> str:
    """The rooms, top to bottom, and by how many imports each uses those below it. None uses one above it."""
    contracts = read(revision, "pyproject.toml")
    (layers,) = re.findall(r'containers = \["extender"\]\nlayers = \[(.*?)\]', contracts, re.S)
    by_name = set(re.findall(r'"(extender\.[\w.]+ -> extender\.[\w.]+)"', contracts))
    rooms: list[str] = re.findall(r"\w+", layers)
    texts, files, lines, arrows = modules(revision), Counter[str](), Counter[str](), Counter[tuple[int, int]]()
    for module, text in texts.items():
        _, room, *_ = [*module.split("."), ""]
        if room not in rooms:
            continue
        files[room] += 1
        lines[room] += text.count("\n")
        targets = {target if target in texts else target.rpartition(".")[0] for target in imported(text)}
        for _, other, *_ in ([*target.split("."), ""] for target in targets if target.startswith("extender.")):
            if other in rooms and other != room and f"{module} -> extender.{other}" not in by_name:
                arrows[rooms.index(room), rooms.index(other)] += 1
    assert all(start < end for start, end in arrows)

    width = 100 + BOX + max(STEP * (end - start) for start, end in arrows)
    size = f'width="{width}" height="{ROW * len(rooms) + 20}"'
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style><rect {size} fill="#fff"/>']
    numbers: list[str] = []
    for (start, end), count in sorted(arrows.items()):
        top, bottom, reach = ROW * start + 36, ROW * end + 24, STEP * (end - start) + 16
        middle = (top + bottom) / 2
        drawn.append(
            f'<path stroke-width="{0.8 + count / 30:.1f}" '
            f'd="M{RIGHT} {top}Q{RIGHT + 2 * reach} {middle} {RIGHT} {bottom}"/>'
        )
        numbers.append(f'<text class="n" x="{RIGHT + reach}" y="{middle + 4}">{count}</text>')
    for at, room in enumerate(rooms):
        told = f"{files[room]} files, {lines[room]:,} lines"
        drawn.append(f'<rect class="room" x="10" y="{ROW * at + 14}" width="{BOX}" height="{ROW - 8}" rx="4"/>')
        drawn.append(f'<text x="22" y="{ROW * at + 35}">{room}</text>')
        drawn.append(f'<text class="size" x="{BOX}" y="{ROW * at + 35}">{told}</text>')
    return "\n".join([*drawn, *numbers, "</svg>"])


if __name__ == "__main__":
    print(picture("".join(sys.argv[1:])))
