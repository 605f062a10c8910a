"""One lake and its cases, for `faults.py`, which preloads what fails: a line of JSON a case, and for what was found.

python faults_child.py SEED FIRST STOP [URL]

With the URL of a server of S3's protocol, lake and spool lie there, and the command reaches it by a proxy that meddles.
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
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
from faults import ANSWERS_OF_STORES, COMMANDS, KINDS, PATIENCE_S, Case
from mutations import faults_of_others, poison
from segments import put_segment, step_rows
from stores import Proxy, Store, s3_storage
from today import TODAY

from ranklake import cli
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.retention_plans import register

ROWS = 60
EVERY_CASES = 10
CANARY = b"canary that nobody may read, copy or change: 5f0c1d"
ANSWERS = os.fdopen(os.dup(1), "w")
SHIM = ctypes.CDLL(None)
SHIM.faulty_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
SHIM.faulty_disarm.restype = SHIM.faulty_fired.restype = ctypes.c_long
RECENT, OLD = (datetime.combine(TODAY - timedelta(days=age), time(), UTC) for age in (5, 5000))
SOUND, AGED, LIAR = 7, 8, 1000
"""Incarnations: of what stays, of what retention takes, and from which on those lie that are disowned."""


def tell(**facts):
    """Answer."""
    print(json.dumps(facts), file=ANSWERS, flush=True)


class Place:
    """A lake, a spool, and what should be in them."""

    def __init__(self, root):
        self.root, self.lake, self.spool, self.outside = root, root / "lake", root / "spool", root / "outside"
        self.lake_uri, self.spool_uri, self.storage = str(self.lake), str(self.spool), {}
        self.witness = root / "lake-witness"
        self.configure()
        self.outside.mkdir()
        (self.outside / "canary").write_bytes(CANARY)
        self.segments = self.aged = 0
        self.liars, self.entries = [], []
        self.operations = {}
        for path in (self.lake, self.spool, self.witness):
            SHIM.faulty_root(os.fsencode(path))

    def configure(self):
        """Write the configuration that commands read."""
        lines = ["[audit]", f'witness = "file:{self.witness}"', "[storage]"]
        lines += [f'{name} = "{value}"' for name, value in self.storage.items()]
        config = self.root / "ranklake.toml"
        config.write_text("\n".join(lines))
        os.environ["RANKLAKE_CONFIG"] = str(config)

    def opened(self):
        """Open the lake anew, as a process does."""
        return Lake.create(self.lake_uri, self.storage).configured(audit=AuditSection(f"file:{self.witness}"))

    def spooled(self):
        """Open the spool."""
        return Spool(self.spool_uri, self.storage)

    def sent(self):
        """Have what was put be where commands look for it."""

    def arm(self, case):
        """Have the command that comes meet its fault."""
        mask, action, error, _ = KINDS[case.kind]
        SHIM.faulty_arm(mask, self.first(case), case.length, action, error)

    def disarm(self, case):
        """Have nothing fail any more; return how many operations failed."""
        fired = SHIM.faulty_fired()
        self.note(case, SHIM.faulty_disarm())
        return fired

    def first(self, case):
        """Return which operation fails first: of as many as there were the last time, and a tenth more."""
        return 1 + int(case.where * self.operations.get((case.command, case.mask), 40) * 1.1)

    def note(self, case, operations):
        """Remember how many operations there were."""
        self.operations[case.command, case.mask] = max(1, operations)

    def lake_holds(self, raw):
        """Say whether bytes are anywhere in the lake."""
        return any(path.is_file() and raw in path.read_bytes() for path in self.lake.rglob("*"))

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


class StorePlace(Place):
    """The same in an object store: commands go by a proxy, what is put does not."""

    def __init__(self, root, url, proxy, name):
        super().__init__(root)
        self.proxy, self.there = proxy, set()
        self.direct = Store(f"s3://bucket/{name}", s3_storage(url))
        self.storage = s3_storage(proxy.url)
        self.lake_uri, self.spool_uri = f"{self.direct.uri}/lake", f"{self.direct.uri}/spool"
        self.configure()

    def sent(self):
        """Send what was put since, but for what an object cannot be."""
        fs, root = self.direct.connect()
        for path in self.spool.rglob("*"):
            if path not in self.there and path.is_file() and not path.is_symlink():
                self.there.add(path)
                with contextlib.suppress(Exception):  # a name that no object has
                    fs.pipe_file(f"{root}/spool/{path.relative_to(self.spool)}", path.read_bytes())

    def arm(self, case):
        """Have the proxy meddle."""
        first = self.first(case)
        self.proxy.seen.clear()
        due = range(first, first + case.length)
        self.fired = 0

        def rule(_):
            if len(self.proxy.seen) not in due:
                return None
            self.fired += 1
            return ANSWERS_OF_STORES[case.kind][0]

        self.proxy.rule = rule

    def disarm(self, case):
        """Have the proxy hand all on."""
        self.proxy.rule = None
        self.note(case, len(self.proxy.seen))
        return self.fired

    def lake_holds(self, raw):
        """Say whether bytes are anywhere in the lake."""
        return any(raw in one for one in self.direct.below("lake").contents().values())


def _is_bad(slot):
    return slot % 50 == 7


def _command(place, *words):
    return cli.run([*words, "--lake", place.lake_uri])


def _ingest(place):
    place.sent()
    return lambda: _command(place, "ingest", "--spool", place.spool_uri)


def _retain(place):
    """Have a plan approved; return what applies it."""
    place.bring_aged()
    _ingest(place)()
    _command(place, "retain", "plan")
    name = max(register(place.opened().tables).values(), key=lambda one: one.proposed).name
    _command(place, "retain", "approve", name, "--by", "Ada", "--reason", "as agreed")
    return lambda: _command(place, "retain", "apply", name, "--by", "Otto", "--spool", place.spool_uri)


def _disown(place, number):
    """Have a stream taken in; return what disowns it."""
    rows = step_rows(10, incarnation=LIAR + number, run="liar", start=RECENT)
    put_segment(place.spool, rows, rows_before=50)
    _ingest(place)()
    place.liars.append(number)
    claim = f"steps/liar~a0~r00000~{LIAR + number:016x}~000000"
    return lambda: _command(place, "disown", claim, "--reason", "lies", "--by", "Ada")


def _record(place, number):
    """Return what adds a row to the audit log, once."""
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
                place, "replay", "--table", "steps", "--from", day, "--to", day, "--spool", place.spool_uri
            )
        ),
        "status": lambda: lambda: _command(place, "status", "--spool", place.spool_uri),
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
    place.sent()
    holder = []
    _, said, wrong = carried_out(lambda: holder.append(prepared(place, case)))
    if wrong:
        tell(case=case.number, found=f"preparing {case.command}: {wrong}")
        return
    place.arm(case)
    code, said, wrong = carried_out(holder[0])
    fired = place.disarm(case)
    how = "missed" if not fired else "refused" if code else "went on"
    line = said.splitlines()[-1][:200] if said else ""
    tell(case=case.number, command=case.command, kind=case.kind, how=how, said=line if code else "")
    if wrong or "Traceback" in said:
        tell(case=case.number, found=f"{case.command}, {case.kind}, {case.length} times: {wrong or said[-300:]}")


def keys(lake, table):
    """Count the rows of a table by key, without those of poison."""
    rows = read(lake.tables, contract(table), ["incarnation", "segment", "slot"])
    every = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    return Counter(key for key in every if key[0] == SOUND or LIAR <= (key[0] or 0) < 1_000_000)


def settled(place, disturbed):
    """Run all undisturbed, until nothing waits; yield what is wrong.

    Most of what a lake takes is the contracts' checks of all its tables, and their rollups: these are run only where
    one was disturbed.
    """
    done = [("ingest", _ingest(place)), *((f"disown {n}", _again(place, n)) for n in place.liars)]
    done += [(f"record {n}", _once(place, n)) for n in place.entries]
    done += [(name, lambda name=name: _command(place, name)) for name in ("check", "rollup") if name in disturbed]
    done += [("upkeep", _upkeep(place)), ("status", lambda: _command(place, "status", "--spool", place.spool_uri))]
    for name, work in done:
        code, said, wrong = carried_out(work)
        bad = (1, 2, 3, None) if name not in {"check", "ingest", "status"} else (2, 3, None)
        waits = code == 1 and "wait for the key" in said  # a hostile name asks for one
        if wrong or (code in bad and not waits):
            yield f"undisturbed {name}: {wrong or f'exit {code}: {said[-300:]}'}"
    lake = place.opened()
    stored, refused = place.expected()
    for table, wanted in (("steps", stored), ("rejects", refused)):
        have = keys(lake, table)
        missing, excess = wanted - have, have - wanted
        if missing or excess:
            first = [*missing, *excess][0]
            yield f"{table}: {missing.total()} rows lost, {excess.total()} too many, such as {first}"
    faults = [f"{one.table}: {fault}" for one in balance(lake, place.spooled().listing()) for fault in one.faults]
    yield from (fault for fault in faults_of_others(faults) if "run liar " not in fault)
    if read_plan(lake.store, last_finished(lake.tables) + 1) is not None:
        yield "a plan is unfinished"
    proof = prove(lake)
    if proof.why:
        yield f"the audit log is broken: {proof.why}"
    once = Counter(row["subject"] for row in trail(lake.tables) if row["action"] == "test.once")
    if once != Counter(place.entries):
        yield f"entries of the audit log: {once} is not {place.entries}"
    if sorted(os.listdir(place.outside)) != ["canary"] or (place.outside / "canary").read_bytes() != CANARY:  # noqa: PTH208
        yield "the folder outside was changed"
    if place.lake_holds(CANARY):
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
    seed, first, stop = map(int, sys.argv[1:4])
    faulthandler.enable()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ranklake-faults-")))
        if sys.argv[4:]:
            proxy = stack.enter_context(Proxy(sys.argv[4]))
            place = StorePlace(root, sys.argv[4], proxy, f"{seed}-{first}")
        else:
            place = Place(root)
        disturbed = set()
        for number in range(first, stop):
            case = Case.drawn(seed, number)
            disturbed.add(case.command)
            struck(place, case)
            if (number + 1) % EVERY_CASES == 0 or number == stop - 1:
                found = list(settled(place, COMMANDS if number == stop - 1 else disturbed))
                disturbed.clear()
                for what in found:
                    tell(case=number, found=f"at or before this case: {what}")
                if found:
                    break


if __name__ == "__main__":
    main()
