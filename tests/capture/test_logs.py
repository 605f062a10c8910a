"""Log lines: whatever training logs becomes rows, within limits, without secrets, and never in training's way."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog
from bringing import bring
from recorded import check_books, rows

from ranklake.capture.logs.loglines import MOST_TEMPLATES, Limits, shape_of
from ranklake.capture.logs.logs import path_from_package, severity_number
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake

DOCUMENTED = Path(__file__).parents[2] / "docs" / "logs.md"

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def logger(request):
    """Give a logger of the test's own, which hands nothing on."""
    made = logging.getLogger(f"test.{request.node.name}")
    made.propagate = False
    made.setLevel(logging.DEBUG)
    yield made
    made.handlers.clear()


def lines(place):
    return rows(place.spool, "logs")


def test_a_line_has_what_the_logger_knows(place, logger):
    """Level, template, message, place, thread, step and further fields are columns; the time is the call's."""
    run = place.start()
    logger.addHandler(run.log_handler())
    with run.step(7):
        logger.warning("loss %.1f at %s", 2.5, "start", extra={"shard": 3, "api_key": SECRET})
    run.close()
    (row,) = lines(place)
    assert (row["severity_text"], row["severity_number"]) == ("WARNING", 13)
    assert (row["message"], row["template"]) == ("loss 2.5 at start", "loss %.1f at %s")
    assert (row["logger"], row["stream"], row["step"]) == (logger.name, "logging", 7)
    assert row["source_file"].endswith("test_logs.py")
    assert not row["source_file"].startswith("/")
    assert row["source_function"] == "test_a_line_has_what_the_logger_knows"
    assert (row["thread_name"], row["rank"], row["run"]) == ("MainThread", 0, "run")
    assert json.loads(row["fields"]) == {"shard": 3, "api_key": "[redacted]"}
    assert (row["suppressed_count"], row["weight"]) == (None, None)
    assert row["span_id"] is not None


def test_an_exception_goes_along(place, logger):
    """Its class, message and traceback have columns; a secret in any of them is in none."""
    run = place.start()
    logger.addHandler(run.log_handler())
    try:
        raise ValueError(f"cannot open https://user:{SECRET}@store/bucket")  # noqa: TRY301
    except ValueError:
        logger.exception("reading failed with %s", SECRET)
    run.close()
    (row,) = lines(place)
    assert (row["exception_type"], row["severity_number"]) == ("ValueError", 17)
    assert row["exception_message"].startswith("cannot open https://")
    assert "in test_an_exception_goes_along" in row["exception_stacktrace"]
    assert SECRET not in str(row)
    assert not any(SECRET.encode() in path.read_bytes() for path in place.spool.rglob("*.parquet"))


def test_no_name_brings_a_secret_in(place, logger):
    """Of a thread, a file, a function, an exception's class, a logger: what generated code is called, anybody says."""
    run = place.start()
    child = logger.getChild(SECRET)
    child.addHandler(run.log_handler())
    code = f"""
def {SECRET}(log):
    try:
        raise type('{SECRET}', (Exception,), {{}})
    except Exception:
        log.exception('x')
"""
    made = {"__name__": "made"}
    exec(compile(code, f"/x/{SECRET}.py", "exec"), made)
    thread = threading.Thread(target=made[SECRET], args=(child,), name=SECRET)
    thread.start()
    thread.join()
    run.close()
    (row,) = lines(place)
    assert {row[name] for name in ("exception_type", "source_function", "thread_name")} == {"[redacted]"}
    assert SECRET not in json.dumps(row, default=str)


def test_a_flood_is_limited_and_every_line_is_counted(place, logger):
    """Of 5,000 lines of a template the burst is kept; kept and suppressed lines together are all of them."""
    run = place.start(log_burst=20, log_rate_per_s=0)
    logger.addHandler(run.log_handler())
    for number in range(5000):
        logger.info("retry %d", number)
        if not number % 500:
            logger.info("another line, which is not held up")
    run.close()
    found = [row for row in lines(place) if row["template"] == "retry %d"]
    assert len(found) == 20 + 1
    kept = sum(1.0 if row["weight"] is None else row["weight"] for row in found)
    assert kept + sum(row["suppressed_count"] or 0 for row in found) == 5000
    assert (found[-1]["suppressed_count"], found[-1]["weight"]) == (4980, 0.0)
    assert len([row for row in lines(place) if row["template"].startswith("another")]) == 10
    assert run.gaps() == {}


def test_the_documented_formula_counts_lines(place, logger, tmp_path):
    """What docs/logs.md sums up, over kept, suppressed and sampled rows, is the number of lines in SQL, never NULL."""
    (formula,) = re.findall(r"So `(sum\(.+?\))` is the number of lines", DOCUMENTED.read_text())
    run = place.start(log_burst=20, log_rate_per_s=0)
    logger.addHandler(run.log_handler())
    logger.info("alone")
    run.close()
    counts = f"SELECT {formula} AS lines FROM logs"
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, place.spool)
    assert query(lake, counts, {}).to_pylist() == [{"lines": 1}]
    run = place.start(log_burst=20, log_rate_per_s=0, run="flood")
    logger.addHandler(run.log_handler())
    for number in range(500):
        logger.info("retry %d", number)
    run.close()
    bring(lake, place.spool)
    assert query(lake, f"{counts} WHERE run = 'flood'", {}).to_pylist() == [{"lines": 500}]


def test_the_next_line_tells_of_those_before_it():
    """Tokens come back with time; the first line that is kept again has the count. What gives way keeps its."""
    limits = Limits("run", rate_per_s=1.0, burst=1.0, verbose=1.0)
    facts = {"template": "a"}
    second = 1_000_000_000
    assert [limits.take("a", 0, facts) for _ in range(4)] == [0, None, None, None]
    assert limits.take("a", second, facts) == 3
    assert limits.take("a", second, facts) is None
    for number in range(MOST_TEMPLATES):
        limits.take(number, second, {})
    assert [bucket.suppressed for bucket in limits.take_suppressed(0)] == [1]


def test_of_verbose_lines_a_share_is_kept(place, logger):
    """The same on every rank; each has its weight, which sums up to about all of them."""
    for rank in range(2):
        run = place.start(rank=rank, world_size=2, log_verbose=0.1, log_burst=100_000)
        handler = run.log_handler(logging.DEBUG)
        logger.addHandler(handler)
        for number in range(3000):
            logger.debug("batch %d", number)
        run.close()
        logger.removeHandler(handler)
    found = [[row["message"] for row in lines(place) if row["rank"] == rank] for rank in range(2)]
    assert found[0] == found[1]
    weights = [row["weight"] for row in lines(place)]
    assert set(weights) == {10.0}
    assert sum(weights) / 2 == pytest.approx(3000, rel=0.2)


def test_levels_by_logger(place, logger):
    """A level holds for a logger and those below it; a word that is no level is refused at once."""
    run = place.start()
    logger.addHandler(run.log_handler("INFO", levels={f"{logger.name}.web": "ERROR"}))
    logger.getChild("web.pool").warning("left out")
    logger.getChild("web.pool").error("kept")
    logger.getChild("webber").info("kept, too")
    logger.debug("left out")
    with pytest.raises(ValueError, match="LOUD"):
        run.log_handler("LOUD")
    run.close()
    assert [row["message"] for row in lines(place)] == ["kept", "kept, too"]


class Hostile:
    """An argument that raises."""

    def __str__(self):
        raise RuntimeError("no text")


def test_nothing_that_is_logged_raises(place, logger):
    """Arguments that do not fit, texts that raise, huge texts, lone surrogates: each is a row, bounded."""
    run = place.start()
    handler = run.log_handler()
    extra = {"big": ["z" * 1000] * 1000, "odd": Hostile(), "nan": float("nan")}
    told = [("%d and %d", ("one",)), (Hostile(), ()), ("x%s", ("y" * 3_000_000,)), ("half \ud800", ()), ("fields", ())]
    for line, (message, args) in enumerate(told):
        handler.handle(logger.makeRecord(logger.name, logging.INFO, __file__, line, message, args, None, extra=extra))
    run.close()
    found = lines(place)
    assert len(found) == 5
    assert run.gaps() == {}
    assert max(len(row["message"]) for row in found) <= 16_384
    assert json.loads(found[-1]["fields"])["left_out"].endswith("characters")
    check_books(place.spool)


def test_ranklakes_own_lines_do_not_loop(place, logger):
    """A gap that is told while a line is written is told to others, and adds no line to itself."""
    run = place.start()
    handler = run.log_handler()
    logging.getLogger("ranklake").addHandler(handler)
    try:
        run.rows.sink.record("logs", {"weight": float("nan")})  # refused, and told
        logger.addHandler(handler)
        logger.error("one")
    finally:
        logging.getLogger("ranklake").removeHandler(handler)
    run.close()
    assert [row["logger"] for row in lines(place)] == ["ranklake", logger.name]


def test_a_forked_child_logs(place, logger):
    """Its lines are written at once, into its own stream; what the parent suppressed it does not tell again."""
    run = place.start(log_burst=1, log_rate_per_s=0)
    logger.addHandler(run.log_handler())
    for _ in range(3):
        logger.info("line of %s", os.getpid())
    pid = os.fork()
    if not pid:
        logger.info("child %s", "alone")
        os._exit(0)
    os.waitpid(pid, 0)
    run.close()
    found = {(row["template"], row["suppressed_count"]) for row in lines(place)}
    assert found == {("line of %s", None), ("line of %s", 2), ("child %s", None)}


def test_errors_survive_a_kill(tmp_path):
    """An error's line is written before the call returns."""
    script = """
import logging, os, signal, sys
from ranklake import capture
run = capture.start(spool=sys.argv[1], local_dir=sys.argv[2], run="dead")
logging.getLogger().addHandler(run.log_handler())
logging.error("out of %s", "memory")
os.kill(os.getpid(), signal.SIGKILL)
"""
    place = [str(tmp_path / "spool"), str(tmp_path / "local")]
    assert subprocess.run([sys.executable, "-c", script, *place], check=False).returncode == -signal.SIGKILL
    adopt = "import sys; from ranklake.capture.recover import recover; recover(sys.argv[2], sys.argv[1])"
    subprocess.run([sys.executable, "-c", adopt, *place], check=True)
    assert [row["message"] for row in rows(tmp_path / "spool", "logs")] == ["out of memory"]


def test_structlog(place):
    """A processor hands on what it gets, and records it: the event is the template, the rest are fields."""
    run = place.start()
    passed = []

    def seen(_, __, event):
        passed.append(event)
        raise structlog.DropEvent

    logger = structlog.wrap_logger(
        None,
        processors=[structlog.stdlib.add_log_level, run.structlog_processor(), seen],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    ).bind(shard=4)
    for level in ("debug", "info", "error"):
        try:
            raise KeyError(level)  # noqa: TRY301
        except KeyError:
            getattr(logger, level)("batch done", token=SECRET, exc_info=level == "error")
    run.close()
    found = lines(place)
    assert [row["severity_text"] for row in found] == ["INFO", "ERROR"]
    assert {row["template"] for row in found} == {"batch done"}
    assert json.loads(found[0]["fields"]) == {"shard": 4, "token": "[redacted]"}
    assert found[1]["exception_type"] == "KeyError"
    assert [event["token"] for event in passed] == [SECRET] * 3


def test_a_line_that_was_formatted_before(place, logger):
    """Its template is its shape: without numbers, paths, quoted texts and addresses, which may be personal."""
    run = place.start()
    logger.addHandler(run.log_handler())
    logger.info(f"saved /home/ann/ckpt-{3} for ann@example.org in {1.5} s as 'best one'")  # noqa: G004 - as users do
    run.close()
    (row,) = lines(place)
    assert row["template"] == "saved <…> for <…> in <…> s as <…>"
    assert "/home/ann/ckpt-3" in row["message"]
    assert shape_of("step=12 loss=0.5 (rank3)") == "step=<…> loss=<…> (<…>)"


@pytest.mark.parametrize("unit", ["a", "a'", '"', "=a", "a1"])
def test_the_shape_of_a_long_line_takes_time_in_proportion(unit):
    """A word of 16,384 letters held the interpreter's lock for 2.7 s."""

    def spent_s(length):
        began = time.process_time()
        shape_of(unit * (length // len(unit)))
        return time.process_time() - began

    assert any(spent_s(16_000) < 24 * spent_s(2_000) + 0.01 for _ in range(4))


def test_what_a_logging_call_costs(place, logger):
    """Of the calling thread at most five times what logging itself takes to write the line to memory; best of 5."""
    run = place.start(log_burst=1_000_000)
    logger.addHandler(run.log_handler())
    bare = logging.getLogger(f"{logger.name}.bare")
    bare.propagate = logger.propagate = False
    bare.addHandler(logging.StreamHandler(io.StringIO()))

    def cost(one):
        found = []
        for _ in range(5):
            begin = time.thread_time()
            for number in range(400):
                one.info("step %d took %.3f s", number, 0.25)
            found.append((time.thread_time() - begin) / 400 * 1e6)
            run.flush(0.0)
        return min(found)

    plain, kept = cost(bare), cost(logger)
    print(f"{plain:.1f} us to memory, {kept:.1f} us kept")
    assert kept < 5 * plain


def test_small_parts():
    """Levels between the named ones count as the one below; a path outside of every folder is its name."""
    assert [severity_number(level) for level in (5, 10, 15, 20, 35, 40, 60)] == [1, 5, 5, 9, 13, 17, 21]
    assert path_from_package("/nowhere/at/all.py") == "all.py"
