"""Storage options: delta-rs's names, translated for fsspec.

The section ``[storage]`` of ``ranklake.toml`` uses these names for delta-rs, the commands and capture. A value may be a
reference (`ranklake.segments.references`), which is resolved on use.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.segments.references import is_reference, resolve_references

PUT: Final = "put"
"""Key of arguments for each PUT, for fsspec file systems without an option for them."""
LATER: Final = "later"
"""Key of options with unresolved references in capture: a helper may take seconds, so they are resolved on
connecting."""

_Place = tuple[str, ...]


class StorageOptionError(RanklakeError):
    """A storage option that cannot be used. Its value is not shown."""


def _flag(text: str) -> bool:
    return text.strip().lower() in {"1", "true", "yes", "on"}


def _sse(text: str) -> str | None:
    return None if text.lower() == "sse-c" else text  # implied by the customer's key


def _anonymous(text: str) -> str | None:
    return "anon" if _flag(text) else None


def _customer_key(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise StorageOptionError("is not base64", where="aws_sse_customer_key_base64") from None


_S3: Final[dict[str, tuple[_Place, Callable[[str], Any]]]] = {
    "aws_access_key_id": (("key",), str),
    "aws_secret_access_key": (("secret",), str),
    "aws_session_token": (("token",), str),
    "aws_region": (("client_kwargs", "region_name"), str),
    "aws_endpoint_url": (("client_kwargs", "endpoint_url"), str),
    "aws_server_side_encryption": (("s3_additional_kwargs", "ServerSideEncryption"), _sse),
    "aws_sse_kms_key_id": (("s3_additional_kwargs", "SSEKMSKeyId"), str),
    "aws_sse_bucket_key_enabled": (("s3_additional_kwargs", "BucketKeyEnabled"), _flag),
    "aws_sse_customer_key_base64": (("s3_additional_kwargs", "SSECustomerKey"), _customer_key),
    "aws_storage_class": (("s3_additional_kwargs", "StorageClass"), str),
    "aws_acl": (("s3_additional_kwargs", "ACL"), str),
}
_GS: Final[dict[str, tuple[_Place, Callable[[str], Any]]]] = {
    "google_service_account": (("token",), str),
    "google_skip_signature": (("token",), _anonymous),
    "google_base_url": (("endpoint_url",), str),
    "google_endpoint_url": (("endpoint_url",), str),
    "google_kms_key_name": ((PUT, "kms_key_name"), str),
}
_AZURE: Final[dict[str, tuple[_Place, Callable[[str], Any]]]] = {
    "azure_storage_account_name": (("account_name",), str),
    "azure_storage_account_key": (("account_key",), str),
    "azure_storage_sas_token": (("sas_token",), str),
    "azure_storage_tenant_id": (("tenant_id",), str),
    "azure_storage_client_id": (("client_id",), str),
    "azure_storage_client_secret": (("client_secret",), str),
    "azure_encryption_scope": ((PUT, "encryption_scope"), str),
}
_ENDPOINT: Final = "azure_storage_endpoint"
ENDPOINTS: Final = ("aws_endpoint_url", "google_endpoint_url", "google_base_url", _ENDPOINT)
"""Options with the URL of a store's service."""
_AZURE_PROTOCOLS: Final = ("az", "abfs", "abfss", "adl")
_NAMES: Final = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GS),
    **dict.fromkeys(_AZURE_PROTOCOLS, _AZURE),
}

STORES: Final = tuple(_NAMES)
"""Schemes of URIs of object stores."""
SCHEMES: Final = (*STORES, "file", "memory")
"""Schemes of places for lakes, spools and copies."""
CLIENTS: Final = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(_AZURE_PROTOCOLS, ("adlfs", "azure")),
}
"""Client package of each scheme, and the extra of ranklake that installs it."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)
_BLANK: Final = re.compile(r"\s")

OPTION_NAMES: Final = frozenset({*_S3, *_GS, *_AZURE, _ENDPOINT})
"""Options of both clients; options only for delta-rs are passed to it unchanged."""

CLIENT_NAMES: Final = {
    place[-1]: name
    for names in (_AZURE, _GS, _S3)
    for name, (place, _) in names.items()
    if place[-1] not in OPTION_NAMES
}
"""Option names by fsspec's names; S3's name is used if clients share one."""


def uri_fault(uri: str) -> tuple[str, str]:
    """Return fault and hint for a malformed URI or folder; empty texts if it is valid."""
    scheme = _SCHEME.fullmatch(uri.strip())
    if uri != uri.strip():
        return "begins or ends with a blank", "take it out"
    if uri.startswith(("~", "$")):
        return f"{uri[0]} is not expanded here, as a shell would", "write the whole path"
    if scheme and scheme[1] not in SCHEMES and scheme[2]:
        near = did_you_mean(scheme[1].lower(), SCHEMES)
        hint = near if near.endswith("?") else f"name a folder, or a place of {', '.join(STORES)}"
        return f"no store is reached by {scheme[1]}:", hint
    if scheme and scheme[1] in STORES and (len(scheme[2]) != len("//") or not scheme[3].strip("/")):
        return "the bucket or container is missing", f"write it as {scheme[1]}://bucket/folder"
    if scheme and scheme[1] in STORES and _BLANK.search(scheme[3].partition("/")[0]):
        return "the name of the bucket or container has a blank", "take it out"
    return "", ""


def fsspec_options(uri: str, storage: Mapping[str, str]) -> dict[str, Any]:
    """Return fsspec's options for a URI; options of other stores and of delta-rs are ignored.

    Raises `StorageOptionError`, and `ranklake.segments.references.SecretError` for an unresolvable reference.
    """
    protocol = uri.partition("://")[0] if "://" in uri else "file"
    names = _NAMES.get(protocol, {})
    storage = resolve_references(
        {name: text for name, text in storage.items() if name in names or (names is _AZURE and name == _ENDPOINT)}
    )
    options: dict[str, Any] = {}
    for name, (place, convert) in names.items():
        value = convert(storage[name]) if storage.get(name) else None
        if value is not None:
            *folders, last = place
            inner = options
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[last] = value
    endpoint = storage.get(_ENDPOINT)
    if endpoint and protocol in _AZURE_PROTOCOLS:
        options["connection_string"] = _connection_string(endpoint, options)
    put = options.get("s3_additional_kwargs", {})
    if "SSECustomerKey" in put:
        put["SSECustomerAlgorithm"] = "AES256"
    return options


def deferred_options(uri: str, storage: Mapping[str, str]) -> dict[str, Any]:
    """Return fsspec's options with unresolved references, for `followed_options`. Raises `StorageOptionError`."""
    if any(is_reference(text) for text in storage.values()):
        return {LATER: dict(storage)}
    return fsspec_options(uri, storage)


def followed_options(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `deferred_options`, or any others, with references resolved. Raises as `fsspec_options`."""
    rest = {name: value for name, value in options.items() if name != LATER}
    return {**fsspec_options(uri, options[LATER]), **rest} if LATER in options else rest


def _connection_string(endpoint: str, options: Mapping[str, Any]) -> str:
    """Return adlfs's options for an endpoint; it ignores other options then."""
    facts = {
        "BlobEndpoint": endpoint,
        "AccountName": options.get("account_name"),
        "AccountKey": options.get("account_key"),
        "SharedAccessSignature": options.get("sas_token"),
    }
    return ";".join(f"{name}={value}" for name, value in facts.items() if value)
