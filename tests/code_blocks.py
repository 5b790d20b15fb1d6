"""The fenced blocks of the project's documents.

A block says what it is (```python), and is run or checked, unless a comment right above says why it is not:
`<!-- not run: needs a container engine -->`. `text` is no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_AT_THE_ROOT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")
DOCUMENTS = (*(ROOT / name for name in _AT_THE_ROOT), *sorted((ROOT / "docs").rglob("*.md")))
LANGUAGES = ("python", "console", "yaml", "text")

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+) -->\n)?^```(?P<language>.*)\n(?P<code>(?:.*\n)*?)^```$", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One block; `why_not_run` is None for those that are to be run."""

    place: str
    language: str
    code: str
    why_not_run: str | None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console block, each with the output that the document shows (`…` stands for anything)."""
        parts = re.split(r"^\$ ", self.code, flags=re.MULTILINE)
        assert parts[0] == "", f"{self.place}: a console block begins with `$ `"
        return [_split(part) for part in parts[1:]]


def blocks(document: Path) -> Iterator[Block]:
    """The blocks of a document in order."""
    text = document.read_text("utf-8")
    name = document.relative_to(ROOT)
    assert text.count("\n```") % 2 == 0, f"{name} has a fence that is not closed"
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        yield Block(f"{name}:{line}", match["language"], match["code"], match["why"])


def all_blocks() -> list[Block]:
    """The blocks of all documents."""
    return [block for document in DOCUMENTS for block in blocks(document)]


def looks_like(shown: str, printed: str) -> bool:
    """Whether `printed` is what the document shows."""
    pattern = ".*".join(map(re.escape, shown.strip().split("…")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def _split(part: str) -> tuple[str, str]:
    lines = part.splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
    return "".join(lines[: end + 1]).strip(), "".join(lines[end + 1 :])
