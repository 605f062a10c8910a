"""Start: create a run from arguments and environment. It never raises; on an error the run records nothing."""

import atexit
import os
import sys
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import LOGGER, NOWHERE, Gaps, RefusedError
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.settings import read_settings, read_spool, read_storage
from ranklake.capture.common.values import integer, redacted_name, text
from ranklake.capture.lifecycle.lifecycle import EXITS, FAILURES, Heartbeat
from ranklake.capture.lifecycle.preemption import PREEMPTION
from ranklake.capture.provenance.environment import SIZES
from ranklake.capture.provenance.launcher import Group, Launch, add_label, find_launch, group_of
from ranklake.capture.provenance.names import clean, script_name, spawner
from ranklake.capture.provenance.provenance import learn_secrets, run_row
from ranklake.capture.provenance.run_record import RunRecord
from ranklake.capture.provenance.sweeps import find_trial
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.upload import missing_package
from ranklake.capture.spool.claims import Claims
from ranklake.capture.spool.locations import local_root, spool_uri
from ranklake.capture.training.identity import Identity, number_attempt
from ranklake.capture.training.run import Run
from ranklake.capture.training.startup import Startup
from ranklake.redaction.redact import redact_names, redact_uri

_LARGEST_PATCH: Final = 1 << 17  # a row of `runs` must fit a frame, in which a character can take six bytes
_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()


def start(  # noqa: PLR0913 - users set everything in this one call
    job: str | None = None,
    *,
    run: str | None = None,
    spool: str | os.PathLike[str] | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
    config: object = None,
    labels: Mapping[str, str] | None = None,
    injected: str | None = None,
    compute_dtype: str | None = None,
    param_count: int | None = None,
    dp_size: int | None = None,
    tp_size: int | None = None,
    pp_size: int | None = None,
    ep_size: int | None = None,
    cp_size: int | None = None,
    mesh: object = None,
    storage_options: Mapping[str, Any] | None = None,
    enabled: bool = True,
    **settings: Any,  # noqa: ANN401 - any value; see CaptureSettings
) -> Run:
    """Start recording this rank and return its run.

    Parameters
    ----------
    job
        Name of the job; several runs may share it. By default the script's, such as ``train`` of ``train.py``, and
        ``job`` in a notebook or ``python -c``.
    run
        Name of the run, the same on all ranks; by default RANKLAKE_RUN, else a name from the launcher's variables (see
        `ranklake.capture.provenance.launcher`).
    spool
        Folder or fsspec URI that segments are uploaded to; by default RANKLAKE_SPOOL, else ``uri`` under ``[spool]`` in
        ``ranklake.toml``. Without a spool, segments wait in the local spool for ``ranklake agent``.
    local_dir
        Folder on a local disk; by default RANKLAKE_LOCAL_SPOOL, else ``local`` under ``[spool]``, else
        /var/tmp/ranklake-<uid>.
    rank, world_size, attempt
        By default from the launcher; RANKLAKE_ATTEMPT sets the attempt.
    config
        Hyperparameters: a mapping, an argparse namespace, or a dataclass. Values that look like credentials are
        redacted.
    labels
        Labels of your own.
    injected
        The fault that is injected into this run on purpose, such as a slowed rank.
    compute_dtype
        Number format of the matrix products, such as ``bfloat16``; MFU uses the peak of this format.
    param_count
        Trainable parameters of the model.
    dp_size, tp_size, pp_size, ep_size, cp_size
        Sizes of the data-, tensor-, pipeline-, expert- and context-parallel groups; by default from `mesh`, or from
        Megatron if it is loaded.
    mesh
        The `torch.distributed.device_mesh.DeviceMesh` that the run computes on, with named dimensions.
    storage_options
        Options for fsspec (and ``put``, see `ranklake.capture.recording.upload.Uploader`); by default ``[storage]`` in
        ``ranklake.toml``.
    enabled
        False returns a run that records nothing.
    settings
        Fields of `ranklake.capture.common.settings.CaptureSettings` by name, such as ``seal_every_s=30``. They override
        the environment and ``[capture]`` in ``ranklake.toml``.

    Returns
    -------
    A run. If this process still records a run of the same name, the new run is the next attempt, and a warning is
    logged. Nothing is raised: if recording cannot start, the run records nothing, and a warning gives the reason.
    """
    entered_ns = now()
    job = script_name() if job is None else job
    shared = {
        "job": job, "spool": spool, "local_dir": local_dir, "attempt": attempt, "config": config, "labels": labels,
        "injected": injected, "compute_dtype": compute_dtype, "param_count": param_count, "dp_size": dp_size,
        "tp_size": tp_size, "pp_size": pp_size, "ep_size": ep_size, "cp_size": cp_size,
        "storage_options": storage_options, **settings,
    }  # fmt: skip
    gaps = Gaps()
    run_name = "" if run is None else text(run)
    launch = Launch(run=clean(run_name or "run"))
    if not enabled:
        return Run(launch)
    try:
        run = launch.run if run_name else None
        learn_secrets(config)
        trial = find_trial(os.environ, sys._getframe(1))  # noqa: SLF001 - the caller's frame may have the trial
        name = redacted_name(job, 256)

        def find(group: Group | None) -> Launch:
            return find_launch(
                name, os.environ, group=group, run=run, rank=rank, world_size=world_size, attempt=attempt
            )

        configured = read_spool(os.environ, gaps.warn)
        launch, root = find(group_of()), local_root(local_dir, configured.get("local", ""))
        launch = number_attempt(launch, Claims(root, launch.run), gaps, is_begun=_is_recorded_here(launch, root))
        capture_settings = read_settings(settings, os.environ, gaps.warn)
        uri = spool_uri(spool, configured.get("uri", ""))
        recorder = Recorder(root, launch, uri, capture_settings)
        options: dict[str, Any] = gaps.lenient("storage_options", dict, storage_options, {})
        if storage_options is None:
            options = read_storage(uri, os.environ, gaps.warn)
        declared = {
            "config": config,
            "labels": add_label(trial.merge_labels(labels) if trial is not None else labels, recorder.traceparent),
            "injected": gaps.lenient("injected", text, injected, None),
            "compute_dtype": gaps.lenient("compute_dtype", text, compute_dtype, None),
            "param_count": gaps.lenient("param_count", integer, param_count, None),
            **{
                name: gaps.lenient(name, integer, size, None)
                for name, size in zip(SIZES, (dp_size, tp_size, pp_size, ep_size, cp_size), strict=True)
            },
        }

        def make_run_record(launch: Launch) -> RunRecord:
            row = run_row(launch, name, declared, capture_settings)
            parameters = trial.parameters if trial is not None else None
            return RunRecord(
                recorder.records["runs"], row, min(capture_settings.patch_bytes, _LARGEST_PATCH), mesh, parameters
            )

        new_run = _begin(recorder, options, entered_ns)
    except Exception as error:  # noqa: BLE001 - telemetry never raises into training
        gaps.warn("start", f"nothing is recorded: {type(error).__name__}: {error}")
        return Run(launch, None, gaps)
    if launch.warning:
        gaps.warn("launch", launch.warning)
    asked = text(run_name or os.environ.get("RANKLAKE_RUN", ""), 512)
    if asked and clean(asked) != asked:
        kept = "letters, digits, '.', '_' and '-', and nothing that looks like a credential"
        new_run.rows.sink.misuse("run", f"run {text(asked, 200)!r} is recorded as {clean(asked)!r}: a name has {kept}")
    missing = missing_package(uri)
    if missing:
        gaps.warn("spool", f"nothing can be sent to {redact_uri(uri)}: {missing}; segments wait in {recorder.root}")
    recording = new_run.recording
    assert recording is not None
    recording.start_arguments = {name: value for name, value in shared.items() if value is not None}
    recording.identity = Identity(new_run, recorder, find, make_run_record, recording.reassign)
    with new_run.rows.sink.recording("events"):
        recording.identity.begin()
    if asked not in {"", clean(asked)} and redact_names(asked) == asked and new_run.rank == new_run.attempt == 0:
        new_run.rename(asked)  # the readable name is the name that the user gave
    return new_run


def _is_recorded_here(launch: Launch, root: Path) -> bool:
    """Whether this process still records that rank of the run, such as when a notebook cell is run again."""
    own = [run for run in list(_runs) if run.enabled and (run.name, run.rank) == (launch.run, launch.rank)]
    recordings = (run.recording for run in own)
    return any(
        recording is not None and not recording.is_parents and recording.recorder.root == root
        for recording in recordings
    )


def _begin(recorder: Recorder, storage_options: dict[str, Any], entered_ns: int) -> Run:
    """Open the stream, start the threads, and return the run."""
    # These import pyarrow and fsspec, which are loaded only once a run records.
    from ranklake.capture.recording.threads import RecorderThreads
    from ranklake.capture.samplers import inprocess
    from ranklake.capture.samplers.sample import SampleWriter

    try:
        recorder.require()
    except RefusedError as refused:  # it may become usable later; until then each row is counted as a gap
        recorder.gaps.warn("start", f"the local spool cannot be used yet: {refused.reason} ({refused.detail})")
    run = Run(recorder.launch, recorder)
    rows, slots, recording = run.rows, run.slots, run.recording
    assert slots is not None
    assert recording is not None
    lifecycle = rows.lifecycle
    if recorder.masks.masks.hashed:
        lifecycle.each_second.append(recorder.masks.look)
    heartbeat = Heartbeat(run, recorder.settings, rows.events, rows.progress, rows.logs.add_stacks)
    lifecycle.each_second.append(heartbeat.look)
    threads = RecorderThreads(
        recorder, storage_options, expects_late_values=recording.expects_late_values, each_second=lifecycle.look
    )
    recording.keep(threads)
    _runs.add(run)
    atexit.register(recording.at_exit)
    util = sys.modules.get("multiprocessing.util")
    if (
        util is not None and spawner() is not None
    ):  # a forked child process of it calls only these finalizers when it ends
        util.Finalize(None, recording.at_exit, exitpriority=1)
    FAILURES.watch(lifecycle)
    EXITS.watch(lifecycle)
    if recorder.stream is not None:
        try:
            rows.logs.listen(recorder.stream.folder)
        except (OSError, ValueError) as error:
            recorder.gaps.warn("stderr", f"standard error is not recorded: {error}")
    try:
        PREEMPTION.watch(lifecycle)
        lifecycle.drains.append(PREEMPTION.settle)
    except (OSError, ValueError) as error:
        recorder.gaps.warn("preemption", f"signals are not recorded: {error}")
    try:
        threads.start()
        own = recorder.stream.name if recorder.stream else None
        writes = partial(SampleWriter, rows.sink, rows.events, slots.meter)
        inprocess.begin(lifecycle, writes, recorder.root, own, recorder.launch)
        if recorder.settings.startup == "on":
            startup = Startup(slots.spans, rows.progress, entered_ns)
            lifecycle.closers.append(startup.stop)
            startup.begin()
    except RuntimeError as error:  # no thread can be started
        recorder.gaps.warn("threads", f"{error}; segments wait in {recorder.root} for `ranklake agent`")
    return run


def running() -> Run | None:
    """Return a run that this process records; None if there is none."""
    return next((run for run in list(_runs) if run.enabled), None)


def _after_fork_in_child() -> None:
    NOWHERE.after_fork()
    for run in list(_runs):
        try:
            if run.recording is not None:
                run.recording.after_fork()
        except Exception as error:  # noqa: BLE001 - the other runs must be handled, too
            LOGGER.warning("ranklake: after a fork: %s", error)


def _after_fork_in_parent() -> None:
    for run in list(_runs):
        if run.recording is not None:
            run.recording.note_fork()


os.register_at_fork(after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)
