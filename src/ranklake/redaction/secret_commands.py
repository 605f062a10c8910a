"""Secrets that well-known commands take by short options, and lines of a netrc: nothing beside them has a telling name.

curl -u USER:PASSWORD    mysql -pPASSWORD    sshpass -p PASSWORD    redis-cli -a PASSWORD    ldapsearch -w PASSWORD
machine HOST login USER password PASSWORD
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class _Option:
    """How an option takes its secret.

    Attributes
    ----------
    pattern
        The option; what follows it in the same argument is its value.
    apart
        Whether the value may be the next argument.
    pair
        Whether the value is user and password with a colon between: then the user stays.
    """

    pattern: re.Pattern[str]
    apart: bool = True
    pair: bool = False


_CURL: Final = _Option(re.compile(r"(?:-[A-Za-z]{0,8}?[uU]|--(?:proxy-)?user(?:=|$))"), pair=True)
_OPTIONS: Final = {
    "curl": _CURL,
    **dict.fromkeys(
        ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mariadb", "mariadb-dump", "mycli"),
        _Option(re.compile("-p"), apart=False),
    ),
    "sshpass": _Option(re.compile("-p")),
    "redis-cli": _Option(re.compile("-a")),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore"), _Option(re.compile("-p"))),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd"), _Option(re.compile("-w"))),
}
_COMMAND: Final = re.compile(
    rf"(?<![\w.\-])(?:{'|'.join(sorted(_OPTIONS, key=len, reverse=True))})(?=\s)(?:\\\n|[^\n]){{0,4096}}"
)
_ARGUMENT: Final = re.compile(r"""(?:'[^'\n]*'|"[^"\n]*"|\\(?!\n)|[^\s'"\\]|['"])+""")
_PAIR: Final = re.compile(r"""(?P<user>['"]?[^\s:'"]*:)(?P<secret>.*?)(?P<end>['"]?)""", re.DOTALL)
_USER_IDS: Final = re.compile(r"\d+:\d+")
_NETRC: Final = re.compile(
    r"(?i)(?P<what>(?P<begin>\b(?:machine\s{1,9}\S{1,255}|default)\s{1,9})?\blogin\s{1,9}\S{1,255}\s{1,9}"
    r"(?:account\s{1,9}\S{1,255}\s{1,9})?password\s{1,9})(?P<secret>[^\s\"']+)"
)


def hide_arguments(arguments: Sequence[str], redacted: str) -> list[str]:
    """Return a command's arguments, the command first, without what its short options take."""
    shown = list(arguments)
    option = next(
        (_OPTIONS[name] for name_given in shown[:1] if (name := name_given.rpartition("/")[2]) in _OPTIONS), None
    )
    place = 1
    while option is not None and place < len(shown):
        argument = shown[place]
        match = option.pattern.match(argument, int(argument[:1] in {"'", '"'}))
        if match is not None:
            head, value = argument[: match.end()], argument[match.end() :]
            if value:
                shown[place] = head + _redact_argument(value, redacted, pair=option.pair)
            elif option.apart and place + 1 < len(shown) and (option.pair or shown[place + 1][:1] != "-"):
                place += 1
                shown[place] = _redact_argument(shown[place], redacted, pair=option.pair)
        place += 1
    return shown


def hide_in_text(text: str, redacted: str) -> str:
    """Return a text without what the short options of commands in it take, and without passwords of a netrc."""
    if any(map(text.__contains__, _OPTIONS)):
        text = _COMMAND.sub(lambda match: _hidden_in_line(match[0], redacted), text)
    if "login" in (small := text.lower()) and "password" in small:
        text = _NETRC.sub(lambda match: _netrc(match, redacted), text)
    return text


def _hidden_in_line(line: str, redacted: str) -> str:
    spans = [match.span() for match in _ARGUMENT.finditer(line)]
    before = [line[begin:end] for begin, end in spans]
    for (begin, end), was, now in reversed(list(zip(spans, before, hide_arguments(before, redacted), strict=True))):
        if now != was:
            line = line[:begin] + now + line[end:]
    return line


def _redact_argument(value: str, redacted: str, *, pair: bool) -> str:
    if not pair:
        return redacted
    match = _PAIR.fullmatch(value)
    if match is None or not match["secret"] or _USER_IDS.fullmatch(value):
        return value
    return f"{match['user']}{redacted}{match['end']}"


def _netrc(match: re.Match[str], redacted: str) -> str:
    """Return a netrc's line without its password; where its beginning lacks, a word is prose and stays."""
    return match[0] if match["begin"] is None and match["secret"].isalpha() else f"{match['what']}{redacted}"
