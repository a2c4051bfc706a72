"""Draws the pictures of docs/concepts.md and ARCHITECTURE.md.

    python -m docs.pictures.draw

Writes the files `*.svg` beside it. Each brings its own background, and follows the theme of the
system: it is legible on any page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from itertools import product
from pathlib import Path
from typing import Final, Literal

import grimp

PLACE: Final = Path(__file__).parent
WIDTH: Final = 800
LINE: Final = 17
"""Pixels from one line of text to the next."""

Look = Literal["plain", "kept", "gone", "aside", "step"]
STYLE: Final = """
.page { fill: #ffffff; stroke: #d5dae1 }
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: #1c2430 }
.strong { font-weight: 600 }
.small { font-size: 12px; fill: #4c5766 }
.plain { fill: #f1f4f8; stroke: #8793a4 }
.kept { fill: #dff3e4; stroke: #2b8a4b }
.gone { fill: #fbe4e1; stroke: #b8402f }
.aside { fill: #fdf0d3; stroke: #a8740a }
.step { fill: #e2edfb; stroke: #2f6cb3 }
.line { stroke: #5d6979; fill: none }
.head { fill: #5d6979 }
@media (prefers-color-scheme: dark) {
  .page { fill: #171b21; stroke: #39424f }
  text { fill: #e6eaf0 }
  .small { fill: #aab4c2 }
  .plain { fill: #242b35; stroke: #77839a }
  .kept { fill: #173a25; stroke: #4fb873 }
  .gone { fill: #47201b; stroke: #e07a6a }
  .aside { fill: #41310f; stroke: #d3a03a }
  .step { fill: #18314f; stroke: #6aa5ea }
  .line { stroke: #98a4b5 }
  .head { fill: #98a4b5 }
}
"""


class Picture:
    """An SVG of WIDTH by `height` pixels; what it says, for those who do not see it, is `title`."""

    def __init__(self, height: int, title: str) -> None:
        self._height = height
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, look: str = "", anchor: str = "middle") -> None:
        """Lines of text, the first with its baseline at `y`."""
        for number, line in enumerate(text.split("\n")):
            place = f'x="{x:g}" y="{y + number * LINE:g}" text-anchor="{anchor}"'
            self._parts.append(f'<text class="{look}" {place}>{escape(line)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, text: str, look: Look = "plain"
    ) -> None:
        """A box with its text in the middle; a first line that ends in a colon stands out."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"'
        self._parts.append(f'<rect class="{look}" {place}/>')
        lines = text.split("\n")
        top = y + height / 2 - (len(lines) - 1) * LINE / 2 + 4.5
        for number, line in enumerate(lines):
            strong = "strong" if line.endswith(":") else ""
            self.text(x + width / 2, top + number * LINE, line.removesuffix(":"), strong)

    def line(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through the points."""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        through = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="line" points="{through}"{dashes}/>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through the points, with a head at the last; its last part is level or upright."""
        self.line(*points, dashed=dashed)
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        back, side = (x - 8 * dx, y - 8 * dy), (4 * dy, 4 * dx)
        corners = [(x, y), (back[0] + side[0], back[1] + side[1])]
        corners.append((back[0] - side[0], back[1] - side[1]))
        through = " ".join(f"{cx:g},{cy:g}" for cx, cy in corners)
        self._parts.append(f'<polygon class="head" points="{through}"/>')

    def svg(self) -> str:
        """The whole file."""
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        page = f'x="0.5" y="0.5" width="{WIDTH - 1}" height="{self._height - 1}" rx="8"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
            f'<title id="title">{escape(self._title)}</title>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" {page}/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def store() -> Picture:
    """What points at what."""
    picture = Picture(372, "From branches and tags over commits, trees and ranges to objects")
    rows = (("refs", 42), ("commits", 112), ("trees", 182), ("ranges", 252), ("objects", 327))
    for name, y in rows:
        picture.text(20, y + 4, name, "strong", "start")
    for x, name, date in ((200, "commit 1", "January"), (400, "commit 2", "February")):
        picture.box(x, 92, 120, 40, f"{name}\n{date}", "plain" if x == 200 else "kept")
    picture.box(600, 92, 120, 40, "commit 3\nMarch", "kept")
    for x in (600, 400):
        picture.arrow((x, 112), (x - 78, 112))
        picture.text(x - 39, 105, "parent", "small")
    picture.box(600, 27, 120, 30, "branch main")
    picture.box(400, 27, 120, 30, "tag v1")
    for x in (460, 660):
        picture.arrow((x, 57), (x, 90))
    for x in (200, 400, 600):
        picture.box(x, 167, 120, 30, f"tree {x // 200}", "plain" if x == 200 else "kept")
        picture.arrow((x + 60, 132), (x + 60, 165))
    for x, name in ((140, "a … k"), (315, "l … z"), (465, "a … k"), (620, "a … k")):
        picture.box(x, 237, 110, 30, f"range {name}", "plain" if x == 140 else "kept")
    picture.arrow((235, 197), (235, 216), (195, 216), (195, 235))
    picture.arrow((285, 197), (285, 216), (350, 216), (350, 235))
    picture.arrow((435, 197), (435, 216), (370, 216), (370, 235))
    picture.arrow((490, 197), (490, 216), (520, 216), (520, 235))
    picture.arrow((640, 197), (640, 207), (390, 207), (390, 235))
    picture.arrow((675, 197), (675, 235))
    picture.box(120, 302, 325, 54, "")
    picture.box(455, 302, 305, 54, "")
    picture.text(130, 350, "slice, January", "small", "start")
    picture.text(465, 350, "slice, from February on", "small", "start")
    for x in (170, 220, 340, 370, 400, 500, 540, 655, 695):
        picture.box(x - 12, 311, 24, 22, "", "gone" if x in (170, 220) else "kept")
        picture.arrow((x, 267), (x, 309))
    return picture


def relations() -> Picture:
    """Five relations, one subtraction."""
    picture = Picture(330, "Five relations go into the subtraction that gives the candidates")
    for y, text in (
        (20, "refs:\nbranches, tags, collections"),
        (80, "commits:\nparents, date, tree"),
        (140, "contents:\ntree → range → address"),
        (200, "protected:\nwritten, staged, promised"),
        (260, "inventory:\nwhat the storage lists"),
    ):
        picture.box(20, y, 200, 48, text)
    picture.box(270, 20, 130, 48, "policy:\nwhat to keep", "step")
    picture.box(270, 80, 130, 48, "kept commits:\neach with a reason", "kept")
    picture.arrow((335, 68), (335, 78))
    picture.line((220, 44), (245, 44), (245, 96))
    picture.arrow((245, 96), (268, 96))
    picture.arrow((220, 112), (268, 112))
    picture.box(440, 110, 110, 48, "live:\naddresses", "kept")
    picture.line((400, 104), (420, 104), (420, 126))
    picture.arrow((420, 126), (438, 126))
    picture.line((220, 164), (420, 164), (420, 144))
    picture.arrow((420, 144), (438, 144))
    picture.box(590, 75, 190, 205, "", "step")
    picture.text(685, 97, "the subtraction", "strong")
    for y, text in ((122, "listed"), (146, "less live"), (170, "less protected")):
        picture.text(620, y, text, anchor="start")
    picture.text(620, 194, "less what is too young", anchor="start")
    picture.line((605, 206), (765, 206))
    picture.box(605, 217, 160, 48, "candidates:\nwhat a sweep may take", "gone")
    picture.arrow((550, 134), (588, 134))
    picture.line((220, 224), (570, 224), (570, 165))
    picture.arrow((570, 165), (588, 165))
    picture.line((220, 284), (580, 284), (580, 118))
    picture.arrow((580, 118), (588, 118))
    return picture


def run() -> Picture:
    """The steps of a run."""
    picture = Picture(322, "The steps of a plan, the plan as a file, and the steps of its sweep")
    picture.text(20, 32, "Plan: changes nothing but the run's own files", "strong", "start")
    planned = (
        "check\nlease, owner,\nclocks",
        "list\nthe storage",
        "read\nrefs, commits,\nprotected",
        "reach\nthe trees\nthat stay",
        "mark\ntheir ranges",
        "subtract\nhence\ncandidates",
    )
    for number, text in enumerate(planned):
        _step(picture, number, 46, text, "plain" if number == 0 else "step")
    picture.arrow((725, 112), (725, 138))
    picture.box(
        20,
        140,
        760,
        40,
        "the plan: on storage, with a checksum; look at it, verify it, or leave it",
        "aside",
    )
    picture.arrow((75, 180), (75, 222))
    picture.text(110, 206, "Sweep: carries out just that plan", "strong", "start")
    swept = (
        "check\nas before, and\nthe plan's sums",
        "fence\ncloses expired\ncommits",
        "recheck\nwhat is\nneeded again",
        "forget\nrecords, before\ntheir files",
        "delete\nor quarantine,\neach on record",
        "report\nthe outcome\nof every file",
    )
    looks: tuple[Look, ...] = ("plain", "step", "step", "step", "gone", "kept")
    for number, text in enumerate(swept):
        _step(picture, number, 224, text, looks[number])
    picture.text(
        20,
        310,
        "A gate may refuse the run anywhere before the first delete. Then nothing was deleted.",
        "small",
        "start",
    )
    return picture


def _step(picture: Picture, number: int, y: float, text: str, look: Look) -> None:
    x = 20 + number * 130
    head, _, rest = text.partition("\n")
    picture.box(x, y, 110, 66, f"{head}:\n{rest}", look)
    if number:
        picture.arrow((x - 20, y + 33), (x - 2, y + 33))


def time() -> Picture:
    """Which commits their dates keep, and which files are too young to be deleted."""
    picture = Picture(300, "A rule of 7 days over four commits, and the grace before a listing")
    picture.text(20, 30, "Commits of a branch, under a rule of 7d", "strong", "start")
    picture.line((40, 110), (770, 110))
    for x, name, look in ((100, "A", "gone"), (240, "B", "kept"), (440, "C", "kept")):
        picture.box(x - 17, 95, 34, 30, name, "gone" if look == "gone" else "kept")
    picture.box(623, 95, 34, 30, "D", "kept")
    picture.line((320, 50), (320, 150), dashed=True)
    picture.line((750, 50), (750, 280), dashed=True)
    picture.text(535, 62, "the last 7 days", "small")
    picture.arrow((480, 58), (324, 58))
    picture.arrow((590, 58), (746, 58))
    picture.text(750, 40, "now", "strong")
    for x, text in (
        (100, "expired"),
        (240, "was the head when\nthe 7 days began"),
        (440, "young"),
        (640, "head, and young"),
    ):
        picture.text(x, 145, text, "small")
    picture.text(20, 195, "Files that are not needed", "strong", "start")
    picture.line((40, 240), (770, 240))
    picture.line((680, 205), (680, 275), dashed=True)
    picture.text(674, 268, "the cutoff: a grace before the listing", "small", "end")
    for x, look in ((150, "gone"), (300, "gone"), (520, "gone"), (700, "kept"), (725, "kept")):
        picture.box(x - 8, 229, 16, 22, "", "gone" if look == "gone" else "kept")
    picture.text(340, 222, "candidates, by when they were written", "small")
    picture.text(715, 215, "too young", "small")
    return picture


def runs() -> Picture:
    """Which slices a clean and an incremental run list."""
    picture = Picture(268, "A clean run lists all slices, an incremental one the open ones")
    names = ("slice 1", "slice 2", "slice 3", "slice 4", "slice 5", "slice 6")
    rows: tuple[tuple[int, str, int], ...] = ((52, "clean", 0), (132, "incremental", 4))
    picture.text(20, 30, "the run lists", "small", "start")
    picture.text(145, 30, "older", "small", "start")
    picture.text(780, 30, "newer", "small", "end")
    picture.arrow((185, 26), (735, 26))
    for y, name, first in rows:
        picture.text(20, y + 29, name, "strong", "start")
        for number, text in enumerate(names):
            listed: Look = "step" if number >= first else "plain"
            picture.box(145 + number * 107, y, 98, 48, text, listed)
    picture.line((145, 192), (145, 200), (564, 200), (564, 192))
    picture.text(
        354,
        220,
        "closed off: not listed. What was left there is remembered, and what\n"
        "expired commits held there is looked up in the index",
        "small",
    )
    picture.line((573, 192), (573, 200), (778, 200), (778, 192))
    picture.text(676, 220, "were still written to\nin the run before", "small")
    return picture


def undo() -> Picture:
    """The states of a file that a sweep takes."""
    picture = Picture(250, "A file from needed to deleted, and the ways back")
    boxes: tuple[tuple[float, str, Look], ...] = (
        (20, "kept:\nsomething\nneeds it", "kept"),
        (210, "unneeded:\nthe next plan\nnames it", "plain"),
        (440, "quarantined:\nmoved, for a time\nthat you set", "aside"),
        (650, "deleted:\nthe storage\nconfirmed it", "gone"),
    )
    for x, text, look in boxes:
        picture.box(x, 92, 130, 70, text, look)
    for x, to, text in (
        (150, 208, "\npolicy"),
        (340, 438, "sweep, with\na quarantine"),
        (570, 648, "time over,\nor gc purge"),
    ):
        picture.arrow((x, 127), (to, 127))
        picture.text((x + to) / 2, 104, text, "small")
    picture.arrow((505, 92), (505, 50), (85, 50), (85, 90))
    picture.text(295, 43, "gc undo: restored to its address, and held for 7 days", "small")
    picture.arrow((275, 162), (275, 190), (85, 190), (85, 164))
    picture.text(180, 208, "needed again before the sweep", "small")
    picture.arrow((320, 162), (320, 220), (715, 220), (715, 164))
    picture.text(520, 238, "sweep, without a quarantine", "small")
    return picture


def packages() -> Picture:
    """The packages of the program, and their imports as the code has them. An import that follows
    from two others is left out. Each package stands below all that import it."""
    below = imports_of_packages()
    left, rows = dict(below), list[list[str]]()
    while left:
        rows.append(sorted(left.keys() - set[str]().union(*left.values())))
        left = {name: used for name, used in left.items() if name not in rows[-1]}
    height = 78
    picture = Picture(height * len(rows), "The packages, from the commands down to the storage")
    middles = {
        name: ((place + 1) * WIDTH / (len(row) + 1), 36 + number * height)
        for number, row in enumerate(rows)
        for place, name in enumerate(row)
    }
    for row in rows:
        for place, name in enumerate(row):
            for other in sorted(below[name] - set[str]().union(*(below[o] for o in below[name]))):
                (x0, y0), (x, y) = middles[name], middles[other]
                # Lines of different packages do not lie on each other.
                bend = y - 24 - 5 * place
                points = [(x0, y0 + 17), (x0, bend), (x, bend), (x, y - 19)]
                picture.arrow(*dict.fromkeys(points))
    for name, (x, y) in middles.items():
        picture.box(x - 55, y - 17, 110, 34, name, "step" if name == "gc" else "plain")
    return picture


def imports_of_packages() -> dict[str, set[str]]:
    """Returns each package with those that it needs, also by others."""
    graph = grimp.build_graph("ebbtide")
    names = [each for each in graph.find_children("ebbtide") if graph.find_children(each)]
    found: dict[str, set[str]] = {name.rpartition(".")[2]: set() for name in sorted(names)}
    for one, other in product(names, names):
        if one != other and graph.find_shortest_chain(one, other, as_packages=True):
            found[one.rpartition(".")[2]].add(other.rpartition(".")[2])
    return found


PICTURES: Final[Mapping[str, Callable[[], Picture]]] = {
    "store": store,
    "relations": relations,
    "run": run,
    "time": time,
    "runs": runs,
    "undo": undo,
    "packages": packages,
}


def main() -> None:
    """Draw all of them."""
    for name, draw in PICTURES.items():
        (PLACE / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
