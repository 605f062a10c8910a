"""Inference: what is recorded of requests, and what never is."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded import check_books, rows

from ranklake import capture
from ranklake.capture.training.features import bucket_of, buckets, fingerprint
from ranklake.segments.segment import SAMPLED_OUT

KEY = "9f" * 32
PLANTED = "the secret question of ann@example.org"


def requests(place):
    return rows(place.spool, "inferences")


def test_what_a_request_says(place, monkeypatch):
    """Times, tokens, confidence, buckets and hashes are columns; features, ids and answers are in no byte."""
    monkeypatch.setenv("TEST_KEY", KEY)
    run = place.start(fingerprint_key="env:TEST_KEY")
    watched = capture.inference(
        model="ranker",
        version="3",
        sha256="ab" * 32,
        endpoint="search",
        features={"age": [18, 30, 65], "surface": ["web", "app"], "unheard": [1]},
        predictions=["cat", "dog"],
    )
    assert watched.run is run
    features = {"age": 41, "surface": PLANTED, "text": PLANTED, "vector": np.arange(4.0), "tensor": torch.ones(2)}
    with watched.request(features=features, request_id=PLANTED) as call:
        call.dequeued()
        call.first_token()
        call.say(confidence=0.75, prediction=PLANTED, input_tokens=12, output_tokens=3, batch_size=2)
    with watched.request(features=dict(reversed(features.items())), queue_time_s=0.0) as call:
        call.say(prediction="dog")
    local = b"".join(path.read_bytes() for path in place.local.rglob("*") if path.is_file())
    run.close()
    first, second = requests(place)
    assert (first["model"], first["model_version"], first["endpoint"]) == ("ranker", "3", "search")
    assert first["latency_s"] >= first["time_to_first_token_s"] >= first["queue_time_s"] >= 0
    assert (first["confidence_ratio"], first["input_tokens"], first["output_tokens"], first["batch_size"]) == (
        0.75,
        12,
        3,
        2,
    )
    assert json.loads(first["feature_buckets"]) == {"age": "[30,65)", "surface": "other", "unheard": "missing"}
    assert (first["prediction_bucket"], second["prediction_bucket"]) == ("other", "dog")
    assert (first["status"], first["error_type"], first["weight"]) == ("ok", None, None)
    assert first["feature_fingerprint"] == second["feature_fingerprint"] == fingerprint(bytes.fromhex(KEY), features)
    assert len(first["request_id"]) == 32
    assert second["request_id"] is None
    stored = b"".join(path.read_bytes() for path in place.spool.rglob("*.parquet"))
    assert not any(word in raw for raw in (local, stored) for word in (PLANTED.encode(), b"ann@example", KEY.encode()))
    check_books(place.spool)


def test_what_is_served_is_told_without_credentials(place):
    """A URL's user, its signature, and what a name calls a token go from model, version and endpoint."""
    place.start()
    url = "https://me:hunter2@host/rank?sig=hunter2&top=5"
    watched = capture.inference("ranker token=hunter2", version="3 api_key=hunter2", endpoint=url)
    with watched.request() as call:
        call.say(status="error", error_type="ghp_" + "a1" * 18)
    watched.run.close()
    (row,) = requests(place)
    assert row["error_type"] is None
    assert (row["model"], row["model_version"]) == ("ranker token=[redacted]", "3 api_key=[redacted]")
    assert row["endpoint"] == "https://host/rank?sig=[redacted]&top=5"


def test_failures_are_told_and_raised(place):
    """Whatever a request raises goes on to its caller; timeouts have a status of their own; a refusal may be said."""
    run = place.start()
    watched = capture.inference("m", run=run, keep=0.0)

    @watched
    def fails(error):
        raise error

    for error in (ValueError(PLANTED), TimeoutError()):
        with pytest.raises(type(error)):
            fails(error)
    with watched.request() as call:
        call.say(status="rejected", error_type="Overloaded")
    run.close()
    told = [(row["status"], row["error_type"], row["weight"]) for row in requests(place)]
    assert told == [("error", "ValueError", None), ("timeout", "TimeoutError", None), ("rejected", "Overloaded", None)]
    assert PLANTED not in str(requests(place))


def test_a_share_is_kept(place):
    """The same requests in each process; weights sum up to about all of them, and the others are counted."""
    kept = []
    for _ in range(2):
        run = place.start()
        watched = capture.inference("m", run=run, keep=0.1)
        assert watched.weight == 10.0
        kept.append([watched.keeps() for _ in range(2000)])
        for number in range(300):
            with watched.request() as call:
                call.say(input_tokens=number)
        run.close()
    assert kept[0] == kept[1]
    assert sum(kept[0]) * 10 == pytest.approx(2000, rel=0.2)
    found = requests(place)
    assert {row["weight"] for row in found} == {10.0}
    assert len(found) / 2 + run.gaps()["inferences"][SAMPLED_OUT] == 300


def test_coroutines_and_threads_share_one(place):
    """Requests that overlap keep their own times and facts."""
    run = place.start()
    watched = capture.inference("m", run=run)

    @watched
    async def answer(number):
        await asyncio.sleep(0)
        return number

    async def serve():
        with watched.request() as call:
            call.say(batch_size=1)
            found = await asyncio.gather(*(answer(number) for number in range(20)))
            call.say(output_tokens=sum(found))

    def work():
        for _ in range(50):
            with watched.request() as call:
                call.say(input_tokens=threading.get_ident() % 1000)

    asyncio.run(serve())
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    found = requests(place)
    assert len(found) == 21 + 200
    assert [row["output_tokens"] for row in found if row["batch_size"]] == [190]
    assert answer.__name__ == "answer"


def test_nothing_is_raised_and_nothing_made_up(place, warnings_told):
    """What is no share, count, digest or bucket is told once and left NULL; a row is recorded all the same."""
    run = place.start()
    watched = capture.inference("m", run=run, keep=7, sha256="no", features={"a": [3, 1], "b": "word"}, predictions=3)
    with watched.request(features={"a": object()}, queue_time_s=-1) as call:
        call.say(confidence=1.5, input_tokens=-3, output_tokens="many", status="odd", nonsense=1)
    run.close()
    (row,) = requests(place)
    known = {name for name, value in row.items() if value is not None}
    assert known - {"model", "status", "latency_s"} <= {
        *("run", "attempt", "rank", "incarnation", "segment", "slot", "ts", "date"),
    }
    assert row["status"] == "ok"
    assert "confidence is not usable" in warnings_told.text


def test_a_run_is_started_for_a_server(place):
    """Where no run records, one is begun, as `start` would."""
    watched = capture.inference("ranker", run=None, spool=place.spool, local_dir=place.local)
    with watched.request():
        pass
    watched.run.close()
    assert [row["model"] for row in requests(place)] == ["ranker"]
    assert rows(place.spool, "runs")[0]["job"] == "ranker"


def test_what_a_request_costs(place):
    """The median request, all of it kept and with features, is under 100 µs of the calling thread."""
    run = place.start()
    watched = capture.inference("m", run=run, features={"age": [18, 30]}, keep=1.0)
    row, spent = {"age": 3, "text": "x" * 100}, []
    for _ in range(500):
        begin = time.thread_time_ns()
        with watched.request(features=row) as call:
            call.say(confidence=0.5)
        spent.append(time.thread_time_ns() - begin)
    print(f"p50 {sorted(spent)[250] / 1000:.1f} us")
    assert sorted(spent)[250] < 100_000


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), plain, max_size=4), st.dictionaries(st.text(max_size=3), plain, max_size=4))
def test_fingerprints_are_equal_for_what_is_equal(one, other):
    """Two sets of features have the same fingerprint exactly if they are the same, types included."""
    key = b"k" * 32
    same = repr(sorted(one.items())) == repr(sorted(other.items())) if one.keys() == other.keys() else False
    assert fingerprint(key, one) == fingerprint(key, dict(reversed(one.items())))
    if same:
        assert fingerprint(key, one) == fingerprint(key, other)
    elif one != other:
        assert fingerprint(key, one) != fingerprint(key, other)
    assert fingerprint(b"j" * 32, one) != fingerprint(key, one)


def test_no_fingerprint_of_what_has_no_bytes():
    """An object, or one deep within, gives none; arrays differ by their type and shape."""
    key = b"k"
    assert fingerprint(key, {"a": [object()]}) is None
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), torch.zeros(4)]
    assert len({fingerprint(key, {"a": one}) for one in arrays}) == 3


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8, unique=True), st.floats(allow_nan=False))
def test_a_number_is_in_the_bucket_between_its_edges(edges, value):
    """The bucket's number is the count of edges at or below the value."""
    into = buckets(sorted(edges))
    assert into.names.index(bucket_of(value, into)) == sum(edge <= value for edge in edges) or len(
        set(into.names)
    ) < len(into.names)
