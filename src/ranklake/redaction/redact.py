"""Redaction: replaces text that looks like a credential before it is recorded.

    a text under a secret's name           password, AWS_SECRET_ACCESS_KEY, apiKey        `secret_names`
    a secret's name and value in text      token=…, "password": "…", --api-key …
    a text of a known shape                such as a web token or a private key           `SHAPES`
    values of commands' short options      curl -u USER:…, mysql -p…, lines of a netrc    `secret_names`
    user and password of a URL, and its signature
    random text                            20 characters and more; not in names           `randomness`
    secrets known to this process          values of its variables, options, settings     `known_secrets`

Digests, commits, UUIDs, numbers and paths are kept, except under a secret's name. `redact_names` is for names of runs,
jobs, metrics and tags, for settings and for folders; `redact` is for other text of persons and programs. All functions
take linear time.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ranklake.redaction.known_secrets import without_known
from ranklake.redaction.randomness import random_stretches
from ranklake.redaction.secret_names import hide_arguments, hide_in_text, secret_level

_TABLE: Final = (
    # literals, one of which is in every match · the pattern
    (("AKIA", "ASIA", "ABIA", "ACCA"), r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}"),  # AWS access key id
    (("AIza",), r"AIza[0-9A-Za-z_\-]{30,}"),  # Google API key
    (("ya29.",), r"ya29\.[A-Za-z0-9_\-]{20,}"),  # Google access token
    (("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_\-]{20,}"),  # Google OAuth client
    (("AccountKey",), r"AccountKey=[^;\s\"'<>]+"),  # Azure storage
    (("SharedAccess",), r"SharedAccess(?:Signature|Key)=[^;\s\"'<>]+"),
    (("gh", "github_pat_"), r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"),
    (("gl",), r"gl(?:pat|ptt|dt|rt|cbt|ft|soat|oas)-[A-Za-z0-9_\-.]{16,}"),  # GitLab
    (("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),  # Hugging Face
    (("sk-",), r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9_\-]{20,}"),  # OpenAI, Anthropic; no mask-rcnn-…
    (("gsk_", "r8_"), r"(?:gsk|r8)_[A-Za-z0-9]{20,}"),  # Groq, Replicate
    (("wandb",), r"wandb[^\n]{0,64}?(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"),  # W&B's looks like a commit
    (("wandb_v1_",), r"wandb_v1_[A-Za-z0-9_]{32,}"),
    (("KGAT_", "LTAI", "AKID"), r"KGAT_[0-9a-f]{32}|LTAI[0-9A-Za-z]{12,}|AKID[0-9A-Za-z]{32}"),  # Kaggle, clouds
    (("FwoGZXIvYXdz", "IQoJb3JpZ2lu"), r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=]{20,}"),  # AWS session token
    (("Q~",), r"[A-Za-z0-9_~.\-]{3}[0-9]Q~[A-Za-z0-9_~.\-]{31,34}"),  # Azure client secret
    (("1//0",), r"1//0[A-Za-z0-9_\-]{40,}"),  # Google refresh token
    (("nvapi-", "xai-", "pplx-", "csk-"), r"(?:nvapi|xai|pplx|csk)-[A-Za-z0-9_\-]{32,}"),  # NVIDIA, xAI, others
    (("pcsk_", "tgp_v1_", "jina_"), r"(?:pcsk|tgp_v1|jina)_[A-Za-z0-9_]{32,}"),  # Pinecone, Together, Jina
    (("rpa_", "fw_"), r"(?<![A-Za-z0-9])(?:rpa_[A-Z0-9]{30,}|fw_[A-Za-z0-9]{22,})"),  # RunPod, Fireworks
    (("ak-", "as-"), r"(?<![A-Za-z0-9])a[ks]-[A-Za-z0-9]{22}(?![A-Za-z0-9])"),  # Modal
    (("ATATT3x", "ATBB", "ATCTT3"), r"(?:ATATT3x|ATBB|ATCTT3)[A-Za-z0-9_\-=]{16,}"),  # Atlassian
    (("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}"),  # Doppler
    ((".atlasv1.",), r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-=]{60,}"),  # Terraform
    (("pul-",), r"pul-[0-9a-f]{40}"),  # Pulumi
    (("pscale_",), r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_\-.=]{32,}"),  # PlanetScale
    (("sntry",), r"sntry[su]_[A-Za-z0-9+/=_]{40,}"),  # Sentry
    (("NRAK-", "dt0c01."), r"NRAK-[A-Z0-9]{27}|dt0c01\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # New Relic, Dynatrace
    (("key-", "-us"), r"(?<![A-Za-z0-9])(?:key-[0-9a-f]{32}|[0-9a-f]{32}-us[0-9]{1,2})(?![A-Za-z0-9])"),  # mailers
    (("rubygems_", "AKCp"), r"rubygems_[0-9a-f]{48}|AKCp[A-Za-z0-9]{40,}"),  # RubyGems, JFrog
    (("sq0",), r"sq0[a-z]{3}-[A-Za-z0-9_\-]{22,}"),  # Square
    (("ntn_", "lin_api_", "figd_"), r"(?:ntn|lin_api|figd)_[A-Za-z0-9_\-]{30,}"),  # Notion, Linear, Figma
    ((":AA",), r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}"),  # Telegram
    (("/api/webhooks/", "webhook.office"), r"/api/webhooks/[0-9]+/[A-Za-z0-9_\-]+|webhook\.office\.com/[^\s\"'<>]+"),
    (("CCIPAT_", "bkua_", "nfp_", "phx_"), r"(?:CCIPAT|bkua|nfp|phx)_[A-Za-z0-9_]{30,}"),  # CircleCI and others
    (("tskey-",), r"tskey-[a-z]+-[A-Za-z0-9]+(?:-[A-Za-z0-9]+)?"),  # Tailscale
    (("sb_secret_", "sgp_", "rdme_"), r"(?:sb_secret|sgp|rdme)_[A-Za-z0-9_\-]{20,}"),  # Supabase, Sourcegraph, ReadMe
    (("dapi",), r"dapi[0-9a-f]{32}"),  # Databricks
    (("do",), r"do[opr]_v1_[a-f0-9]{40,}"),  # DigitalOcean
    (("lsv2_",), r"lsv2_[a-z]{2}_[0-9a-fA-F]{20,}(?:_[0-9a-fA-F]+)?"),  # LangSmith
    (("sbp_",), r"sbp_[0-9a-fA-F]{32,}"),  # Supabase
    (("shp",), r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),  # Shopify
    (("PMAK-",), r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    (("glsa_",), r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}"),  # Grafana
    (("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_\-]{20,}"),  # Docker
    (("npm_",), r"npm_[A-Za-z0-9]{20,}"),
    (("pypi-",), r"pypi-[A-Za-z0-9_\-]{32,}"),
    (("k_live_", "k_test_"), r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),  # Stripe
    (("SG.",), r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"),  # SendGrid
    (("SK",), r"SK[0-9a-f]{32}(?![0-9a-f])"),  # Twilio
    (("xox", "xapp-"), r"xox[abeoprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}"),  # Slack
    (("hooks.slack",), r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]+"),
    (("hvs.", "hvb.", "hvr."), r"hv[sbr]\.[A-Za-z0-9_\-]{20,}"),  # Vault
    (("AGE-SECRET",), r"AGE-SECRET-KEY-1[0-9A-Z]{20,}"),
    (
        ("secret-", "secret_", "token-", "token_", "tok-", "tok_"),
        r"secret_[0-9A-Za-z]{43}(?![0-9A-Za-z])|secret[_\-][0-9a-f]{24,}(?![0-9A-Za-z])|tok(?:en)?[_\-][0-9a-f]{24,}(?![0-9A-Za-z])",
    ),  # made at home
    (
        ("eyJ",),
        r"(?:(?<![A-Za-z])|(?<=\\[nrt]))eyJ[h-z0-6][A-Za-z0-9_\-+/]{16,}={0,2}(?:\.[A-Za-z0-9_\-]*){0,4}",
    ),  # JSON web token, or other JSON in base64
    (
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|.*)",
    ),
)
"""No pattern restarts inside text that it has searched without a match, so all take linear time."""
SHAPES: Final = re.compile("|".join(pattern for _, pattern in _TABLE), re.DOTALL)
LITERALS: Final = tuple(literal for literals, _ in _TABLE for literal in literals)
"""A text without any of these has no known shape: `in` is much faster than the pattern."""


REDACTED: Final = "[redacted]"

_OPTION: Final = re.compile(r"key|secret|token|pass|credential|connection_string|auth|sas", re.IGNORECASE)
_SHORTEST: Final = 6
_BEARER: Final = re.compile(r"(?i)\b(?P<what>bearer|basic|digest)(?P<gap>\s+)(?P<value>[^\s,;\"'<>]{16,})")
_SCHEMES: Final = ("bearer ", "basic ", "digest ")
_HEADER: Final = re.compile(
    r"(?i)(?P<what>authorization[\\\"']{0,4}\s{0,2}[:=]\s{0,2}[\\\"']{0,4}(?:bearer|basic|digest|token|negotiate|apikey)\s{1,2})"
    r"(?P<value>[^\s,;\"'<>\\]+)"
)
_SPOKEN: Final = re.compile(
    r"(?i)(?P<what>\b(?:(?:api|access|secret)\s(?:keys?|token)|password|passphrase|login\(\s*key)"
    r"(?:\s(?:provided|given|used))?\s{0,2}(?:\sis:?|[:=])\s{0,2}[\"']?)(?P<value>[^\s,;\"'<>)\]}]{6,})"
)
"""As in error messages: ``Incorrect API key provided: …``; and ``wandb.login(key=…)``."""
_SPOKEN_HINTS: Final = ("api ", "access ", "secret ", "password", "passphrase", "login(")
_UNBROKEN: Final = re.compile(r"[^\s\"'<>]+")
_USER: Final = re.compile(r"(?<=://)[^/:@]*:(?!\d{1,5}(?:[/?#,\s]|$))")
_LONG_USER: Final = re.compile(r"(?<=://)[^/\s:@\"'<>]{16,}(?=@)")
_WEB_USER: Final = re.compile(r"(?<=http://|ttps://)[^/\s:@\"'<>]+(?=@)")
_HINTS: Final = (
    *("pass", "secret", "token", "key", "auth", "cred", "dsn", "sig", "jwt", "cookie", "webhook", "conn", "otp"),
    *("session", "_url", "bearer", "sharedaccess", "_pat", "-pat", "pw"),
)
"""Every secret's name contains one of them: searching for it is much faster than the pattern."""
_NAME: Final = re.compile(
    r"""(?<![\w.\-])(?P<option>--?)?(?P<name>[A-Za-z_][\w.\-]{1,63}+)"""
    r"""(?:[\\"']{0,4}\]?(?:\s?:\s?[A-Za-z_][\w.\[\], |]{1,40}?(?=\s?=\s?[bru]?["']))?"""  # an annotation
    r"""(?P<left>\s{0,2})(?P<sign>=>|:=|==|[:=])(?P<right>\s{0,2})|(?(option)\s+|(?!)))"""
)
_QUOTED: Final = re.compile(r"""(?P<open>[bru]?\\{0,4}["'])(?P<value>[^\n]{0,4096}?)(?<!\\)(?P=open)""")
_BARE: Final = re.compile(r"""(?:[bru]?\\{0,4}["'])?(?P<value>[^\s&,;"'<>)\]}]{1,512})(?P<after>[,)(\[]?)""")
_BARE_REST: Final = re.compile(r"""[^\s&,;"'<>)\]}]*""")
_PLACEHOLDER: Final = re.compile(r"\[redacted\]|\[redacted|\$.*|<.*|%[(\w].*|\{.*|\*+|\.\.\.|…|-")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z_.\-]*:?")
_EXPRESSION: Final = re.compile(r"[A-Za-z_][\w.]*[(\[|].*")
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|[-+]?(?=\.?\d)[\d_]*+\.?\d*+(?:[eE][-+]?\d+)?[smhdkKMGTB%]{0,3}\.?")
_SPECIAL: Final = re.compile(r"</?[A-Za-z_]{1,24}>|\[[A-Za-z_]{1,24}\]")
"""Special tokens of a language model, such as ``<sos>`` and ``[MASK]``."""
_FORMAT: Final = re.compile(r"%[sdr(]|\{[\w.!:]*\}")
_NAMING: Final = ("name", "key", "variable")
"""Keys with the name of the item under ``value``, as in the environment of a container."""
_LITERAL: Final = re.compile(r"none|null|nil|true|false|yes|no|on|off|required|optional|str|int|bytes", re.IGNORECASE)


def redact(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value with credentials replaced by `REDACTED`: texts under secrets' names, and recognized ones.

    Keys are redacted, too. Numbers under secrets' names are kept (``token_count: 5``), as are other types.
    """
    return _each(value, _text)


def redact_names(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return names, settings or folders as `redact` does, but keep merely random text.

    Names contain numbers and abbreviations: ``resnet50_imagenet_b1024_lr0p4_wd5e5`` is not a credential.
    """
    return _each(value, _without_forms)


def _each(value: Any, text: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        named = "value" in value and any(
            secret_level(name) for key in _NAMING if isinstance(name := value.get(key), str)
        )
        return {
            text(key) if isinstance(key, str) else key: _redact_value(item, text)
            if secret_level(str(key)) or (named and key == "value")
            else _each(item, text)
            for key, item in value.items()
        }
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            value = hide_arguments(value, REDACTED)
        return [
            _redact_value(item, text)
            if _takes_a_secret(before) and isinstance(item, str) and item[:2] != "--"
            else _each(item, text)
            for before, item in zip([None, *value], value, strict=False)
        ]
    return value


def _takes_a_secret(argument: object) -> bool:
    """Whether an item of a list is an option whose value, the next item, is a secret."""
    return (
        isinstance(argument, str)
        and argument[:1] == "-"
        and "=" not in argument
        and secret_level(argument.lstrip("-")) > 0
    )


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line's arguments with credentials replaced: values of secret options, and recognized texts.

    The X in ``--api-key X``, ``--api-key=X`` and ``db.password=X`` is replaced, and text in a credential's form. Short
    options such as ``-p`` are known for a few commands (`secret_names`); for others the value stays unless it looks
    like a credential.
    """
    shown: list[str] = []
    hide_next = False
    for argument in hide_arguments(arguments, REDACTED):
        name, sign, value = argument.partition("=")
        telling = secret_level(name.lstrip("-+")) > 0
        if hide_next and not argument.startswith("--"):
            shown.append(REDACTED)
            hide_next = False
            continue
        hide_next = telling and not sign and argument.startswith("-")
        if telling and sign and value and " " not in name:
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(_without_forms(argument))
    return shown


def redact_uri(uri: str) -> str:
    """Return a URI without its user info and signature (values of its query that look like credentials)."""
    head, sign, rest = uri.partition("://")
    if sign:
        place, slash, path = rest.partition("/")
        bare = f"{head}://{place.rpartition('@')[2]}{slash}{path}"
    else:  # git@host:path
        account, at, place = uri.partition("@")
        bare = place if at and "/" not in account and ":" in place else uri
    return _without_forms(bare)


def has_credential(uri: str) -> bool:
    """Whether a URI certainly contains a credential: a password, a signature, or the shape of a known token.

    For refusals: merely random text, such as a folder's name, does not count here, though it is redacted.
    """
    return _without_forms(uri) != uri


def secrets_in(options: Any) -> Iterator[str]:  # noqa: ANN401 - JSON, as users nest it
    """Yield the texts under secrets' names in a store's options, at any depth."""
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if isinstance(value, Mapping):
            yield from secrets_in(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST and _OPTION.search(str(name)):
            yield value


def remove_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text without given secrets, and without text that looks like one."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return _text(text)


def _text(text: str) -> str:
    text = _without_forms(text)
    for begin, end in reversed(random_stretches(text)):
        text = text[:begin] + REDACTED + text[end:]
    return text


def _without_forms(text: str) -> str:
    """Return a text without secrets that are recognized by name, by shape, or as known."""
    if len(text) < _SHORTEST:
        return text
    text = without_known(text, REDACTED)
    if any(map(text.__contains__, LITERALS)):
        text = SHAPES.sub(REDACTED, text)
    text = hide_in_text(text, REDACTED)
    if "@" in text and "://" in text:
        text = _WEB_USER.sub(REDACTED, _LONG_USER.sub(REDACTED, _without_users(text)))
    small = text.lower()
    if any(map(small.__contains__, _HINTS)):
        if "authorization" in small:
            text = _HEADER.sub(_replacement, text)
        if any(map(small.__contains__, _SPOKEN_HINTS)):
            text = _SPOKEN.sub(_replacement, text)
        text = _redact_assignments(text)
    if any(map(small.__contains__, _SCHEMES)):
        text = _BEARER.sub(_bearer, text)
    return text


def _without_users(text: str) -> str:
    """Return a text without users and their passwords in URLs; in linear time, however many URLs there are.

    A password may contain a slash, a colon or an ``@``: it ends at the last ``@`` before a character that no URL has.
    """
    shown, at = [], 0
    for word in _UNBROKEN.finditer(text):
        last = text.rfind("@", *word.span())
        user = _USER.search(text, word.start(), last + 1) if last >= 0 else None
        if user is not None:
            shown += [text[at : user.start()], REDACTED]
            at = last
    return "".join([*shown, text[at:]])


def _redact_value(value: Any, text: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    """Return a value under a secret's name with its texts replaced; numbers are not secrets."""
    if isinstance(value, dict):
        return {text(key) if isinstance(key, str) else key: _redact_value(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, text) for item in value]
    is_secret = isinstance(value, str) and value and not _LITERAL.fullmatch(value) and not _SPECIAL.fullmatch(value)
    return REDACTED if is_secret else value


def _bearer(match: re.Match[str]) -> str:
    value = match["value"]
    if _PLACEHOLDER.match(value) or (match["what"].lower() != "bearer" and _WORD.fullmatch(value)):
        return match[0]
    return f"{match['what']}{match['gap']}{REDACTED}"


def _replacement(match: re.Match[str]) -> str:
    """Return a match of a name and its secret, with the secret replaced; prose and code are kept."""
    value = match["value"]
    is_other = not _can_be(value) or _WORD.fullmatch(value) or _EXPRESSION.fullmatch(value) or _NUMBER.fullmatch(value)
    return match[0] if is_other else f"{match['what']}{REDACTED}"


def _redact_assignments(text: str) -> str:
    """Return a text without the values after secrets' names."""
    shown, at = [], 0
    for name in _NAME.finditer(text):
        if name.start() < at:  # within a removed value
            continue
        strength = secret_level(name["name"])
        if not strength:
            continue
        value = _QUOTED.match(text, name.end())
        if value is not None:
            is_secret = (
                bool(name["sign"] or name["option"]) and _can_be(value["value"]) and not _is_prose(value["value"])
            )
        else:
            value = _BARE.match(text, name.end())
            is_secret = value is not None and _can_be(value["value"]) and _is_secret(name, value, strength)
        if value is not None and is_secret:
            shown += [text[at : value.start("value")], REDACTED]
            at = value.end("value")
            if value.re is _BARE and (rest := _BARE_REST.match(text, at)) is not None:
                at = rest.end()
    return "".join([*shown, text[at:]])


def _can_be(value: str) -> bool:
    return bool(value) and not _PLACEHOLDER.fullmatch(value) and not _LITERAL.fullmatch(value)


def _is_prose(quoted: str) -> bool:
    """Whether a quoted text is a sentence or a format rather than a secret."""
    return quoted.count(" ") > 2 or _FORMAT.search(quoted) is not None  # noqa: PLR2004 - words


def _is_secret(name: re.Match[str], match: re.Match[str], strength: int) -> bool:
    """Whether unquoted text after a secret's name is a value, rather than code or prose."""
    value, after = match["value"], match["after"]
    if not name["sign"]:
        return not value.startswith("-")
    tight = name["sign"] == "=" and not name["left"] and not name["right"]
    if _NUMBER.fullmatch(value):
        return strength > 1 and tight
    if _EXPRESSION.fullmatch(value) or after in ("(", "["):
        return False
    if _WORD.fullmatch(value):
        return tight and not after and (bool(name["option"]) or strength > 1 or len(value) >= _SHORTEST)
    return name["sign"] != "==" and len(value) >= (3 if strength > 1 or tight else _SHORTEST)
