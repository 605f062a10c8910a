"""Kubernetes: converts the output of ``kubectl get jobs,pods,events -o json`` to rows of ``jobs`` and ``events``.

A job is an object that creates pods and has no owner in the file: a Job, JobSet, PyTorchJob (and others of Kubeflow),
Volcano Job, or a pod without such an owner. Its times are those of its pods on nodes, or else its own. Its GPUs are the
limits of its containers times its replicas. A queue of Kueue or Volcano becomes its pool, the namespace its team.
Objects of other kinds are counted and left out.
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

_MAX_BYTES: Final = 512 << 20
_GPU: Final = re.compile(r"(?:nvidia\.com/(?:gpu|mig-[\w.-]+)|amd\.com/gpu|gpu\.intel\.com/\w+)")
_JOB_KINDS: Final = re.compile(r"Job|JobSet|TrainJob|\w+Job")
_QUEUES: Final = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "runai/queue", "yunikorn.apache.org/queue")
_NODE_GPU: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
_END_STATES: Final = {
    "Complete": "completed", "Succeeded": "completed", "Completed": "completed", "Finished": "completed",
    "Failed": "failed", "Aborted": "cancelled", "Terminated": "failed",
}  # fmt: skip
_PREEMPTED: Final = frozenset({"PreemptionByScheduler", "PreemptionByKubeScheduler", "Preempted", "Preempting"})
_EVENTS: Final = {"Preempted": "preemption", "Preempting": "preemption", "Evicted": "interruption"}
_OUT_OF_MEMORY: Final = "OOMKilled"
_MAX_DEPTH: Final = 24

Object = dict[str, Any]


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a list of objects.

    Raises
    ------
    SourceError
        The file is not JSON.
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
            _add_event(item, number, recording)
        elif kind != "Pod" and not _JOB_KINDS.fullmatch(kind):
            others[kind] += 1
        elif not is_owned:
            line = Line(number, json.dumps(item, ensure_ascii=False))
            with refuse_flawed(recording, line):
                job_pods = pods.get(str(child(item, "metadata").get("uid")), [item] if kind == "Pod" else [])
                add_job(recording, line, _job(item, job_pods))
    if others:
        recording.notes[f"objects that are not jobs are left out: {counts_text(others)}"] = None


def _documents(source: "Source") -> Iterator[Any]:
    """Yield the documents of a file: one, or several of ``--watch``. Raises `SourceError`."""
    text = source.read_all(_MAX_BYTES).decode(errors="replace")
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        rest = re.compile(r"\s*").match(text, at)
        at = rest.end() if rest else at
        if at >= len(text):
            return
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise SourceError("is not a complete JSON document", where=source.name, hint="save it again") from error
        yield document


def _items(document: Any) -> list[Object]:  # noqa: ANN401 - JSON
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        items = [document]
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]


def _root(item: Object, by_uid: dict[str, Object]) -> Object:
    """Return the topmost job in the file that owns an object; the object itself if there is none."""
    for _ in range(_MAX_DEPTH):
        references = child(item, "metadata").get("ownerReferences")
        owners = (
            [by_uid.get(str(reference.get("uid"))) for reference in references if isinstance(reference, dict)]
            if isinstance(references, list)
            else []
        )
        jobs = [owner for owner in owners if owner is not None and _JOB_KINDS.fullmatch(str(owner.get("kind")))]
        if not jobs:
            return item
        item = jobs[0]
    return item


def _job(item: Object, pods: list[Object]) -> dict[str, Any]:
    """Return a job's columns. Raises `ValueError` with a message for users."""
    meta, status, spec = (child(item, key) for key in ("metadata", "status", "spec"))
    name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "default")
    if not name:
        flaw = "the object has no name"
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
    pod_uses = [(_gpus(child(pod, "spec")), _schedule_time(pod), _end_time(pod) or end_us) for pod in pods]
    codes = [code for pod in pods for code in _exit_codes(pod)]
    if state == "pending" and scheduled_us:
        state = "running"
    if state == "failed" and any(word == _OUT_OF_MEMORY for _, word in codes):
        state = "out_of_memory"
    kinds = {value for pod in [item, *pods] for key, value in _node_labels(pod) if key in _NODE_GPU}
    nodes = sorted({str(node) for pod in pods if (node := child(pod, "spec").get("nodeName"))})
    error_codes = [code for code, _ in codes if code]
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
        "exit_code": error_codes[0] if error_codes else 0 if codes and state == "completed" else None,
        "node_list": ",".join(nodes) or None, "node_count": len(nodes) or None,
        "restart_count": sum(_restarts(pod) for pod in pods) if pods else None,
        "attributes": json.dumps({"kind": item.get("kind"), "pods": len(pods)}, sort_keys=True),
    }  # fmt: skip
    uses_us = [(count, end - begin) for count, begin, end in pod_uses if begin is not None and end is not None]
    if end_us is not None and uses_us and len(uses_us) == len(pod_uses) and min(us for _, us in uses_us) >= 0:
        columns["gpu_time_s"] = sum(count * us for count, us in uses_us) / 1e6
    return columns


def _state_end_reason(item: Object, status: Object) -> tuple[str, int | None, str | None]:
    """Return the state of an object, its end (µs since 1970, None if unknown), and the reason."""
    conditions = [
        part for part in status.get("conditions") or [] if isinstance(part, dict) and part.get("status") == "True"
    ]
    if item.get("kind") == "Pod":
        phase = str(status.get("phase") or "Pending")
        reason = next(
            (str(part.get("reason")) for part in conditions if part.get("type") == "DisruptionTarget"),
            status.get("reason"),
        )
        if phase in {"Succeeded", "Failed"}:
            return "preempted" if reason in _PREEMPTED else _END_STATES[phase], _end_time(item), reason
        return "running" if phase == "Running" else "pending", None, reason
    if volcano := child(status, "state"):
        phase = str(volcano.get("phase") or "")
        end_us = _us(volcano.get("lastTransitionTime")) if phase in _END_STATES else None
        return _END_STATES.get(phase, "running" if phase == "Running" else "pending"), end_us, volcano.get("reason")
    for part in conditions:
        if part.get("type") in _END_STATES:
            end_us = _us(status.get("completionTime")) or _us(part.get("lastTransitionTime"))
            return _END_STATES[str(part["type"])], end_us, part.get("reason")
    is_active = status.get("active") or any(part.get("type") == "Running" for part in conditions)
    return "running" if is_active else "pending", None, None


def _add_event(item: Object, number: int, recording: "ImportedRun") -> None:
    """Add an event of the cluster, with its count and object; `number` is its position in the file, from 1."""
    stamp = next((item[key] for key in ("lastTimestamp", "eventTime", "firstTimestamp") if item.get(key)), None)
    at_us = _us(stamp) or _us(child(item, "metadata").get("creationTimestamp"))
    if at_us is None or not item.get("reason"):
        recording.refuse("events", "the event has no time or reason", json.dumps(item, ensure_ascii=False), number)
        return
    subject = child(item, "involvedObject") or child(item, "regarding")
    attributes = {"kind": subject.get("kind"), "name": subject.get("name"), "namespace": subject.get("namespace"),
                  "uid": subject.get("uid"), "count": item.get("count"), "reason": item["reason"]}  # fmt: skip
    recording.row(
        "events", at_us * 1000, event=_EVENTS.get(str(item["reason"]), str(item["reason"])),
        severity="warning" if item.get("type") == "Warning" else "info",
        message=str(item.get("message") or item.get("note") or "") or None,
        attributes=json.dumps({key: value for key, value in attributes.items() if value is not None}, sort_keys=True),
    )  # fmt: skip


def _gpus(spec: Any, depth: int = 0) -> int:  # noqa: ANN401 - JSON
    """Return the number of GPUs of a specification: the limits of its containers times the replicas."""
    if depth > _MAX_DEPTH or not isinstance(spec, dict | list):
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
    """Return when a pod was assigned to a node, µs since 1970; None if unknown."""
    status = child(pod, "status")
    for part in status.get("conditions") or []:
        if isinstance(part, dict) and part.get("type") == "PodScheduled" and part.get("status") == "True":
            return _us(part.get("lastTransitionTime"))
    return _us(status.get("startTime"))


def _end_time(pod: Object) -> int | None:
    """Return the end of a finished pod's last container, µs since 1970; None for other pods."""
    status = child(pod, "status")
    if status.get("phase") not in {"Succeeded", "Failed"}:
        return None
    ends = [_us(state.get("finishedAt")) for state in _terminated_states(pod)]
    known_ends = [at for at in ends if at is not None]
    return max(known_ends) if known_ends else None


def _terminated_states(pod: Object) -> list[Object]:
    """Return the state ``terminated`` of each container, empty if it is not terminated."""
    statuses = child(pod, "status").get("containerStatuses")
    parts = statuses if isinstance(statuses, list) else []
    return [child(child(part, "state"), "terminated") for part in parts if isinstance(part, dict)]


def _exit_codes(pod: Object) -> list[tuple[int, str]]:
    states = [state for state in _terminated_states(pod) if isinstance(state.get("exitCode"), int)]
    return [(state["exitCode"], str(state.get("reason"))) for state in states]


def _restarts(pod: Object) -> int:
    statuses = child(pod, "status").get("containerStatuses")
    return (
        sum(int(part.get("restartCount") or 0) for part in statuses if isinstance(part, dict))
        if isinstance(statuses, list)
        else 0
    )


def _node_labels(pod: Object) -> list[tuple[str, str]]:
    """Return the node labels that a pod requires."""
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
