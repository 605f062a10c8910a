"""The place of a share: a bucket prefix that one lake owns for one role, and storage policies for its readers.

    <to>/<role>/ranklake-share.json     the owner: the lake's identity, and the role
    <to>/<role>/tables/<table>/         a Delta table with the rows and columns that the role sees

A reader of the prefix sees what the role sees and nothing else.

A storage policy allows reading the prefix of a share, in the form of each store. Policies only add rights, so readers
of a share must have no other rights in the bucket.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.store.files import listed
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.posture import overlaps
from ranklake.lake.store.store import MARKER as LAKE_MARKER
from ranklake.lake.store.store import Store
from ranklake.redaction.redact import has_credential
from ranklake.retention.proposals.identities import owner

MARKER: Final = "ranklake-share.json"
FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ShareError(RanklakeError):
    """A share cannot be made, or its place belongs to another lake. Nothing was changed there."""


def share_uri(to: str, role: str) -> str:
    """Return the prefix of a role below a place. Raises `ShareError` for an invalid role name or URI."""
    if not _NAME.fullmatch(role):
        hint = "name it in letters, digits, dots, dashes and underscores"
        raise ShareError(f"role {role!r} cannot be the name of a folder", where="ROLE", hint=hint)
    if has_credential(to):
        hint = "take it out, and name it under [storage] by a reference"
        raise ShareError("a credential stands in the URI", where="--to", hint=hint)
    return f"{to.rstrip('/')}/{role}"


def open_place(store: Store, uri: str) -> Store:
    """Return the place of a share, with the lake's storage options. Raises `LakeUnreachableError`."""
    return Store.at(uri, store.storage)


def claim(lake: Lake, place: Store, role: str) -> None:
    """Mark a place as this lake's share for a role. A second call changes nothing.

    Raises `ShareError` if the place belongs to another lake or role, is not empty, or overlaps the lake or its spool.
    """
    if overlaps(lake, place):
        message = "the place lies in the lake or a spool, or around it"
        raise ShareError(message, where=place.uri, hint="give shares a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        if place.fs.exists(place.path(LAKE_MARKER)):
            raise ShareError("a lake is there", where=place.uri, hint="name an empty place")
        if any(not file.path.endswith(".tmp") for file in listed(place.fs, place.root)):
            raise ShareError("the place is not empty, and no share", where=place.uri, hint="name an empty place")
        marker = {"format": FORMAT, "lake": owner(lake.store), "role": role}
        place.put_if_absent(MARKER, json.dumps(marker).encode())
    refuse_other(lake.store, place, role)


def refuse_other(store: Store, place: Store, role: str) -> None:
    """Raise `ShareError` unless a place is marked as this lake's share for a role."""
    try:
        marker = json.loads(place.fs.cat_file(place.path(MARKER)))
        marked_lake, marked_role, format_ = marker["lake"], marker["role"], marker["format"]
    except FileNotFoundError:
        raise ShareError("no share is there", where=place.uri, hint="make it: ranklake share ROLE --to URI") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = f"restore {MARKER} there, or name an empty place"
        raise ShareError("what says whose share this is cannot be read", where=place.uri, hint=hint) from None
    if format_ != FORMAT:
        raise ShareError(f"a share of format {format_}, and {FORMAT} is known here", where=place.uri, hint="upgrade it")
    if marked_lake != owner(store):
        raise ShareError("another lake owns this share", where=place.uri, hint="name another place")
    if marked_role != role:
        raise ShareError(f"this is the share of role {marked_role!r}", where=place.uri, hint="name another place")


_S3_VERSION: Final = "2012-10-17"
_ARN: Final = "arn:aws:s3:::"
_URI: Final = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<place>[^/]+)(?P<path>/.*)?")
_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers"
_READ: Final = f"{_BLOBS}/blobs/read"
_AZURE_HOST: Final = re.compile(r"(?P<container>[^@/]+)@(?P<account>[a-z0-9]+)\..*")
_EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
_SPECIAL: Final = re.compile(r"[^\x20-\x7e]|[*?$\"'\\]")


def storage_policy(store: str, to: str, role: str, principal: str) -> dict[str, Any]:
    """Return the policy that lets a principal read a role's share, as plain JSON values.

    Parameters
    ----------
    store
        One of `STORES`.
    to
        The place of shares, such as ``s3://telemetry-shares/roles``.
    principal
        The reader's name in the store; empty for a policy that is attached to the reader's account.

    Raises `ShareError` for an unknown store, or a place of another store.
    """
    if store not in STORES:
        raise ShareError(f"unknown store {store!r}", where="--store", hint=did_you_mean(store, STORES))
    make, schemes, principal_form = STORES[store]
    match = _URI.fullmatch(share_uri(to, role))
    if match is None or match["scheme"] not in schemes:
        raise ShareError(f"no place of {store}", where="--to", hint=f"write {schemes[0]}://bucket/prefix")
    prefix = (match["path"] or "").strip("/")
    if _SPECIAL.search(prefix) or _SPECIAL.search(match["place"]):
        hint = "name a place in plain letters, without quotes, stars, question marks and dollar signs"
        raise ShareError("its name has a letter that means something in policies", where="--to", hint=hint)
    if principal_form and not principal:
        raise ShareError(f"{store} wants to know who reads", where="--principal", hint=f"write {principal_form}")
    if "*" in principal or principal in _EVERYBODY:
        hint = "name one account or one group; a share is for those whom its role is for"
        raise ShareError("that is everybody", where="--principal", hint=hint)
    return make(match["place"], prefix, principal)


def _statements(bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Return the S3 statements that allow listing and reading objects below a prefix."""
    return [
        {
            "Sid": "ListTheShare",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"{_ARN}{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}/*"]}},
        },
        {
            "Sid": "ReadTheShare",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [f"{_ARN}{bucket}/{prefix}/*"],
        },
    ]


def _identity(bucket: str, prefix: str, principal: str) -> dict[str, Any]:
    """Return a policy to attach to the reader's account (AWS IAM, MinIO)."""
    del principal
    return {"Version": _S3_VERSION, "Statement": _statements(bucket, prefix)}


def _of_bucket(bucket: str, prefix: str, principal: str) -> dict[str, Any]:
    """Return a policy to attach to the bucket, with the reader as principal (radosgw, AWS)."""
    reader = {"Principal": {"AWS": [principal]}}
    return {"Version": _S3_VERSION, "Statement": [{**statement, **reader} for statement in _statements(bucket, prefix)]}


def _google(bucket: str, prefix: str, principal: str) -> dict[str, Any]:
    """Return a conditional binding of the bucket's IAM policy."""
    objects = f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}/")'
    listing = f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{prefix}/")'
    condition = {"title": "reads a share", "expression": f"{objects} || {listing}"}
    role = "roles/storage.objectViewer"
    return {"version": 3, "bindings": [{"role": role, "members": [principal], "condition": condition}]}


def _azure(place: str, prefix: str, principal: str) -> dict[str, Any]:
    """Return a role assignment with a condition."""
    host = _AZURE_HOST.fullmatch(place)
    container = host["container"] if host else place
    is_list = "SubOperationMatches{'Blob.List'}"
    own = f"@Resource[{_BLOBS}:name] StringEquals '{container}'"
    read = f"{own} AND @Resource[{_BLOBS}/blobs:path] StringLike '{prefix}/*'"
    listed = f"{own} AND @Request[{_BLOBS}/blobs:prefix] StringStartsWith '{prefix}/'"
    matches = f"ActionMatches{{'{_READ}'}}"
    condition = f"((!({matches} AND NOT {is_list})) OR ({read})) AND ((!({matches} AND {is_list})) OR ({listed}))"
    facts = {"principalId": principal, "conditionVersion": "2.0", "condition": condition}
    account = f"storageAccounts/{host['account']}" if host else "storageAccounts/ACCOUNT"
    scope = f"/…/providers/Microsoft.Storage/{account}/blobServices/default/containers/{container}"
    return {"roleDefinition": "Storage Blob Data Reader", "scope": scope, **facts}


Make = Callable[[str, str, str], dict[str, Any]]
STORES: Final[Mapping[str, tuple[Make, tuple[str, ...], str]]] = MappingProxyType(
    {
        "s3": (_identity, ("s3", "s3a"), ""),
        "minio": (_identity, ("s3", "s3a"), ""),
        "radosgw": (_of_bucket, ("s3", "s3a"), "arn:aws:iam:::user/NAME"),
        "gcs": (_google, ("gs", "gcs"), "serviceAccount:NAME@PROJECT.iam.gserviceaccount.com, or user:NAME"),
        "azure": (_azure, ("abfss", "abfs", "az", "adl"), "the object id of a user, group or application"),
    }
)
"""Stores by name: the function that makes a policy, schemes of URIs, and the form of the principal if one is needed."""
