r"""Regular expressions that Great Expectations searches for, as ones that a whole text must match.

Only what Python and RE2 read alike is taken; of other expressions, such as those with lookarounds, whoever asks leaves
the judging to Great Expectations. The classes ``\d``, ``\s`` and ``\w`` are ASCII to RE2 and Unicode to Python: a text
that RE2 finds to match matches for Python, too, as long as no set negates the class. So where RE2 only clears rows, and
Python judges those that it does not clear, they may be taken.
"""

import string
from typing import Final

_ANY: Final = "(?s:.*)"
_CLASSES: Final = "dsw"


def whole_pattern(regex: str, *, classes: bool = False) -> str | None:
    r"""Return the expression that matches a whole text if `regex` is found in it; None where that is not sure.

    With `classes`, ``\d``, ``\s`` and ``\w`` are taken: RE2 then finds no more than Python does, perhaps less.
    """
    core, begins = (regex[1:], True) if regex.startswith("^") else (regex, False)
    ends = core.endswith("$") and not core.endswith("\\$")
    core = core[:-1] if ends else core
    plain = _plain(core, _CLASSES if classes else "")
    if plain is None or not plain:
        return None
    if (begins or ends) and "|" in core:  # an anchor binds closer than an alternative
        return None
    # to Python, which they search with, a dollar also matches before a newline that ends the text
    return ("" if begins else _ANY) + f"(?:{plain})" + (r"\n?" if ends else _ANY)


def _plain(core: str, classes: str) -> str | None:
    """Return an expression that Python and RE2 read alike but for `classes`; None if it holds what they do not."""
    found = []
    inside = negated = False
    index = 0
    while index < len(core):
        one, rest = core[index], core[index + 1 :]
        if one == "\\":
            known = rest[:1] in string.punctuation or (rest[:1] in classes and not (inside and negated))
            if not rest or not known:  # \d is any digit to the one, ASCII to the other
                return None
            found.append(one + rest[0])
            index += 2
            continue
        if (_is_odd_inside if inside else _is_odd)(one, rest):
            return None
        if one == "[" and not inside:
            negated = rest[:1] == "^"
        if one == "[" and negated:
            one, index = "[^", index + 1
        inside = one != "]" if inside else one[0] == "["
        found.append(one)
        index += 1
    return None if inside else "".join(found)


def _is_odd_inside(one: str, rest: str) -> bool:
    return one == "[" or one + rest[:1] in {"--", "&&", "||", "~~"}


def _is_odd(one: str, rest: str) -> bool:
    if one == "[":
        return rest[:1] in {"]", ""} or rest[:2] == "^]"
    return one in "^$" or (one in "({" and rest[:1] in {"?", ","}) or (one in "*+?}" and rest[:1] == "+")
