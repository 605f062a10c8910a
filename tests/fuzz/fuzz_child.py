"""Carries out what `campaign.py` asks: reads jobs as JSON lines, tells each step, and answers with what was found.

python fuzz_child.py SEED
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import begun
import damages
import mutations
import registers
from campaign import kind_of
from packing import pack_up
from segments import put_segment, step_rows

from ranklake import cli
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

ANSWERS = os.fdopen(os.dup(1), "w")
CANARY = b"canary that nobody may read, copy or change: 5f0c1d"
SOUND_ROWS = 40
BEGUN = {"plan begun": sorted(begun.KINDS), "register": registers.LAKES}
"""Kinds of damage that are done to lakes in which something has begun, and to which of them."""
SQL = "SELECT run, unreadable, count(*) n, max(rows_before) r FROM segments GROUP BY run, unreadable"
_RUN = re.compile(r"run fuzz-\d+ ")

guarded = Path("/nonexistent")
touched = []


def watch(event, arguments):
    """Note what is opened, listed or changed in the folder outside; an audit hook."""
    if not event.startswith(("open", "os.", "shutil.", "pathlib.")):
        return
    for argument in arguments:
        if isinstance(argument, (str, bytes)) and os.fsdecode(argument).startswith("/"):
            named = os.fsdecode(argument)
            if str(guarded) in named or (event == "open" and str(guarded) in os.path.realpath(named)):
                touched.append(f"{event} of the folder outside")


def tell(**facts):
    """Answer."""
    print(json.dumps(facts), file=ANSWERS, flush=True)


def command(*arguments):
    """Run a command; return its exit code (None where it left a traceback), what it said, what is wrong."""
    tell(step=arguments[0])
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run([*arguments])
    except BaseException as error:  # noqa: BLE001 - panics of Rust are no Exceptions
        last = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in last if "/lake/" in frame.filename or "ranklake" in frame.filename] or last
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        if os.environ.get("RANKLAKE_FUZZ_TRACEBACK"):
            traceback.print_exc()
        what = " ".join(str(error).split())[:120]
        return None, "", f"{arguments[0]}: a traceback: {type(error).__name__} at {place}: {what}"
    return code, out.getvalue() + err.getvalue(), ""


class Place:
    """A folder with a lake, a spool, and beside them what is nobody's business."""

    def __init__(self, root):
        global guarded  # noqa: PLW0603 - an audit hook stays for ever and has to be told
        self.root, self.lake, self.spool, self.outside = root, root / "lake", root / "spool", root / "outside"
        self.outside.mkdir(parents=True)
        self.spool.mkdir(exist_ok=True)
        (self.outside / "canary").write_bytes(CANARY)
        os.utime(self.outside / "canary", (1, 1))
        guarded = self.outside
        touched.clear()
        self.before = self._state()
        self.findings = []

    def _state(self):
        known = {path.name for path in (self.root, self.lake, self.spool, self.outside)}
        strange = sorted(path.name for path in self.root.iterdir() if path.name not in known)
        canary = self.outside / "canary"
        there = canary.exists()
        facts = (canary.read_bytes(), canary.stat().st_mtime) if there else None
        return sorted(os.listdir(self.outside)), strange, facts  # noqa: PTH208 - names are enough

    def run(self, name, *arguments, allowed=(0,)):
        """Run a command on the lake; note what is wrong with how it ended."""
        code, said, wrong = command(name, *arguments, "--lake", str(self.lake))
        if wrong:
            self.findings.append(wrong)
        elif code not in allowed and not (code == 1 and "wait for the key" in said):  # a name that asks for a key
            last = (said.strip().splitlines() or [""])[-1][:160]
            self.findings.append(f"{name}: exit {code}: {last}")
        return said

    def look_outside(self):
        """Note what was done to the folder outside, and whether what lies there is in the lake now."""
        if touched:
            self.findings.append(min(set(touched)))
        guarded_was = set_guard(Path("/nonexistent"))
        if self._state() != self.before:
            self.findings.append("the folder outside was changed")
        for path in self.lake.rglob("*"):
            if path.is_symlink() or (path.is_file() and CANARY in path.read_bytes()):
                self.findings.append(f"what lies outside is in the lake: {path.relative_to(self.root).parts[:2]}")
                break
        set_guard(guarded_was)


def set_guard(path):
    """Say which folder nobody may touch; return which it was."""
    global guarded
    before, guarded = guarded, path
    return before


def put_sound(spool, rng, number):
    """Put sound segments of two streams into a spool, some in a pack; return the keys of their rows."""
    keys = set()
    paths = []
    for rank in range(2):
        incarnation = 100 + rank
        rows = step_rows(SOUND_ROWS, segment=number, rank=rank, incarnation=incarnation, run="sound")
        paths.append(put_segment(spool, rows, rows_before=SOUND_ROWS * number, final=number == 1))
        keys |= {(incarnation, number, slot) for slot in range(SOUND_ROWS)}
    if rng.random() < 0.5:
        pack_up(spool, paths)
    return keys


def poison(seed, numbers, root):
    """Put objects of cases beside sound segments, in two rounds, and do all that is done with a lake."""
    place = Place(root)
    rng = random.Random(f"{seed}/{numbers[0]}/place")
    keys = set()
    for round_ in range(2):
        keys |= put_sound(place.spool, rng, round_)
        for number in numbers:
            if number % 2 == round_ or len(numbers) == 1:
                _, kind, dice = kind_of(seed, number)
                case = mutations.Case(number, dice, place.spool, place.outside)
                if round_ == 0 or len(numbers) > 1:
                    mutations.KINDS[kind][0](case)
        touched.clear()  # what puts them may
        place.run("ingest", "--spool", str(place.spool), allowed=(0, 1))
    place.run("ingest", "--spool", str(place.spool), allowed=(0, 1))
    said = place.run("status", "--spool", str(place.spool), allowed=(0, 1))
    for line in said.splitlines():
        fault = ": run " in line and "rows" in line and not _RUN.search(line)
        if fault or "the table holds" in line or "missing or not of their size" in line or "any more" in line:
            place.findings.append(f"status: {line[:160]}")
    place.run("sql", SQL)
    place.run("check", allowed=(0, 1))
    place.run("rollup")
    place.run("upkeep", "--grace-hours", "1")
    place.run("status", "--spool", str(place.spool), allowed=(0, 1))
    place.run("sql", "SELECT rank, count(*) n, sum(tokens) t FROM steps GROUP BY rank")
    if not any(": a traceback" in found for found in place.findings):
        rows = read(
            Lake.open(str(place.lake)).tables, contract("steps"), ["run", "incarnation", "segment", "slot"]
        ).to_pylist()
        have = Counter((row["incarnation"], row["segment"], row["slot"]) for row in rows if row["run"] == "sound")
        if have != Counter(keys):
            lost, more = (Counter(keys) - have).total(), (have - Counter(keys)).total()
            place.findings.append(f"sound rows: {lost} lost, {more} too many")
    place.look_outside()
    return place.findings


def base(root):
    """Make a lake that is in use: some plans, checks, rollups, a plan that is not finished."""
    (root / "spool").mkdir(parents=True)
    rng = random.Random(1)
    for number in range(2):
        put_sound(root / "spool", rng, number)
        ingest(Lake.create(str(root / "lake")), Spool(str(root / "spool")), InProcess(), merge=False)
    for name in ("check", "rollup"):
        code, said, wrong = command(name, "--lake", str(root / "lake"))
        assert code == 0, said + wrong


def damage(seed, number, root, likes):
    """Damage a copy of a lake, and do all that is done with one: each may be refused in one line.

    A lake to copy lies below `likes`, and is made there when the first is wanted.
    """
    _, kind, dice = kind_of(seed, number)
    begins = dice.choice(BEGUN[kind]) if kind in BEGUN else ""
    like = likes / (begins or "in use")
    if not like.exists():
        begun.make(like, begins) if begins else base(like)
    shutil.copytree(like, root)
    place = Place(root)
    damages.KINDS[kind][0](dice, place.lake, place.outside)
    touched.clear()
    put_segment(place.spool, step_rows(5, run="later", incarnation=500))
    some = (0, 1, 2)
    place.run("status", "--spool", str(place.spool), allowed=some)
    place.run("ingest", "--spool", str(place.spool), allowed=some)
    place.run("sql", SQL, allowed=some)
    place.run("sql", "SELECT rank, count(*) n, sum(tokens) t FROM steps GROUP BY rank", allowed=some)
    place.run("check", allowed=some)
    place.run("rollup", allowed=some)
    place.run("upkeep", "--grace-hours", "1", allowed=some)
    place.run("status", "--spool", str(place.spool), allowed=some)
    if begins:
        look_at_proposals(place)
    place.look_outside()
    return place.findings


def look_at_proposals(place):
    """Do what reads the registers of proposals, the audit log, and what was proposed in a lake that `begun` made."""
    some = (0, 1, 2)
    place.run("audit", "verify", allowed=some)
    place.run("quality", "held", allowed=some)
    place.run("grants", "list", allowed=some)
    for line, name in json.loads((place.root / "proposed").read_text()):
        words = [word.format(name=name, spool=place.spool) for word in shlex.split(line)]
        place.run(*words, allowed=some)


def main():
    """Do jobs until there are no more."""
    seed = int(sys.argv[1])
    faulthandler.enable()
    sys.addaudithook(watch)
    with tempfile.TemporaryDirectory(prefix="ranklake-fuzz-") as scratch:
        for line in sys.stdin:
            job = json.loads(line)
            root = Path(scratch, "job")
            if job["where"] == "damage":
                found = damage(seed, job["cases"][0], root, Path(scratch, "likes"))
            else:
                found = poison(seed, job["cases"], root)
            set_guard(Path("/nonexistent"))
            shutil.rmtree(root, ignore_errors=True)
            tell(findings=[(None, words) for words in found])


if __name__ == "__main__":
    main()
