"""Names of secrets in options, variables and keys; short options of known commands that take one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final


@dataclass(frozen=True, slots=True)
class _Option:
    """How an option takes its secret.

    Attributes
    ----------
    pattern
        The option; the rest of the same argument is its value.
    is_separate
        Whether the value may be the next argument.
    is_pair
        Whether the value is ``user:password``; then the user is kept.
    """

    pattern: re.Pattern[str]
    is_separate: bool = True
    is_pair: bool = False


_CURL: Final = _Option(re.compile(r"(?:-[A-Za-z]{0,8}?[uU]|--(?:proxy-)?user(?:=|$))"), is_pair=True)
_OPTIONS: Final = {
    "curl": _CURL,
    **dict.fromkeys(
        ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mariadb", "mariadb-dump", "mycli"),
        _Option(re.compile("-p"), is_separate=False),
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
    """Return a command's arguments, the command first, without secret values of its short options."""
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
                shown[place] = head + _redact_argument(value, redacted, pair=option.is_pair)
            elif option.is_separate and place + 1 < len(shown) and (option.is_pair or shown[place + 1][:1] != "-"):
                place += 1
                shown[place] = _redact_argument(shown[place], redacted, pair=option.is_pair)
        place += 1
    return shown


def hide_in_text(text: str, redacted: str) -> str:
    """Return a text without secret values of commands' short options, and without passwords of a netrc."""
    if any(map(text.__contains__, _OPTIONS)):
        text = _COMMAND.sub(lambda match: _redact_line(match[0], redacted), text)
    if "login" in (small := text.lower()) and "password" in small:
        text = _NETRC.sub(lambda match: _redact_netrc(match, redacted), text)
    return text


def _redact_line(line: str, redacted: str) -> str:
    spans = [match.span() for match in _ARGUMENT.finditer(line)]
    before = [line[begin:end] for begin, end in spans]
    for (begin, end), old, new in reversed(list(zip(spans, before, hide_arguments(before, redacted), strict=True))):
        if new != old:
            line = line[:begin] + new + line[end:]
    return line


def _redact_argument(value: str, redacted: str, *, pair: bool) -> str:
    if not pair:
        return redacted
    match = _PAIR.fullmatch(value)
    if match is None or not match["secret"] or _USER_IDS.fullmatch(value):
        return value
    return f"{match['user']}{redacted}{match['end']}"


def _redact_netrc(match: re.Match[str], redacted: str) -> str:
    """Return a netrc's line without its password; without the line's beginning, words are prose and are kept."""
    return match[0] if match["begin"] is None and match["secret"].isalpha() else f"{match['what']}{redacted}"


_BEGIN, _END = r"(?:^|[_\-.\s])", r"(?:$|[_\-.\s\d])"
_STRONG: Final = re.compile(
    r"(?:password|passwd|passphrase|apikey)s?"
    + _END  # as in PGPASSWORD
    + "|"
    + _BEGIN
    + r"pass(?:$|[\s\d])|"  # as in db_pass, unlike pass_gates of a network
    + _BEGIN
    + r"(?:pass(?:word|wd|phrase|code)s?|passw|pwd|secrets?|sshpass"
    r"|(?:db|root|user|admin)[_\-]?pw|(?:gh|git|github|gitlab|azure|ado)[_\-]?pat"
    r"|(?:wandb|hf|hugging[_\-]?face|openai|anthropic|comet|neptune|ngc|cohere|mistral|groq|kaggle|clearml)[_\-]?keys?"
    r"|(?:api|access|private|secret|signing|encryption|account|storage|shared|master|license|service|client|app"
    r"|session|deploy|ssh|write|hmac)[_\-\s]?keys?|apikey|accountkey|sharedaccesskey|webhook(?:[_\-]?url)?)" + _END,
    re.IGNORECASE,
)
_WEAK: Final = re.compile(
    _BEGIN
    + r"(?:token|sig|signature)(?:$|[\s\d]|[_\-.](?:read|write|value|prod|dev|test|new|old|v\d+|ci)$)|"
    # unlike token_map and signature_def of a model
    + _BEGIN
    + r"(?:(?:access|api|auth|bearer|bot|csrf|github|gitlab|hf|hub|private|refresh|session|wandb)[_\-]?token"
    r"|auth|authorization|credentials?|creds?|dsn|bearer|cookies?|jwt|otp"
    r"|connection[_\-\s]?string|conn[_\-]?str|database[_\-]?url|db[_\-]?url|session[_\-]?(?:id|token)|key[_\-]?pair[_\-]?id"
    r"|sharedaccesssignature|access[_\-]?key[_\-]?id)" + _END,
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(
    r"(?:^|[_\-.])(?:pad|eos|bos|unk|mask|cls|sep|special|specials|blank|frame|ignore|language|latent|newline"
    r"|patch|placeholder|pooling|query|speech|think|vision|visual|image|audio|video|stop|start|end|begin|eot|eod|first|last"
    r"|next|prev|per|each|every|new|boi|eoi|fim|prefix|suffix|middle|control|extra|sentinel|decoder[_\-]start|max|min|num"
    r"|cost|time|ms|s)[_\-.]tokens?(?:$|[_\-.])"
    r"|token[_\-.]?(?:ids?|type|types|count|counts|len|length|dim|size|s|izer|ization|limit|budget|index|embedding"
    r"|embeddings|dropout|drop|mixing|mixers?|shift|shuffle|level|per|rate|file|path|name|url|uri|scheme|acc|accuracy|loss"
    r"|losses|weights?|weighting|merge|merging|routing|router|dispatch|dispatcher|stats|pooling|sampling|sampler|pruning"
    r"|reduction|selection|mask|masking|probs?|logits|logprobs|frequency|entropy|perplexity|ratio|throughput|window|stride"
    r"|padding|packing|usage|classification|classifier|labels?|head|fusion|positions?|offsets?|latency)(?:$|[_\-.])"
    r"|[_\-.](?:dims?|size|len|length|count|num|types?|index|idx|columns?|fields?|enabled|required|algorithm|format|pattern|ttl"
    r"|timeout|policy|rotation|strength)$"
    r"|(?:password|passwd|secret|key|credentials?)[_\-.](?:file|path|name|id|env|var|length|len|policy)$"
    r"|^(?:old)?pwd$|^pass(?:es)?$|(?:^|[_\-.])(?:per|each|first|second|forward|backward|multi|single|num|all|by|low|high|band|one|two)"
    r"[_\-.]?pass$|auth[_\-.](?:type|method|mode|scheme|provider)$",
    re.IGNORECASE,
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def secret_level(name: str) -> int:
    """Return 2 if a name is a secret's, 1 if it may have another meaning (``token``), else 0.

    Takes snake_case, kebab-case, dotted names and camelCase, also with capitals in a row (``HFToken``). Tokens of
    machine learning are not secrets: ``eos_token``, ``max_tokens``, ``token_accuracy``.
    """
    if len(name) > _LONGEST:
        return 0
    split = _HUMP.sub("_", name)
    if _HARMLESS.search(split):
        return 0
    return 2 if _STRONG.search(split) else 1 if _WEAK.search(split) else 0


_LONGEST: Final = 256
