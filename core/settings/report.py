"""What is wrong with a configuration, a line each, and where its good values came from."""

from __future__ import annotations

import re

Key = tuple[str, ...]


class Report:
    """What is wrong, a line each, and where every good value came from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[str, str] = {}
        self.wrong: set[str] = set()
        self.unreadable = False  # a file could not be read: whatever else is missing may be in it

    def mistake(self, key: Key, origin: str, sentence: str) -> None:
        """One line: where, which key, what and what to do."""
        name = ".".join(key)
        self.wrong.add(name)
        self.lines.append(f"{origin}: {name}: {sentence}" if origin else f"{name}: {sentence}")

    def unread(self, line: str) -> None:
        """One line about a file that could not be read."""
        self.unreadable = True
        self.lines.append(line)

    def ordered(self) -> list[str]:
        """The mistakes of each file together, by line."""
        files: dict[str, int] = {}
        ranked = []
        for line in self.lines:
            place = re.match(r"(.+?):(\d+): ", line)
            file, number = (place[1], int(place[2])) if place else (line.partition(":")[0], 0)
            ranked.append((files.setdefault(file, len(files)), number, line))
        return [line for *_, line in sorted(ranked, key=lambda r: r[:2])]
