"""One lake and its cases, for `faults.py`, which preloads what fails: a line of JSON a case, and for what was found.

python faults_child.py SEED FIRST STOP
"""

import contextlib
import ctypes
import faulthandler
import io
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from faults import KINDS, PATIENCE_S, Case
from mutations import faults_of_others, poison
from segments import put_segment, step_rows

from ranklake import cli
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.invariant import balance
from ranklake.lake.plan import last_finished, read_plan
from ranklake.lake.read import read
from ranklake.lake.register import register
from ranklake.lake.spool import Spool
from ranklake.lake.store import Lake
from ranklake.lake.trust import Trust
from ranklake.lake.upkeep.run import upkeep
from ranklake.lake.workers import InProcess

ROWS = 60
EVERY_CASES = 10
CANARY = b"canary that nobody may read, copy or change: 5f0c1d"
ANSWERS = os.fdopen(os.dup(1), "w")
SHIM = ctypes.CDLL(None)
SHIM.faulty_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
SHIM.faulty_disarm.restype = SHIM.faulty_fired.restype = ctypes.c_long
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
RECENT, OLD = TODAY - timedelta(days=5), TODAY - timedelta(days=5000)
SOUND, AGED, LIAR = 7, 8, 1000
"""Incarnations: of what stays, of what retention takes, and from which on those lie that are disowned."""


def tell(**facts):
    """Answer."""
    print(json.dumps(facts), file=ANSWERS, flush=True)


class Place:
    """A lake, a spool, and what should be in them."""

    def __init__(self, root):
        self.root, self.lake, self.spool, self.outside = root, root / "lake", root / "spool", root / "outside"
        self.witness = root / "lake-witness"
        self.config = root / "ranklake.toml"
        self.config.write_text(f'[audit]\nwitness = "file:{self.witness}"\n')
        self.outside.mkdir()
        (self.outside / "canary").write_bytes(CANARY)
        self.segments = self.aged = 0
        self.liars, self.entries = [], []
        self.operations = {}
        for path in (self.lake, self.spool, self.witness):
            SHIM.faulty_root(os.fsencode(path))

    def opened(self):
        """Open the lake anew, as a process does."""
        return Lake.create(str(self.lake)).trusting(Trust(audit_witness=f"file:{self.witness}"))

    def bring(self, case):
        """Put segments, now and then one that is sealed twice, and mostly a hostile object."""
        for _ in range(case.rng.randint(1, 2)):
            number, before = self.segments, ROWS * self.segments
            rows = step_rows(ROWS, segment=number, incarnation=SOUND, start=RECENT)
            times = [-1.0 if _is_bad(slot) else 0.5 for slot in range(ROWS)]
            place = rows.schema.get_field_index("step_time_s")
            rows = rows.set_column(place, rows.schema.field(place), pa.array(times, pa.float32()))
            if number % 3 == 0:
                put_segment(self.spool, rows.slice(0, ROWS // 2), rows_before=before)
            put_segment(self.spool, rows, rows_before=before)
            self.segments += 1
        if case.rng.random() < 0.7:
            poison(case.rng, case.number, self.spool, self.outside)

    def bring_aged(self):
        """Put rows that retention takes."""
        rows = step_rows(10, segment=self.aged, incarnation=AGED, run="aged", start=OLD)
        put_segment(self.spool, rows, rows_before=10 * self.aged)
        self.aged += 1

    def expected(self):
        """Return the keys that must be stored, and those that must be in quarantine."""
        every = {(SOUND, number, slot) for number in range(self.segments) for slot in range(ROWS)}
        bad = {key for key in every if _is_bad(key[2])}
        disowned = {(LIAR + number, 0, slot) for number in self.liars for slot in range(10)}
        return Counter(every - bad), Counter(bad | disowned)


def _is_bad(slot):
    return slot % 50 == 7


def _command(place, *words):
    return cli.run([*words, "--lake", str(place.lake)])


def _ingest(place):
    return lambda: _command(place, "ingest", "--spool", str(place.spool))


def _retain(place):
    """Have a plan approved; return what applies it."""
    place.bring_aged()
    _ingest(place)()
    _command(place, "retain", "plan")
    name = max(register(place.opened()).values(), key=lambda one: one.planned).name
    _command(place, "retain", "approve", name, "--by", "Ada", "--reason", "as agreed")
    return lambda: _command(place, "retain", "apply", name, "--by", "Otto", "--spool", str(place.spool))


def _disown(place, number):
    """Have a stream taken in; return what disowns it."""
    rows = step_rows(10, incarnation=LIAR + number, run="liar", start=RECENT)
    put_segment(place.spool, rows, rows_before=50)
    _ingest(place)()
    place.liars.append(number)
    claim = f"steps/liar~a0~r00000~{LIAR + number:016x}~000000"
    return lambda: _command(place, "disown", claim, "--reason", "lies", "--by", "Ada")


def _record(place, number):
    """Return what adds a row to the trail, once."""
    place.entries.append(str(number))

    def work():
        record(place.opened(), "child", "test.once", str(number), once=True)
        return 0

    return _one_line(work)


def _upkeep(place):
    def work():
        kept = upkeep(place.opened(), InProcess(), grace=timedelta(0))
        return len(kept.damaged)

    return _one_line(work)


def _one_line(work):
    """Return a function whose errors end as those of the command line do."""

    def done():
        try:
            return work()
        except (cli.RanklakeError, OSError) as error:
            print(error, file=sys.stderr)
            return 2

    return done


def prepared(place, case):
    """Do what a command needs, undisturbed; return it, to be called."""
    day = f"{RECENT:%Y-%m-%d}"
    works = {
        "ingest": lambda: _ingest(place),
        "check": lambda: lambda: _command(place, "check"),
        "rollup": lambda: lambda: _command(place, "rollup"),
        "upkeep": lambda: _upkeep(place),
        "retain apply": lambda: _retain(place),
        "audit record": lambda: _record(place, case.number),
        "disown": lambda: _disown(place, case.number),
        "replay": lambda: (
            lambda: _command(
                place, "replay", "--table", "steps", "--from", day, "--to", day, "--spool", str(place.spool)
            )
        ),
        "status": lambda: lambda: _command(place, "status", "--spool", str(place.spool)),
    }
    return works[case.command]()


def carried_out(work, patience_s=PATIENCE_S):
    """Run something; return its exit code, what it said, and where it failed if it left a traceback."""
    out, err = io.StringIO(), io.StringIO()
    faulthandler.dump_traceback_later(patience_s, exit=True)
    code, wrong = None, ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = work()
    except BaseException as error:  # noqa: BLE001 - panics of Rust are no Exceptions
        SHIM.faulty_disarm()
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "ranklake" in frame.filename]
        wrong = f"a traceback: {type(error).__name__} at {' '.join(ours[-3:])}: {' '.join(str(error).split())[:200]}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    return code, (out.getvalue() + err.getvalue()).strip(), wrong


def struck(place, case):
    """Carry out a case; tell how it ended."""
    place.bring(case)
    _, said, wrong = 0, "", ""
    holder = []
    _, said, wrong = carried_out(lambda: holder.append(prepared(place, case)))
    if wrong:
        tell(case=case.number, found=f"preparing {case.command}: {wrong}")
        return
    mask, action, error, _ = KINDS[case.kind]
    # As many operations as the last time, a tenth more: so the last of a command that grew are struck, too.
    most = place.operations.get((case.command, mask), 40)
    SHIM.faulty_arm(mask, 1 + int(case.where * most * 1.1), case.length, action, error)
    code, said, wrong = carried_out(holder[0])
    fired = SHIM.faulty_fired()
    place.operations[case.command, mask] = max(1, SHIM.faulty_disarm())
    how = "missed" if not fired else "refused" if code else "went on"
    line = said.splitlines()[-1][:200] if said else ""
    tell(case=case.number, command=case.command, kind=case.kind, how=how, said=line if code else "")
    if wrong or "Traceback" in said:
        tell(case=case.number, found=f"{case.command}, {case.kind}, {case.length} times: {wrong or said[-300:]}")


def keys(lake, table):
    """Count the rows of a table by key, without those of poison."""
    rows = read(lake, contract(table), ["incarnation", "segment", "slot"])
    every = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    return Counter(key for key in every if key[0] == SOUND or LIAR <= (key[0] or 0) < 1_000_000)


def settled(place):
    """Run all undisturbed, until nothing waits; yield what is wrong."""
    done = [("ingest", _ingest(place)), *((f"disown {n}", _again(place, n)) for n in place.liars)]
    done += [(f"record {n}", _once(place, n)) for n in place.entries]
    done += [("check", lambda: _command(place, "check")), ("rollup", lambda: _command(place, "rollup"))]
    done += [("upkeep", _upkeep(place)), ("status", lambda: _command(place, "status", "--spool", str(place.spool)))]
    for name, work in done:
        code, said, wrong = carried_out(work)
        bad = (1, 2, 3, None) if name not in {"check", "status"} else (2, 3, None)
        if wrong or code in bad:
            yield f"undisturbed {name}: {wrong or f'exit {code}: {said[-300:]}'}"
    lake = place.opened()
    stored, refused = place.expected()
    for table, wanted in (("steps", stored), ("rejects", refused)):
        have = keys(lake, table)
        missing, excess = wanted - have, have - wanted
        if missing or excess:
            first = [*missing, *excess][0]
            yield f"{table}: {missing.total()} rows lost, {excess.total()} too many, such as {first}"
    faults = [
        f"{one.table}: {fault}" for one in balance(lake, Spool(str(place.spool)).listing()) for fault in one.faults
    ]
    yield from (fault for fault in faults_of_others(faults) if "run liar " not in fault)
    if read_plan(lake, last_finished(lake) + 1) is not None:
        yield "a plan is unfinished"
    proof = prove(lake)
    if proof.why:
        yield f"the audit trail is broken: {proof.why}"
    once = Counter(row["subject"] for row in trail(lake) if row["action"] == "test.once")
    if once != Counter(place.entries):
        yield f"entries of the trail: {once} is not {place.entries}"
    if sorted(os.listdir(place.outside)) != ["canary"] or (place.outside / "canary").read_bytes() != CANARY:  # noqa: PTH208
        yield "the folder outside was changed"
    if any(path.is_file() and CANARY in path.read_bytes() for path in place.lake.rglob("*")):
        yield "what lies outside is in the lake"


def _again(place, number):
    claim = f"steps/liar~a0~r00000~{LIAR + number:016x}~000000"
    return lambda: _command(place, "disown", claim, "--reason", "lies", "--by", "Ada")


def _once(place, number):
    def work():
        record(place.opened(), "child", "test.once", number, once=True)
        return 0

    return _one_line(work)


def main():
    """Run the cases."""
    seed, first, stop = map(int, sys.argv[1:])
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="ranklake-faults-") as scratch:
        place = Place(Path(scratch))
        os.environ["RANKLAKE_CONFIG"] = str(place.config)
        for number in range(first, stop):
            struck(place, Case.drawn(seed, number))
            if (number + 1) % EVERY_CASES == 0 or number == stop - 1:
                found = list(settled(place))
                for what in found:
                    tell(case=number, found=f"at or before this case: {what}")
                if found:
                    break


if __name__ == "__main__":
    main()
