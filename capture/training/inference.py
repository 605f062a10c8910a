"""Inference: requests to a served model, as rows of ``inferences``, without inputs and outputs.

    watched = capture.inference(model="ranker", features={"age": [18, 30, 65]}, keep=0.1)

    @watched                                   # records latency and status; works for coroutines, too
    def predict(batch): ...

    with watched.request(features=row) as call:                  # records further facts, too
        call.dequeued()
        answer = model(row)
        call.say(confidence=0.93, prediction="cat", output_tokens=12)

Features are recorded only as a keyed hash, which is equal for equal features, and as the bucket of each monitored
feature. The key is the setting ``fingerprint_key``. Without it the key is random, and hashes are comparable only within
the process.
"""

import functools
import inspect
import itertools
import math
import re
import secrets
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.ratios import checked_ratio, is_sampled, seed_of, threshold_of
from ranklake.capture.common.values import integer, json_text, number, redacted_name, text
from ranklake.capture.training.features import Buckets, bucket_of, buckets, digest, fingerprint
from ranklake.capture.training.start import running, start
from ranklake.redaction.redact import redact_uri
from ranklake.segments.envelope import EncryptionError
from ranklake.segments.keys import read_keyring
from ranklake.segments.segment import SAMPLED_OUT

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run

Served = TypeVar("Served", bound=Callable[..., Any])
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_COUNTS: Final = ("input_tokens", "output_tokens", "batch_size")


class Inference:
    """One served model. `ranklake.capture.inference` creates it and documents the parameters.

    Notes
    -----
    Threads and coroutines may share this object: each request has its own `Request`.
    """

    def __init__(
        self,
        run: "Run",
        model: object,
        *,
        version: object = None,
        sha256: object = None,
        endpoint: object = None,
        features: Mapping[str, object] | None = None,
        predictions: object = None,
        keep: object = 1.0,
    ) -> None:
        self.run = run
        gaps: Gaps = run.rows.sink.gaps
        ratio = gaps.lenient("keep", lambda given: checked_ratio(number(given)), keep, 1.0)
        digest_of = gaps.lenient("sha256", _checked_sha256, sha256, None)
        self.constants = {
            "model": redacted_name(model, 256),
            "model_version": None if version is None else redacted_name(version, 256),
            "model_sha256": digest_of,
            "endpoint": None if endpoint is None else text(redact_uri(text(endpoint)), 256),
        }
        self.features: dict[str, Buckets] = {
            name: monitor
            for name, given in (features or {}).items()
            if (monitor := gaps.lenient(f"feature {name}", buckets, given, None)) is not None
        }
        self.predictions = gaps.lenient("predictions", buckets, predictions, None)
        self.weight = 1.0 / ratio if 0.0 < ratio < 1.0 else None
        self._threshold, self._seed = threshold_of(ratio), seed_of(run.name, self.constants["model"] or "")
        self._numbers = itertools.count()
        self.key = _key(run.rows.lifecycle.settings.fingerprint_key, gaps)

    def request(
        self, features: Mapping[str, object] | None = None, *, request_id: object = None, queue_time_s: object = None
    ) -> "Request":
        """Return a context for one request; its row is written when the block ends.

        Parameters
        ----------
        features
            Inputs of the model, by name. They are read only if the request is kept.
        request_id
            The caller's identifier of the request; it is recorded as a keyed hash.
        queue_time_s
            Seconds that the request waited before the block began; part of the latency.
        """
        return Request(self, features, request_id, queue_time_s)

    def __call__(self, served: Served) -> Served:
        """Return a function that calls `served` and records each call as a request."""
        if inspect.iscoroutinefunction(served):

            @functools.wraps(served)
            async def call_coroutine(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the caller's
                with self.request():
                    return await served(*args, **kwargs)

            return cast("Served", call_coroutine)

        @functools.wraps(served)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the caller's
            with self.request():
                return served(*args, **kwargs)

        return cast("Served", call)

    def keeps(self) -> bool:
        """Whether the next request is kept. The n-th request gets the same answer in every process."""
        return is_sampled(self._seed, next(self._numbers), self._threshold)


class Request:
    """One request, as a context that is entered once."""

    __slots__ = ("_begun", "_facts", "_features", "_first", "_inference", "_queue_s", "_request_id")

    def __init__(
        self, inference: Inference, features: Mapping[str, object] | None, request_id: object, queue_time_s: object
    ) -> None:
        self._inference, self._features, self._request_id, self._queue_s = inference, features, request_id, queue_time_s
        self._facts: dict[str, object] = {}
        self._begun = 0
        self._first: int | None = None

    def dequeued(self) -> None:
        """Record that waiting ends now and computing begins."""
        self._queue_s = (now() - self._begun) / 1e9

    def first_token(self) -> None:
        """Record the time of the first token; later calls have no effect."""
        if self._first is None:
            self._first = now()

    def say(self, **facts: object) -> None:
        """Record facts about the answer.

        Parameters
        ----------
        facts
            ``confidence`` (0 to 1), ``prediction`` (recorded as its bucket or class), ``input_tokens``,
            ``output_tokens``, ``batch_size``. Where no exception reports them: ``status`` (``ok``, ``error``,
            ``timeout``, ``rejected``) and ``error_type``.
        """
        self._facts.update(facts)

    def __enter__(self) -> Self:
        self._begun = now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = now()
        sink = self._inference.run.rows.sink
        with sink.recording("inferences"):
            status = self._status(error)
            is_kept = self._inference.keeps()
            if not is_kept and status == "ok":
                sink.refuse("inferences", SAMPLED_OUT)
                return
            sink.record("inferences", self._columns(status, error, end), end)

    def _status(self, error: BaseException | None) -> str:
        if error is not None:
            return "timeout" if isinstance(error, TimeoutError) else "error"
        status = self._facts.get("status", "ok")
        return status if isinstance(status, str) and status in {"ok", "error", "timeout", "rejected"} else "ok"

    def _columns(self, status: str, error: BaseException | None, end: int) -> dict[str, Any]:
        inference, answer = self._inference, self._facts
        lenient = inference.run.rows.sink.gaps.lenient
        queue_s = lenient("queue_time_s", _not_negative, self._queue_s, None)
        given = answer.get("error_type") if error is None else type(error).__name__
        columns: dict[str, Any] = {
            **inference.constants,
            "latency_s": (end - self._begun) / 1e9,
            "queue_time_s": queue_s,
            "time_to_first_token_s": None if self._first is None else (self._first - self._begun) / 1e9,
            "confidence_ratio": lenient("confidence", _ratio, answer.get("confidence"), None),
            "status": status,
            "error_type": None if given is None else _word(given),
            # All failed requests are kept, so their weight is 1.
            "weight": inference.weight if status == "ok" else None,
        }
        for name in _COUNTS:
            columns[name] = lenient(name, _count, answer.get(name), None)
        prediction = answer.get("prediction")
        if prediction is not None and inference.predictions is not None:
            columns["prediction_bucket"] = bucket_of(prediction, inference.predictions)
        if self._request_id is not None:
            columns["request_id"] = digest(inference.key, text(self._request_id))
        if self._features is not None:
            columns["feature_fingerprint"] = fingerprint(inference.key, self._features)
            columns["feature_buckets"] = json_text(
                {name: bucket_of(self._features.get(name), edges) for name, edges in inference.features.items()}
            )
        return columns


def _key(source: str, gaps: Gaps) -> bytes:
    """Return the key of fingerprints; a random key if none is configured, so that every hash is keyed."""
    if source:
        try:
            return read_keyring(source).active.secret
        except EncryptionError as error:
            gaps.warn("fingerprint_key", f"fingerprints are keyed at random: {error}")
    return secrets.token_bytes(32)


def _checked_sha256(given: object) -> str:
    digest = text(given).lower()
    if not _SHA256.fullmatch(digest):
        raise ValueError("a SHA-256 has 64 hexadecimal digits")
    return digest


def _not_negative(given: object) -> float:
    value = number(given)
    if not 0.0 <= value < math.inf:
        raise ValueError("below 0, or not finite")
    return value


def _ratio(given: object) -> float:
    return checked_ratio(number(given))


def _count(given: object) -> int:
    count = integer(given)
    if count < 0:
        raise ValueError("below 0")
    return count


def _word(given: object) -> str | None:
    """Return the name of an exception class; None for any other text, which may contain anything."""
    word = redacted_name(given, 256)
    return word if word.replace(".", "_").isidentifier() else None


def inference(
    model: object,
    *,
    version: object = None,
    sha256: object = None,
    endpoint: object = None,
    features: Mapping[str, object] | None = None,
    predictions: object = None,
    keep: object = 1.0,
    run: "Run | None" = None,
    **start_arguments: Any,  # noqa: ANN401 - as for `start`
) -> Inference:
    """Record the requests of a served model. Nothing is raised, and inputs and outputs are not recorded.

    Parameters
    ----------
    model, version, endpoint
        Name and version of the model, and the address at which it is served.
    sha256
        SHA-256 of the artifact that is served; it joins with the table ``artifacts``.
    features
        Monitored features: ascending edges of numbers (``{"age": [18, 30, 65]}``) or known words (``["web", "app"]``).
    predictions
        Edges or words for the prediction; without them no prediction is recorded.
    keep
        Share of the requests to keep, 0 to 1. Failed requests are always kept.
    run
        The run that records; by default a run that this process records, else a new run.
    start_arguments
        Arguments of `ranklake.capture.start` for a new run.
    """
    recording_run = run or running() or start(text(model, 256), **start_arguments)
    return Inference(
        recording_run,
        model,
        version=version,
        sha256=sha256,
        endpoint=endpoint,
        features=features,
        predictions=predictions,
        keep=keep,
    )
