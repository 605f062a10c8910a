"""Redaction: what looks like a credential is replaced before it is recorded anywhere."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

REDACTED: Final = "[redacted]"

_SECRET_NAME: Final = re.compile(
    r"(?:^|[_\-.])(?:pass(?:word|wd|phrase)?|secrets?|token|auth|credentials?|dsn|(?:api|access|private)[_\-]?key)"
    r"(?:$|[_\-.])",
    re.IGNORECASE,
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPTION: Final = re.compile(r"key|secret|token|pass|credential|connection_string|auth|sas", re.IGNORECASE)
_SHORTEST: Final = 6
_SECRET_TEXT: Final = re.compile(
    r"A[KS]IA[0-9A-Z]{16}"  # AWS access key id
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_\-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}"
    r"|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"  # JSON web token
    r"|ya29\.[A-Za-z0-9_\-]{20,}"  # Google access token
    r"|(?<=[?&;])(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature|sig)=[^&\s\"'<>]+"
    r"|(?:AccountKey|SharedAccessSignature|SharedAccessKey)=[^;\s\"'<>]+"
    r"|(?i:x-amz-security-token|aws_secret_access_key|aws_session_token|client_secret|bearer)"
    r"(?:\s*[:=]\s*|\s+)[^\s&;,\"'<>]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",  # user and password of a URL
    re.DOTALL,
)


def redact(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value with credentials replaced: texts under telling names, texts of telling shapes anywhere."""
    if isinstance(value, dict):
        return {key: _hidden(item) if _tells(key) else redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _SECRET_TEXT.sub(REDACTED, value)
    return value


def secrets_in(options: Any) -> Iterator[str]:  # noqa: ANN401 - JSON, as users nest it
    """Yield the texts that stand under a secret's name in a store's options, however deep."""
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if isinstance(value, Mapping):
            yield from secrets_in(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST and _OPTION.search(str(name)):
            yield value


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text without some secrets, and without what looks like one."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return str(redact(text))


def _tells(key: str) -> bool:
    """Say whether a name announces a secret, in snake_case or camelCase."""
    return _SECRET_NAME.search(_HUMP.sub("_", key)) is not None


def _hidden(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return what stands under such a name without any text in it; numbers (token_count: 5) are no secrets."""
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return REDACTED if isinstance(value, str) and value else value
