"""Storage policies: what lets a role read the prefix of its share and nothing else, in the terms of each store.

A policy only allows. What it does not name stays refused as long as no other policy allows it, so whoever reads a share
must have no other rights in the bucket.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.retention.shares.place import ShareError, share_uri

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
