"""Kubernetes: what ``kubectl get jobs,pods,events -o json`` prints becomes rows of ``jobs`` and ``events``.

A job is an object that makes pods and that no other object of the file owns: a Job, JobSet, PyTorchJob (and others of
Kubeflow), Volcano Job, or a pod by itself. Its times are those at which nodes took and left its pods, else
its own. GPUs are the limits of its containers, times its replicas. Kueue's and Volcano's queues are its pool, the
namespace its team. Objects of other kinds are counted and left out.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.accounting import add_job, child, counts_text, refuse_flawed
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import Line, SourceError
from ranklake.capture.importers.units import moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_MOST_BYTES: Final = 512 << 20
_GPU: Final = re.compile(r"(?:nvidia\.com/(?:gpu|mig-[\w.-]+)|amd\.com/gpu|gpu\.intel\.com/\w+)")
_MAKERS: Final = re.compile(r"Job|JobSet|TrainJob|\w+Job")
_QUEUES: Final = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "runai/queue", "yunikorn.apache.org/queue")
_NODE_GPU: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
_ENDS: Final = {
    "Complete": "completed", "Succeeded": "completed", "Completed": "completed", "Finished": "completed",
    "Failed": "failed", "Aborted": "cancelled", "Terminated": "failed",
}  # fmt: skip
_PREEMPTED: Final = frozenset({"PreemptionByScheduler", "PreemptionByKubeScheduler", "Preempted", "Preempting"})
_EVENTS: Final = {"Preempted": "preemption", "Preempting": "preemption", "Evicted": "interruption"}
_OUT_OF_MEMORY: Final = "OOMKilled"
_DEEPEST: Final = 24

Object = dict[str, Any]


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a list of objects.

    Raises
    ------
    SourceError
        The file is no JSON of Kubernetes.
    """
    objects = [item for document in _documents(source) for item in _items(document)]
    by_uid = {uid: item for item in objects if (uid := child(item, "metadata").get("uid"))}
    pods: dict[str, list[Object]] = {}
    others: Counter[str] = Counter()
    for item in objects:
        if item.get("kind") == "Pod" and (root := _root(item, by_uid)) is not item:
            pods.setdefault(str(child(root, "metadata").get("uid")), []).append(item)
    for number, item in enumerate(objects, 1):
        kind = str(item.get("kind"))
        is_owned = _root(item, by_uid) is not item
        if kind == "Event":
            _event(item, number, recording)
        elif kind != "Pod" and not _MAKERS.fullmatch(kind):
            others[kind] += 1
        elif not is_owned:
            line = Line(number, json.dumps(item, ensure_ascii=False))
            with refuse_flawed(recording, line):
                own = pods.get(str(child(item, "metadata").get("uid")), [item] if kind == "Pod" else [])
                add_job(recording, line, _job(item, own))
    if others:
        recording.notes[f"objects that are no jobs are left out: {counts_text(others)}"] = None


def _documents(source: "Source") -> Iterator[Any]:
    """Yield the documents of a file: one, or several in a row as ``--watch`` prints them."""
    text = source.read_all(_MOST_BYTES).decode(errors="replace")
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        rest = re.compile(r"\s*").match(text, at)
        at = rest.end() if rest else at
        if at >= len(text):
            return
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise SourceError("is no whole JSON document", where=source.name, hint="save it again") from error
        yield document


def _items(document: Any) -> list[Object]:  # noqa: ANN401 - JSON
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        items = [document]
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]


def _root(item: Object, by_uid: dict[str, Object]) -> Object:
    """Return the topmost job object of the file that owns an object; the object itself if none does."""
    for _ in range(_DEEPEST):
        owners = child(item, "metadata").get("ownerReferences")
        above = (
            [by_uid.get(str(owner.get("uid"))) for owner in owners if isinstance(owner, dict)]
            if isinstance(owners, list)
            else []
        )
        makers = [owner for owner in above if owner is not None and _MAKERS.fullmatch(str(owner.get("kind")))]
        if not makers:
            return item
        item = makers[0]
    return item


def _job(item: Object, pods: list[Object]) -> dict[str, Any]:
    """Return a job's columns. Raises `ValueError`, fit to be shown."""
    meta, status, spec = (child(item, key) for key in ("metadata", "status", "spec"))
    name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "default")
    if not name:
        flaw = "an object without a name"
        raise ValueError(flaw)
    labels = child(meta, "labels") | child(meta, "annotations")
    state, end_us, reason = _state_end_reason(item, status)
    scheduled_us = [at for pod in pods if (at := _schedule_time(pod)) is not None]
    pod_ends_us = [_end_time(pod) for pod in pods]
    is_pod = item.get("kind") == "Pod"
    start_us = min(scheduled_us) if scheduled_us else None if is_pod else _us(status.get("startTime"))
    ends = [at for at in pod_ends_us if at is not None]
    if end_us is None and state not in {"running", "pending"} and ends and len(ends) == len(pod_ends_us):
        end_us = max(ends)
    gpus = _gpus(spec)
    by_pod = [(_gpus(child(pod, "spec")), _schedule_time(pod), _end_time(pod) or end_us) for pod in pods]
    codes = [code for pod in pods for code in _exit_codes(pod)]
    if state == "pending" and scheduled_us:
        state = "running"
    if state == "failed" and any(word == _OUT_OF_MEMORY for _, word in codes):
        state = "out_of_memory"
    kinds = {value for pod in [item, *pods] for key, value in _node_labels(pod) if key in _NODE_GPU}
    nodes = sorted({str(node) for pod in pods if (node := child(pod, "spec").get("nodeName"))})
    failed = [code for code, _ in codes if code]
    queue = next((str(labels[key]) for key in _QUEUES if labels.get(key)), None)
    outcomes = {"completed": "completed", "cancelled": "cancelled", "running": None, "pending": None}
    columns = {
        "job_id": str(meta.get("uid") or f"{namespace}/{name}"), "job_name": f"{namespace}/{name}", "team": namespace,
        "pool": queue or spec.get("queue"), "state": state, "state_reason": reason,
        "quality_of_service": spec.get("priorityClassName") or labels.get("kueue.x-k8s.io/priority-class"),
        "outcome": outcomes.get(state, "failed"), "submit_ts": _us(meta.get("creationTimestamp")),
        "start_ts": start_us, "end_ts": end_us,
        "gpu_requested_count": gpus, "gpu_count": gpus if start_us is not None else None,
        "gpu_type": kinds.pop() if len(kinds) == 1 else None,
        "exit_code": failed[0] if failed else 0 if codes and state == "completed" else None,
        "node_list": ",".join(nodes) or None, "node_count": len(nodes) or None,
        "restart_count": sum(_restarts(pod) for pod in pods) if pods else None,
        "attributes": json.dumps({"kind": item.get("kind"), "pods": len(pods)}, sort_keys=True),
    }  # fmt: skip
    spans = [(count, end - begin) for count, begin, end in by_pod if begin is not None and end is not None]
    if end_us is not None and spans and len(spans) == len(by_pod) and min(span for _, span in spans) >= 0:
        columns["gpu_time_s"] = sum(count * span for count, span in spans) / 1e6
    return columns


def _state_end_reason(item: Object, status: Object) -> tuple[str, int | None, str | None]:
    """Return the state of an object, its end (µs since 1970, None if unknown), and the reason."""
    conditions = [
        part for part in status.get("conditions") or [] if isinstance(part, dict) and part.get("status") == "True"
    ]
    if item.get("kind") == "Pod":
        phase = str(status.get("phase") or "Pending")
        why = next(
            (str(part.get("reason")) for part in conditions if part.get("type") == "DisruptionTarget"),
            status.get("reason"),
        )
        if phase in {"Succeeded", "Failed"}:
            return "preempted" if why in _PREEMPTED else _ENDS[phase], _end_time(item), why
        return "running" if phase == "Running" else "pending", None, why
    if volcano := child(status, "state"):
        word = str(volcano.get("phase") or "")
        ended = _us(volcano.get("lastTransitionTime")) if word in _ENDS else None
        return _ENDS.get(word, "running" if word == "Running" else "pending"), ended, volcano.get("reason")
    for part in conditions:
        if part.get("type") in _ENDS:
            ended = _us(status.get("completionTime")) or _us(part.get("lastTransitionTime"))
            return _ENDS[str(part["type"])], ended, part.get("reason")
    is_active = status.get("active") or any(part.get("type") == "Running" for part in conditions)
    return "running" if is_active else "pending", None, None


def _event(item: Object, number: int, recording: "ImportedRun") -> None:
    """Add an event of the cluster with its count and its object; `number` is its place in the file, from 1."""
    stamp = next((item[key] for key in ("lastTimestamp", "eventTime", "firstTimestamp") if item.get(key)), None)
    at_us = _us(stamp) or _us(child(item, "metadata").get("creationTimestamp"))
    if at_us is None or not item.get("reason"):
        recording.refuse("events", "an event without a time or a reason", json.dumps(item, ensure_ascii=False), number)
        return
    about = child(item, "involvedObject") or child(item, "regarding")
    known = {"kind": about.get("kind"), "name": about.get("name"), "namespace": about.get("namespace"),
             "uid": about.get("uid"), "count": item.get("count"), "reason": item["reason"]}  # fmt: skip
    recording.row(
        "events", at_us * 1000, event=_EVENTS.get(str(item["reason"]), str(item["reason"])),
        severity="warning" if item.get("type") == "Warning" else "info",
        message=str(item.get("message") or item.get("note") or "") or None,
        attributes=json.dumps({key: value for key, value in known.items() if value is not None}, sort_keys=True),
    )  # fmt: skip


def _gpus(spec: Any, depth: int = 0) -> int:  # noqa: ANN401 - JSON
    """Return the GPUs of a specification: limits of its containers, times the replicas around them."""
    if depth > _DEEPEST or not isinstance(spec, dict | list):
        return 0
    if isinstance(spec, list):
        return sum(_gpus(part, depth + 1) for part in spec)
    containers = spec.get("containers")
    if isinstance(containers, list):
        return sum(_limits(container) for container in containers)
    number = next((spec[key] for key in ("replicas", "parallelism", "numNodes") if isinstance(spec.get(key), int)), 1)
    if isinstance(spec.get("resourcesPerNode"), dict):
        return int(number) * _limits({"resources": spec["resourcesPerNode"]})
    return int(number) * sum(_gpus(part, depth + 1) for part in spec.values())


def _limits(container: Any) -> int:  # noqa: ANN401 - JSON
    resources = child(container, "resources") if isinstance(container, dict) else {}
    limits = child(resources, "limits") or child(resources, "requests")
    return sum(int(amount) for name, amount in limits.items() if _GPU.fullmatch(name) and str(amount).isdecimal())


def _schedule_time(pod: Object) -> int | None:
    """Return when a node took a pod, µs since 1970; None if unknown."""
    status = child(pod, "status")
    for part in status.get("conditions") or []:
        if isinstance(part, dict) and part.get("type") == "PodScheduled" and part.get("status") == "True":
            return _us(part.get("lastTransitionTime"))
    return _us(status.get("startTime"))


def _end_time(pod: Object) -> int | None:
    """Return when the last container of a finished pod ended, µs since 1970; None for other pods."""
    status = child(pod, "status")
    if status.get("phase") not in {"Succeeded", "Failed"}:
        return None
    ends = [_us(ended.get("finishedAt")) for ended in _container_ends(pod)]
    known = [at for at in ends if at is not None]
    return max(known) if known else None


def _container_ends(pod: Object) -> list[Object]:
    statuses = child(pod, "status").get("containerStatuses")
    parts = statuses if isinstance(statuses, list) else []
    return [child(child(part, "state"), "terminated") for part in parts if isinstance(part, dict)]


def _exit_codes(pod: Object) -> list[tuple[int, str]]:
    ended = [part for part in _container_ends(pod) if isinstance(part.get("exitCode"), int)]
    return [(part["exitCode"], str(part.get("reason"))) for part in ended]


def _restarts(pod: Object) -> int:
    statuses = child(pod, "status").get("containerStatuses")
    return (
        sum(int(part.get("restartCount") or 0) for part in statuses if isinstance(part, dict))
        if isinstance(statuses, list)
        else 0
    )


def _node_labels(pod: Object) -> list[tuple[str, str]]:
    """Return the labels that nodes must have for a pod."""
    selector = child(child(pod, "spec"), "nodeSelector")
    return [(str(key), str(value)) for key, value in selector.items()]


def _us(text: Any) -> int | None:  # noqa: ANN401 - JSON
    at_ns = moment_ns(text) if isinstance(text, str) and text else None
    return None if at_ns is None else at_ns // 1000


FORMAT: Final = Format(
    summary="jobs, pods and events of Kubernetes, kubectl get -o json",
    recognises='JSON with "apiVersion" and "kind"',
    read=read,
    table="jobs",
    mark=re.compile(rb"\A\s*\{(?=[\s\S]*\"apiVersion\"\s*:)(?=[\s\S]*\"(?:kind|items)\"\s*:)"),
    own_run=False,
    by_file=True,
)
