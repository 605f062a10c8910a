"""Count pairs of characters in source code, for `ranklake.redaction.randomness`.

    python tests/support/evidence.py SITE_PACKAGES > table

prints the table that the module holds. Its numbers depend on the versions of the packages, its use hardly does.
"""

import math
import random
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

ORDER = "abcdefghijklmnopqrstuvwxyz0123456789"
PACKAGES = "torch transformers lightning sklearn numpy pandas distributed fsspec dask sqlalchemy fastapi"
RUN = re.compile(r"[A-Za-z0-9_\-+/=.]{8,}")
DIGEST = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-f-]{7,}|[0-9A-F-]{7,}|sha\d+[-:=][A-Za-z0-9+/=_-]+)(?![0-9A-Za-z])")
RANDOM = [2 / 64] * 26 + [1 / 64] * 10 + [1.5 / 64]
FILES = 2500


def main(packages: Path) -> None:
    """Print the table."""
    files = [file for name in PACKAGES.split() for file in sorted((packages / name).rglob("*.py"))]
    random.Random(0).shuffle(files)
    words = Counter(
        word
        for file in files[:FILES]
        for word in RUN.findall(DIGEST.sub(" ", file.read_text(encoding="utf-8", errors="replace")))
    )
    size = len(RANDOM)
    pairs = [[0] * size for _ in range(size)]
    for word, times in words.items():
        symbols = [ORDER.find(letter.lower()) % size for letter in word]
        for first, second in pairwise(symbols):
            pairs[first][second] += min(times, 3)  # what one file repeats tells no more
    for row in pairs:
        total = sum(row) + size / 2
        bits = [2 * math.log2(RANDOM[at] / ((count + 0.5) / total)) for at, count in enumerate(row)]
        print("".join(chr(109 + max(-12, min(10, round(twice)))) for twice in bits))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
