"""Builds a corpus of English and one of source code from Debian packages; `python corpus.py FOLDER` on Debian 12.

It writes `english.txt`, `code.txt` and `corpus.csv`: the packages with version and bytes that are used, and the two
files with their SHA-256. Needs apt-get, dpkg-deb and mandoc, and `pip install selectolax`. Kept is each paragraph that
is not of a licence, has words of English, and has not been seen before; documents stand in the order of a hash.
"""

import csv
import gzip
import hashlib
import itertools
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser

DOCS = """
linux-doc-6.1 erlang-doc rust-doc llvm-16-doc perl-doc python3.11-doc postgresql-doc-15 git-doc libboost1.74-doc
sqlite3-doc r-doc-html octave-doc maxima-doc debian-handbook debian-reference-en debian-policy developers-reference
gnome-user-docs libreoffice-help-en-us gimp-help-en kicad-doc-en dict-gcide dict-wn dict-jargon dict-foldoc
dict-vera dict-devil fortunes manpages manpages-dev freebsd-manpages openjdk-17-doc ghc-doc python-scipy-doc
python-pandas-doc python-django-doc python-sqlalchemy-doc debian-faq installation-guide-amd64 qtbase5-doc-html
cmake-doc zsh-doc vim-doc tcl8.6-doc swi-prolog-doc gap-doc nodejs-doc apache2-doc postfix-doc exim4-doc-html
nim-doc
"""
CODE, CODE_BYTES = "linux-source-6.1", 100_000_000
PIECE = 50_000  # characters
LICENCES = re.compile(r"copyright|copying|licen[cs]e|/(l?gpl|gfdl|fdl)", re.I)  # names of files
LICENCE = re.compile(
    r"permission (is|to) |without (even the implied )?warranty|redistribut|GNU .*License|copyright", re.I
)
ENGLISH = re.compile(r"\b(the|of|to|and|is|in|that|for|with|are|be|or)\b")
BLOCK = re.compile(r"(<br ?/?>|</(?:p|div|li|h[1-6]|tr|dt|dd|pre|section|summary|blockquote)>)", re.I)


def text_of(path: Path) -> str:
    """The text of a file; of one that has none, nothing."""
    name, content = path.name.removesuffix(".gz"), path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if re.search(r"/man/man\d", str(path)):
        page = subprocess.run(["mandoc", "-T", "utf8", "-O", "width=110"], input=content, capture_output=True).stdout
        return re.sub(".\b", "", page.decode(errors="replace"))
    text = content.decode(errors="replace")
    if name.endswith((".html", ".xhtml", ".htm", ".page")):
        tree = LexborHTMLParser(BLOCK.sub(r"\1\n\n", text))
        tree.strip_tags(["script", "style", "nav", "header", "footer", "svg"])
        return tree.body.text() if tree.body else ""
    if name.endswith(".dict.dz"):
        return re.sub(r"\n(?=\S)", "\n\n", text)  # one entry, one paragraph
    return text if name.endswith((".txt", ".rst", ".pod", ".data")) or "/fortunes/" in str(path) else ""


def documents(folder: Path):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not LICENCES.search(str(path.relative_to(folder))):
            yield str(path.relative_to(folder)), text_of(path)


def english(text: str, seen: set) -> str:
    kept = []
    for paragraph in re.split(r"\n{2,}", "\n".join(map(str.rstrip, text.split("\n")))):
        words = paragraph.split()
        longer = re.findall("[a-z]{3,}", paragraph.lower())  # the same in HTML, reStructuredText and pod
        key = hashlib.blake2b(" ".join(longer).encode(), digest_size=8).digest()
        is_text = len(words) >= 8 and len(ENGLISH.findall(paragraph)) >= len(words) / 12
        if is_text and key not in seen and not LICENCE.search(paragraph):
            kept.append(paragraph)
        seen.add(key)
    return "\n\n".join(kept)


def code(archive: Path):
    with tarfile.open(archive) as files:
        for file in files:
            if file.isfile() and file.name.endswith((".c", ".h")) and not LICENCES.search(file.name):
                text = files.extractfile(file).read().decode(errors="replace")
                yield file.name, re.sub(r"\A(//.*\n|/\*(.|\n)*?\*/\s*)+", "", text)  # what it begins with is a licence


def pieces(name: str, text: str):
    """A long document in parts, so that no one is all of the test part."""
    paragraphs = text.split("\n\n")
    numbered = zip((end // PIECE for end in itertools.accumulate(map(len, paragraphs))), paragraphs, strict=True)
    for number, own in itertools.groupby(numbered, key=lambda pair: pair[0]):
        yield f"{name} {number}", "\n\n".join(paragraph for _, paragraph in own)


def write(path: Path, by_name: dict[str, str], most: float = float("inf")) -> tuple[int, str]:
    by_name = dict(piece for name, text in by_name.items() for piece in pieces(name, text))
    order = sorted(by_name, key=lambda name: hashlib.sha256(name.encode()).digest())
    content = "\n\n\n".join(by_name[name] for name in order).encode()
    content = content if len(content) <= most else content[: content.rindex(b"\n", 0, int(most)) + 1]
    path.write_bytes(content)
    return len(content), hashlib.sha256(content).hexdigest()


def main(out: Path) -> None:
    debs, unpacked = out / "debs", out / "unpacked"
    for made in (debs, unpacked):
        made.mkdir(parents=True, exist_ok=True)
    rows, seen, texts, sources = [], set(), {}, {}
    for package in (*DOCS.split(), CODE):
        if not list(debs.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=debs, check=True)
        (deb,), folder = debs.glob(f"{package}_*.deb"), unpacked / package
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        version = subprocess.run(["dpkg-deb", "-f", deb, "Version"], capture_output=True, text=True).stdout.strip()
        if package == CODE:
            sources = {name: text for name, text in code(next(folder.rglob("*.tar.xz"))) if text.strip()}
            sources = {name: text for text, name in {text: name for name, text in sources.items()}.items()}
            own = CODE_BYTES
        else:
            found = {f"{package}/{name}": english(text, seen) for name, text in documents(folder)}
            texts |= (found := {name: text for name, text in found.items() if len(text) > 200})
            own = sum(len(text.encode()) for text in found.values())
        rows.append([package, version, own, ""])
        print(*rows[-1], flush=True)
    rows.append(["english.txt", "", *write(out / "english.txt", texts)])
    rows.append(["code.txt", "", *write(out / "code.txt", sources, CODE_BYTES)])
    with (out / "corpus.csv").open("w") as file:
        csv.writer(file, lineterminator="\n").writerows([["name", "version", "bytes", "sha256"], *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
