"""The place of a share: a prefix that one lake owns for one role, and storage policies that let it read no more.

    <to>/<role>/ranklake-share.json     whose it is: the lake's number, and the role
    <to>/<role>/tables/<table>/         a Delta table: what the role sees of it

Whoever may read the prefix sees what the role sees, and nothing else.

Storage policies: what lets a role read the prefix of its share and nothing else, in the terms of each store.

A policy only allows. What it does not name stays refused as long as no other policy allows it, so whoever reads a share
must have no other rights in the bucket.
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
    """A share that cannot be made, or a place that is none of this lake's. Nothing was changed there."""


def share_uri(to: str, role: str) -> str:
    """Return the prefix of a role below a place. Raises `ShareError` for names and URIs that cannot be one."""
    if not _NAME.fullmatch(role):
        hint = "name it in letters, digits, dots, dashes and underscores"
        raise ShareError(f"role {role!r} cannot be the name of a folder", where="ROLE", hint=hint)
    if has_credential(to):
        hint = "take it out, and name it under [storage] by a reference"
        raise ShareError("a credential stands in the URI", where="--to", hint=hint)
    return f"{to.rstrip('/')}/{role}"


def open_place(store: Store, uri: str) -> Store:
    """Return the place of a share, reached as the lake is. Raises `LakeUnreachableError`."""
    return Store.at(uri, store.storage)


def claim(lake: Lake, place: Store, role: str) -> None:
    """Make a place this lake's, for a role; again changes nothing.

    Raises `ShareError` where it is another's, holds something else, or lies in the lake or around it.
    """
    if overlaps(lake, place):
        message = "the place lies in the lake or a spool, or around it"
        raise ShareError(message, where=place.uri, hint="give shares a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        if place.fs.exists(place.path(LAKE_MARKER)):
            raise ShareError("a lake is there", where=place.uri, hint="name an empty place")
        if any(not one.path.endswith(".tmp") for one in listed(place.fs, place.root)):
            raise ShareError("the place is not empty, and no share", where=place.uri, hint="name an empty place")
        marker = {"format": FORMAT, "lake": owner(lake.store), "role": role}
        place.put_if_absent(MARKER, json.dumps(marker).encode())
    refuse_other(lake.store, place, role)


def refuse_other(store: Store, place: Store, role: str) -> None:
    """Raise `ShareError` where a place is not this lake's share of a role."""
    try:
        marker = json.loads(place.fs.cat_file(place.path(MARKER)))
        whose_lake, marked_role, made = marker["lake"], marker["role"], marker["format"]
    except FileNotFoundError:
        raise ShareError("no share is there", where=place.uri, hint="make it: ranklake share ROLE --to URI") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = f"restore {MARKER} there, or name an empty place"
        raise ShareError("what says whose share this is cannot be read", where=place.uri, hint=hint) from None
    if made != FORMAT:
        raise ShareError(f"a share of format {made}, and {FORMAT} is known here", where=place.uri, hint="upgrade it")
    if whose_lake != owner(store):
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
_HEX: Final = re.compile(r"[^\x20-\x7e]|[*?$\"'\\]")


def storage_policy(store: str, to: str, role: str, principal: str) -> dict[str, Any]:
    """Return the policy by which somebody reads a role's share below a place, as plain JSON values.

    Parameters
    ----------
    store
        One of `STORES`.
    to
        Where shares are, such as ``s3://telemetry-shares/roles``.
    principal
        Who reads, in the store's terms; empty where the policy is attached to whoever it is.

    Raises `ShareError` for another store, or a place that is none of that store's.
    """
    if store not in STORES:
        raise ShareError(f"unknown store {store!r}", where="--store", hint=did_you_mean(store, STORES))
    make, schemes, asks = STORES[store]
    match = _URI.fullmatch(share_uri(to, role))
    if match is None or match["scheme"] not in schemes:
        raise ShareError(f"no place of {store}", where="--to", hint=f"write {schemes[0]}://bucket/prefix")
    prefix = (match["path"] or "").strip("/")
    if _HEX.search(prefix) or _HEX.search(match["place"]):
        hint = "name a place in plain letters, without quotes, stars, question marks and dollar signs"
        raise ShareError("its name has a letter that means something in policies", where="--to", hint=hint)
    if asks and not principal:
        raise ShareError(f"{store} wants to know who reads", where="--principal", hint=f"write {asks}")
    if "*" in principal or principal in _EVERYBODY:
        hint = "name one account or one group; a share is for those whom its role is for"
        raise ShareError("that is everybody", where="--principal", hint=hint)
    return make(match["place"], prefix, principal)


def _statements(bucket: str, prefix: str) -> list[dict[str, Any]]:
    """Return what S3 asks before it lists names below a prefix, and gives objects there."""
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
    """Return a policy that is attached to whoever reads (AWS's IAM, MinIO)."""
    del principal
    return {"Version": _S3_VERSION, "Statement": _statements(bucket, prefix)}


def _of_bucket(bucket: str, prefix: str, principal: str) -> dict[str, Any]:
    """Return a policy that is attached to the bucket, and names who reads (radosgw, AWS)."""
    who = {"Principal": {"AWS": [principal]}}
    return {"Version": _S3_VERSION, "Statement": [{**statement, **who} for statement in _statements(bucket, prefix)]}


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
"""Stores by name: what makes a policy, schemes of their URIs, and who is to be named where somebody is."""
