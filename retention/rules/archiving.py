"""What is wrong with rules that archive: places that cannot be, and data that stay in the lake."""

from collections.abc import Iterator

from ranklake.retention.archive.objects import has_classes
from ranklake.retention.archive.place import place_fault
from ranklake.retention.rules.findings import Finding
from ranklake.retention.rules.look import Look
from ranklake.retention.rules.model import KEPT, Place, Rule


def archives(look: Look) -> Iterator[Finding]:
    """Yield archives that cannot be, and the books, which nothing archives."""
    for rule in look.rules:
        place = rule.destination
        if place is None:
            continue
        at = _at(look, rule)
        if fault := place_fault(place.to):
            hint = "write a URI or an absolute path; credentials belong under [storage], as references"
            yield Finding("RP026", at, f"rule {rule.name!r} cannot archive there: {fault}", hint)
        elif (place.storage_class or place.tag) and not has_classes(place.to):
            hint = "leave storage_class and tag out, or archive to s3://"
            yield Finding("RP026", at, "only S3 has storage classes and tags here", hint)
        tables = [one for one in look.contracts.values() if rule.may_match(one)]
        if tables and all(one.retention in KEPT for one in tables):
            what = f"rule {rule.name!r} archives nothing but the books, which stay in the lake"
            yield Finding("RP026", at, what, "name other tables, or leave archive out")


def unmasked(look: Look) -> Iterator[Finding]:
    """Yield masks that come after rows were archived: the archive keeps the values."""
    masking = [rule for rule in look.rules if "mask" in rule.waiting]
    for rule in (one for one in look.rules if one.destination is not None):
        for mask in masking:
            both = [one for one in look.contracts.values() if rule.may_match(one) and mask.may_match(one)]
            if both and mask.waiting["mask"] > rule.waiting["archive"]:
                what = f"rule {rule.name!r} archives {both[0].table} before {mask.name!r} masks it: values stay there"
                yield Finding("RP027", _at(look, rule), what, "mask earlier, or archive later")


def _at(look: Look, rule: Rule) -> Place:
    document = look.sources.documents[rule.at.file]
    return Place(rule.at.file, document.line(("rules", rule.name, "archive")))
