"""Randomness: finds random stretches of a text, such as tokens, as opposed to words, names, paths and numbers.

Each pair of neighbouring characters is evidence: `_EVIDENCE` has twice the binary logarithm of its likelihood ratio
between random base 62 and text. A stretch is random if the sum over its pairs exceeds `THRESHOLD_BITS`.

Entropy alone does not suffice: ``DataLoaderWorkerInit`` has as much of it per character as a short token.
"""

import re
from functools import lru_cache
from typing import Final

THRESHOLD_BITS: Final = 30.0
"""About 3 in 1000 random texts of 24 base-62 characters stay below, and none of 2000 with 32. Of 58,000 names in public
training code, 70 are above, nearly all of them random identifiers."""

SHORTEST: Final = 20
_LEAST_VARIETY: Final = 8
_MARK: Final = 16
"""Evidence subtracted per separator: words in names are short, those in tokens long."""
_HUMP: Final = 5
"""Evidence added for a capital after a small letter, since pairs are counted ignoring case."""
_REMEMBERED: Final = 1024
"""Longest run whose verdict is cached, so that base64 images do not fill memory."""
_RUN: Final = re.compile(rf"[A-Za-z0-9_\-+/.~]{{{SHORTEST},}}={{0,2}}")
_KNOWN: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"  # UUID
    r"|(?:[0-9a-f]{7,32}|[0-9A-F]{7,32}|[0-9a-f]{40}|[0-9a-f]{48}|[0-9a-f]{56}|[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})"
    r"|(?<=[-+.])g[0-9a-f]{7,40}"  # as ``git describe`` has a commit
    r"|0[xX][0-9a-fA-F]+"
    r"|_ZN[0-9A-Za-z_]+"  # a symbol of C++, as in stack traces
    r"|(?<=/)tmp(?:[0-9a-z_]{8}|\.[0-9A-Za-z]{6,10})"  # a temporary folder of Python's, or of mktemp
    r"|[0-9]{8}T[0-9]{4,12}Z?"  # a time, as in names of runs and folders
    r"|(?:sha(?:1|256|384|512)|SHA256|md5)[-:=][A-Za-z0-9+/_-]{20,88}={0,2}"
    r"|(?i:abcdefghijklmnopqrstuvwxyz|bcdefghijklmnopqrstuvwxyz|0123456789|ghijklmnopqrstuvwxyz)+"
    r")(?![0-9A-Za-z])"
)
"""Digests, commits, UUIDs, addresses, times, alphabets: not secrets, unless under a secret's name."""
_EDGE: Final = re.compile(r"[/.~]")
_REST: Final = 12
"""A rest of a run beside a random stretch that is shorter than this counts as part of the secret."""

_ORDER: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_OTHER: Final = len(_ORDER)
_SYMBOLS: Final = _OTHER + 1  # letters without case, digits, and one for everything else
_SYMBOL: Final = bytes(_ORDER.find(chr(byte).lower()) % _SYMBOLS for byte in range(128)).ljust(256, b"\0")
_ZERO: Final = 109  # "m"
_EVIDENCE: Final = (
    "wmklwrmwnwqikktkwijhnquonwwwuwwwwwwwlhsprispvjlwhrskrvnmsjwrwmwwwuwwwwwwwjjwqvjvwhowkluwgqwmpimvwwrwwttwwwwwwwk"
    "jrrlfpswiwwprtmqwpmllwwpqwwwtwwwwwwwgmtlkpnpwqwvjmjrnpiikuoqlquwwwwwwwwwwhkwtwklwwhwwltojruknnkwsrswwsttwwwwwvf"
    "mtttgrnlkwwmonoqwijnmuwwrwwurwwwwwwwghusshswwjwwtptjrvnoklvtwrwwtuwwwwwwwfmpkknokwwwtlkgiouojjwowpwlwwwwwwwwwwp"
    "kwuwfuwwjwuwvoirwvjtkswwwwstrwwwwwwwgpqurertwlwwntqrpwrktqokwswvtqwwwwwwwfissohirwiwukqujqwtlllsvwowwutuwwwwwwi"
    "hluugvtwkwupmniiwumrmsvwrwwurstwwwwwikskjjljumwprsnkmwvjimovvtwwwsrwwwwwwhooljrpowpsnlkgnlwhmnkpnrwwwwwwwwwwwwk"
    "issohvsnlwtkutjlwimljvwwlwwusvwwwwwwjpvnttpuwswpisowpvpptetkwwwwwqwwwwwwwiiukmhsmwjwqrmnjrwmllnrswnwwwtwwwwwwwh"
    "nwmshqvmjwnrrtlmpslhmtrwpwwvtvwwwwwwgjwoshtvliwwsqsjowjlnoutuluwttvwvtwwwgmmmnjopwowwijirkwkkgwwwuwwwwwwwwwwwwp"
    "gttufurwhwworunsvtsqwwwwwwwplorutwwwjhvsoiuvnhwwrumkvwjntwurwwwwwvwwwwwwwgnvmuisvvkwtpptshwtphwuwuowuqquwuuwuwf"
    "poprkruwrwwpllmgwskkusswwvwvuwwwwwwwekwwwdwwwnwwqwwntwwuwwpwwopvwvuwwwwwwlwswlqswuwrvwrwwwwwutwvwpwwdhjklkllllf"
    "tqujorwvwwwvtwwrwtttwwwrwwgihkkkglllfpomipmttpvwqmssltonnwkptwwilllllomkofpspjoowtruwsonlowqsnwkwuwwklfkllmmmmf"
    "lnommquptwwwmswpvqsnrksqwwiklllkkllkeoqqoqpnwruwolmlpwrqlwpwwwwhjkkkkilkkfwqvrrwwwstuwuwwtwwpswnwwwwikkldkkkllg"
    "ujnsqmwwwvwwwuwtwwrtwrwvuwhijjiiihiigsmwpmwwuwwwrmwwpvsrwwvwowwhkjjjjhjjjetpuqqwwuwruwrwwtwuwwwwwwwwfjiiiiijifh"
    "kmjkmlmoktpmllmkrljkonouwvqprtusvwwwj"
)
"""One row per first symbol, one letter per second symbol; counted in the source code of torch, transformers, pandas,
dask and others (tests/support/evidence.py)."""
_PAIRS: Final = tuple(ord(letter) - _ZERO for letter in _EVIDENCE)


def random_stretches(text: str) -> list[tuple[int, int]]:
    """Return the random stretches of a text as (begin, end), in order; mostly none."""
    stretches: list[tuple[int, int]] = []
    for run in _RUN.finditer(text):
        stretch = _stretch_of(run[0]) if len(run[0]) <= _REMEMBERED else _stretch(run[0])
        if stretch is not None:
            stretches.append((run.start() + stretch[0], run.start() + stretch[1]))
    return stretches


def _stretch(run: str) -> tuple[int, int] | None:
    """Return the most random stretch of a run of characters, widened to its edges; None if there is none."""
    known = [match.span() for match in reversed(list(_KNOWN.finditer(run)))]
    symbol = run.encode("ascii").translate(_SYMBOL)
    best = current = begin = 0
    span = (0, 0)
    for i in range(1, len(run)):
        while known and i >= known[-1][1]:
            known.pop()
        if known and i >= known[-1][0]:
            current = 0
            continue
        if current <= 0:
            current, begin = 0, i - 1
        if _OTHER in (symbol[i - 1], symbol[i]):
            current -= _MARK * (symbol[i] == _OTHER)
            continue
        current += _PAIRS[symbol[i - 1] * _SYMBOLS + symbol[i]]
        if run[i].isupper() and run[i - 1].islower():
            current += _HUMP
        if current > best:
            best, span = current, (begin, i + 1)
    if best < 2 * THRESHOLD_BITS or len(set(run[slice(*span)])) < _LEAST_VARIETY:
        return None
    return _widen(run, *span)


_stretch_of: Final = lru_cache(maxsize=4096)(_stretch)


def _widen(run: str, begin: int, end: int) -> tuple[int, int]:
    edges = [match.start() for match in _EDGE.finditer(run)]
    begin = max((edge + 1 for edge in edges if edge < begin), default=0)
    end = min((edge for edge in edges if edge >= end), default=len(run))
    return (0 if begin < _REST else begin), (len(run) if len(run) - end < _REST else end)
