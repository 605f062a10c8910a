r"""Regular expressions that Great Expectations searches for, as ones that a whole text must match.

Only what Python and RE2 read alike is taken; of other expressions, such as those with ``\s`` or lookarounds, whoever
asks leaves the judging to Great Expectations.
"""

import string
from typing import Final

_CLASSES: Final = {"d": "0-9", "w": "0-9A-Za-z_"}


def whole_pattern(regex: str) -> str | None:
    """Return the expression that matches a whole text if `regex` is found in it; None where that is not sure."""
    core, begins = (regex[1:], True) if regex.startswith("^") else (regex, False)
    ends = core.endswith("$") and not core.endswith("\\$")
    core = core[:-1] if ends else core
    plain = _plain(core)
    if plain is None or not plain:
        return None
    if (begins or ends) and "|" in core:  # an anchor binds closer than an alternative
        return None
    return f"{'' if begins else '(?s:.*)'}(?:{plain}){'' if ends else '(?s:.*)'}"


def _plain(core: str) -> str | None:
    """Return an expression with ASCII classes spelt out, as RE2 reads them; None if it holds what is read unlike."""
    found = []
    inside = False
    index = 0
    while index < len(core):
        one, rest = core[index], core[index + 1 :]
        if one == "\\":
            spelt = _escape(rest[:1], inside=inside)
            if spelt is None:
                return None
            found.append(spelt)
            index += 2
            continue
        if (_is_odd_inside if inside else _is_odd)(one, rest):
            return None
        if one == "[" and rest[:1] == "^":
            one, index = "[^", index + 1
        inside = one != "]" if inside else one[0] == "["
        found.append(one)
        index += 1
    return None if inside else "".join(found)


def _escape(after: str, *, inside: bool) -> str | None:
    if after in _CLASSES:
        return _CLASSES[after] if inside else f"[{_CLASSES[after]}]"
    return f"\\{after}" if after and after in string.punctuation else None


def _is_odd_inside(one: str, rest: str) -> bool:
    return one == "[" or one + rest[:1] in {"--", "&&", "||", "~~"}


def _is_odd(one: str, rest: str) -> bool:
    if one == "[":
        return rest[:1] in {"]", ""} or rest[:2] == "^]"
    return one in "^$" or (one in "({" and rest[:1] in {"?", ","}) or (one in "*+?}" and rest[:1] == "+")
