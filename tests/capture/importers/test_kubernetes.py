# ruff: noqa: E501 - objects of Kubernetes
"""What kubectl prints: jobs with their pods, queues, preemptions; times are those at which nodes took pods."""

import json

import pytest
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError


def meta(name, kind="", uid=None, owner=None, **labels):
    own = {
        "name": name,
        "namespace": "ml",
        "uid": uid or name,
        "creationTimestamp": "2026-05-01T10:00:00Z",
        "labels": labels,
    }
    return (
        own
        if owner is None
        else own | {"ownerReferences": [{"kind": kind, "uid": owner, "name": owner, "controller": True}]}
    )


def container(gpus):
    return {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus), "cpu": "8"}}}]}


def pod(name, gpus, owner=None, kind="Job", taken="2026-05-01T10:05:00Z", ended=None, code=0, **status):
    state = (
        {"running": {"startedAt": taken}}
        if ended is None
        else {"terminated": {"exitCode": code, "finishedAt": ended, "reason": status.pop("why", "Completed")}}
    )
    phase = "Running" if ended is None else "Failed" if code else "Succeeded"
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": taken}] if taken else []
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta(name, kind, owner=owner),
        "spec": container(gpus) | {"nodeName": f"node-{name}", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {"phase": phase if taken else "Pending", "conditions": conditions + status.pop("conditions", []), "containerStatuses": [{"restartCount": 1, "state": state}]} | status,
    }  # fmt: skip


JOB = {
    "apiVersion": "batch/v1", "kind": "Job", "metadata": meta("train", **{"kueue.x-k8s.io/queue-name": "team-a"}),
    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": container(8)}},
    "status": {"startTime": "2026-05-01T10:01:00Z", "completionTime": "2026-05-01T11:05:00Z", "succeeded": 2,
               "conditions": [{"type": "Suspended", "status": "False"}, {"type": "Complete", "status": "True", "lastTransitionTime": "2026-05-01T11:05:00Z"}]},
}  # fmt: skip
PODS = [
    pod("train-0", 8, "train", ended="2026-05-01T11:05:00Z"),
    pod("train-1", 8, "train", taken="2026-05-01T10:15:00Z", ended="2026-05-01T11:05:00Z"),
]
TORCH = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta("llm"),
    "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": container(8)}}, "Worker": {"replicas": 3, "template": {"spec": container(8)}}}},
    "status": {"startTime": "2026-05-01T10:02:00Z", "conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}]},
}  # fmt: skip
SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta("set"),
    "spec": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4, "template": {"spec": container(4)}}}}]},
    "status": {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-05-01T12:00:00Z", "reason": "FailedJobs"}]},
}  # fmt: skip
INNER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": meta("set-0", "JobSet", owner="set"),
    "spec": {"template": {"spec": container(4)}},
}
VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta("vc"),
    "spec": {"queue": "gold", "tasks": [{"replicas": 2, "template": {"spec": container(1)}}]},
    "status": {"state": {"phase": "Aborted", "lastTransitionTime": "2026-05-01T10:30:00Z"}},
}  # fmt: skip
EVENT = {
    "apiVersion": "v1", "kind": "Event", "metadata": meta("e1"), "reason": "Preempted", "type": "Warning", "count": 3, "message": "Preempted by pod x",
    "lastTimestamp": "2026-05-01T10:40:00Z", "involvedObject": {"kind": "Pod", "name": "alone", "namespace": "ml", "uid": "alone"},
}  # fmt: skip
ALONE = pod(
    "alone",
    2,
    ended="2026-05-01T10:40:00Z",
    code=137,
    conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
)
WAITING = pod("waits", 4, taken="")


def listed(*items):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)


def test_jobs_and_their_pods(lake, spool, tmp_path):
    """A row a job; GPU time is what its pods held, not GPUs times the longest."""
    objects = [EVENT, JOB, *PODS, TORCH, SET, INNER, pod("set-0-x", 4, "set-0", ended="2026-05-01T11:00:00Z", code=1, why="OOMKilled"), VOLCANO, ALONE, WAITING,
               {"apiVersion": "v1", "kind": "Service", "metadata": meta("svc")}]  # fmt: skip
    (tmp_path / "all.json").write_text(listed(*objects))
    done = imported(lake, spool, "kubernetes", tmp_path / "all.json")
    assert (done.rows, done.refused) == ({"events": 1, "jobs": 6, "runs": 1}, {})
    assert done.notes == ["objects that are not jobs are left out: Service 1"]
    jobs = {row["job_id"]: row for row in ask(lake, "SELECT * FROM jobs")}
    train = jobs["train"]
    assert (train["gpu_count"], train["gpu_time_s"], train["elapsed_s"]) == (16, 8 * 3600 + 8 * 3000, 3600)
    assert (train["queue_time_s"], train["pool"], train["team"], train["outcome"]) == (300, "team-a", "ml", "completed")
    assert (train["node_count"], train["gpu_type"], train["restart_count"]) == (2, "NVIDIA-H100-80GB-HBM3", 2)
    assert (jobs["llm"]["gpu_count"], jobs["llm"]["state"], jobs["llm"]["outcome"]) == (32, "running", None)
    whole = jobs["set"]
    assert (whole["gpu_requested_count"], whole["state"], whole["outcome"]) == (32, "out_of_memory", "failed")
    assert (jobs["vc"]["pool"], jobs["vc"]["outcome"], jobs["vc"]["gpu_requested_count"]) == ("gold", "cancelled", 2)
    alone = jobs["alone"]
    assert (alone["state"], alone["outcome"], alone["exit_code"], alone["gpu_time_s"]) == (
        "preempted",
        "failed",
        137,
        2 * 2100,
    )
    waits = jobs["waits"]
    assert (waits["state"], waits["start_ts"], waits["gpu_count"], waits["gpu_requested_count"]) == (
        "pending",
        None,
        None,
        4,
    )
    event = ask(lake, "SELECT event, severity, attributes FROM events WHERE event = 'preemption'")[0]
    assert (event["severity"], json.loads(event["attributes"])["count"]) == ("warning", 3)


def test_watched_objects_one_behind_the_other(lake, spool, tmp_path):
    """As `kubectl get -o json --watch` prints them; what has no name is refused."""
    nameless = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"uid": "u"}}
    (tmp_path / "w.json").write_text(json.dumps(JOB) + "\n" + json.dumps(nameless, indent=2) + json.dumps(ALONE) + "\n")
    done = imported(lake, spool, "kubernetes", tmp_path / "w.json")
    assert (done.rows["jobs"], done.refused) == (2, {"the object has no name": 1})
    assert imported(lake, spool, "kubernetes", tmp_path / "w.json").again == 1


@pytest.mark.parametrize("cut", [40, 400, 1500])
def test_a_document_that_is_cut_off(tmp_path, cut):
    """Is refused whole: what is missing may be the pods of a job."""
    (tmp_path / "x.json").write_text(listed(JOB, *PODS)[:cut])
    with pytest.raises(SourceError, match="not a complete JSON document"):
        import_files("kubernetes", [str(tmp_path / "x.json")], str(tmp_path / "spool"))


def test_objects_of_any_shape(lake, spool, tmp_path):
    """Values of other types than those of Kubernetes are no values."""
    odd = [
        {"apiVersion": "v1", "kind": "Job", "metadata": {"name": "a", "labels": None, "creationTimestamp": "2026-05-01T10:00:00Z"}, "spec": [], "status": {"conditions": [1, None]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b", "ownerReferences": [5, {"uid": []}]}, "spec": {"containers": [7, {"resources": {"limits": {"nvidia.com/gpu": "many"}}}]}, "status": None},
        7, {"kind": "Event", "metadata": {}},
    ]  # fmt: skip
    (tmp_path / "odd.json").write_text(listed(*odd))
    done = imported(lake, spool, "kubernetes", tmp_path / "odd.json")
    assert (done.rows["jobs"], sum(done.refused.values())) == (1, 2)
