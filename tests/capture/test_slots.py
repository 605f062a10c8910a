"""Slots: no row is lost or written twice, whoever rotates the files meanwhile."""

import itertools
import resource
import threading
import time

import numpy as np
import pytest

from ranklake.capture.common.gaps import BAD_VALUE, SPOOL_FULL, RefusedError
from ranklake.capture.common.layouts import MARK, SCALARS, SLOT_LANES, STEPS, row_packer
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.slots import SHUT, SlotFile
from ranklake.capture.lanes.written import RecordFile, WrittenLane, slots_in

PACK = SCALARS.packer.pack_into


class Lanes:
    """A lane over a folder, and what it refused."""

    def __init__(self, folder, slots=64, *, written=False):
        self.folder, self.bytes = folder, slots * SCALARS.slot_bytes
        self.file, self.written = (RecordFile if written else SlotFile), written
        self.numbers = itertools.count()
        self.refused = []
        self.full = False
        self.lane = (WrittenLane if written else Lane)(
            SCALARS,
            self.create,
            lambda layout: self.file(folder / f"spare-{next(self.numbers)}", layout, self.bytes),
            lambda spare: spare.rename(folder / f"slots-{next(self.numbers):06d}"),
            lambda *why: self.refused.append(why[:2]),
            lambda file: len(file.marked("mark")),
        )

    def create(self, layout):
        """Make the next file, unless the disk is full."""
        if self.full:
            raise RefusedError(SPOOL_FULL)
        return self.file(self.folder / f"slots-{next(self.numbers):06d}", layout, self.bytes)

    def values(self):
        """Return the values in all files that can be sealed, and what the lane counted in them."""
        counted, values = 0, []
        for path, rows in self.lane.collect().items():
            raw = path.read_bytes()
            slots = slots_in(raw, SCALARS)[0] if self.written else np.frombuffer(raw, SCALARS.dtype())
            values += slots["value"][slots["mark"] == MARK].tolist()
            counted += rows
        assert counted == len(values)
        return values


@pytest.fixture(params=[False, True], ids=["mapped", "written"])
def lanes(tmp_path, request):
    """Give a lane whose files hold 64 slots, one of each way to write: both keep what this module says."""
    made = Lanes(tmp_path, written=request.param)
    yield made
    made.lane.shut()
    made.lane.collect()


@pytest.fixture
def mapped(tmp_path):
    """Give a lane of mapped files."""
    made = Lanes(tmp_path)
    yield made
    made.lane.shut()
    made.lane.collect()


def fast(lane, value):
    """Write as the hot path does, the slow way only where the fast one fails."""
    try:
        view, take = lane.pair
        PACK(view, take(), 1, 2, value, 3, MARK)
    except Exception:  # noqa: BLE001 - as the hot path does
        lane.put(PACK, 1, 2, value, 3)


@pytest.mark.parametrize("prepared", [True, False])
def test_eight_threads_and_a_rotating_sealer_lose_nothing(lanes, prepared):
    """Eight threads write while the sealer cuts, retires and reads files: each value is found, once."""
    each, stop, found = 5000, threading.Event(), []

    def seal():
        while not stop.is_set():
            if prepared:
                lanes.lane.prepare()
            lanes.lane.cut()
            found.extend(lanes.values())

    def write(thread):
        for number in range(each):
            fast(lanes.lane, float(thread * each + number))

    sealer = threading.Thread(target=seal)
    writers = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in (sealer, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    sealer.join()
    lanes.lane.shut()
    found += lanes.values()
    assert lanes.refused == []
    assert sorted(found) == [float(number) for number in range(8 * each)]


def test_a_writer_between_taking_and_packing_finds_its_file_gone(lanes):
    """A slot that was taken in a file that is retired meanwhile stays empty, and the row goes to the next file."""
    fast(lanes.lane, 1.0)
    view, take = lanes.lane.pair
    offset = take()
    lanes.lane.cut()
    assert lanes.values() == [1.0]
    with pytest.raises(TypeError):
        PACK(view, offset, 1, 2, 3.0, 4, MARK)
    fast(lanes.lane, 2.0)
    lanes.lane.cut()
    assert lanes.values() == [2.0]


def test_a_file_that_is_retired_just_before_the_write_costs_no_row(lanes):
    """The slow way, too, may find the sealer between its look at the file and its write: it writes to the next one."""
    fast(lanes.lane, 1.0)
    sealed = []

    def pack(view, offset, *fields):
        if not sealed:
            lanes.lane.cut()
            sealed.append(lanes.values())
        PACK(view, offset, *fields)

    assert lanes.lane.put(pack, 1, 2, 2.0, 3) is not None
    lanes.lane.cut()
    assert (sealed, lanes.values(), lanes.refused) == ([[1.0]], [2.0], [])


def test_a_file_with_a_write_under_way_is_not_retired(mapped):
    """A write that has begun is let finish: the file is left for the sealer's next look."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def __float__(self):
            begun.set()
            go_on.wait()
            return 2.0

    fast(mapped.lane, 1.0)
    writer = threading.Thread(target=fast, args=(mapped.lane, Slow()))
    writer.start()
    begun.wait()
    mapped.lane.cut()
    assert mapped.values() == []
    go_on.set()
    writer.join()
    assert mapped.values() == [1.0, 2.0]


def test_a_held_file_waits_for_values_from_devices(lanes):
    """A file stays writable for as long as it is held."""
    fast(lanes.lane, 1.0)
    lanes.lane.cut()
    assert lanes.lane.collect(hold_ns=10**12) == {}
    assert lanes.values() == [1.0]


def test_a_full_disk_counts_each_row_and_training_goes_on_when_there_is_room(lanes, monkeypatch):
    """Rows that find no file are refused one by one; a second later it is tried again."""
    monkeypatch.setattr("ranklake.capture.lanes.lane.RETRY_NS", 50_000_000)
    lanes.full = True
    for _ in range(10):
        fast(lanes.lane, 1.0)
    assert lanes.refused == [("scalars", SPOOL_FULL)] * 10
    lanes.full = False
    time.sleep(0.06)
    fast(lanes.lane, 2.0)
    lanes.lane.cut()
    assert (lanes.values(), len(lanes.refused)) == ([2.0], 10)


def test_a_writer_does_not_ask_a_full_disk_where_a_thread_does(lanes):
    """Once a file could not be made, `prepare` tries again, and whoever records only finds that there is none."""
    asked = []
    lanes.lane.wake = lambda: asked.append("wake")
    assert lanes.lane.put(PACK, 1, 0, 0.0, 0)
    lanes.full, lanes.lane._create = True, lambda layout: asked.append("create") or lanes.create(layout)
    lanes.lane.cut()
    assert asked.count("create") == 1
    for number in range(100):
        assert lanes.lane.put(PACK, 1, number, 1.0, 0) is None
    lanes.lane._retry_ns = 0
    assert lanes.lane.put(PACK, 1, 0, 1.0, 0) is None
    assert lanes.lane.is_hungry
    assert asked.count("create") == 1
    assert asked[-1] == "wake"
    lanes.full = False
    lanes.lane.prepare()
    assert lanes.lane.put(PACK, 1, 0, 2.0, 0)
    lanes.lane.shut()
    assert sorted(lanes.values()) == [0.0, 2.0]
    assert len(lanes.refused) == 101


def test_what_is_no_number_is_refused_and_leaves_a_hole(lanes):
    """A text is refused, and the slot it took is skipped by readers."""
    fast(lanes.lane, 1.0)
    fast(lanes.lane, "two")
    fast(lanes.lane, 3.0)
    lanes.lane.cut()
    assert lanes.values() == [1.0, 3.0]
    assert lanes.refused == [("scalars", BAD_VALUE)]


def test_an_unused_file_is_not_cut(lanes):
    """Cutting what holds nothing changes nothing, so idle lanes use up no numbers."""
    fast(lanes.lane, 1.0)
    lanes.lane.prepare()
    lanes.lane.cut()
    assert lanes.values() == [1.0]
    pair = lanes.lane.pair
    lanes.lane.cut()
    assert lanes.lane.pair is pair


def test_a_failed_creation_leaves_no_file(tmp_path):
    """A file that cannot be made whole is not there."""
    with pytest.raises(OSError, match=r"\w"):
        SlotFile(tmp_path / "huge", SCALARS, 1 << 62)
    assert list(tmp_path.iterdir()) == []


def test_shut_lanes_take_no_write():
    """The pair of a shut lane refuses every write."""
    view, take = SHUT
    with pytest.raises(TypeError):
        PACK(view, take(), 1, 2, 3.0, 4, MARK)


@pytest.mark.parametrize("lane", sorted(SLOT_LANES))
def test_layouts_agree_with_their_numpy_structure(lane):
    """`struct` and numpy see the same size and the same places, and the mark comes last."""
    layout = SLOT_LANES[lane]
    dtype = layout.dtype()
    assert dtype.itemsize == layout.slot_bytes
    assert layout.slot_bytes % 8 == 0
    assert layout.fields[-1] == ("mark", "I")
    for name, _ in layout.fields:
        assert dtype.fields[name][1] == layout.offset(name)
    assert STEPS.file_bytes // STEPS.slot_bytes > 1000


def test_mappings_of_any_width_fill_the_same_slot():
    """Every width of a mapping has the layout's size."""
    assert {row_packer(width).size for width in range(1, 17)} == {SLOT_LANES["rows"].slot_bytes}


def faults_of_writing(lane, rows):
    """Return how many pages the kernel had to make ready while this thread wrote rows."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    view, take = lane.pair
    for _ in range(rows):
        PACK(view, take(), 1, 2, 3.0, 4, MARK)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_writers_find_their_pages_ready_also_after_a_sync(tmp_path):
    """Neither the first file nor what lies ahead after a sync costs the writer a fault for each page."""
    rows = 1 << 14  # 128 pages
    made = Lanes(tmp_path, slots=2 * rows)
    made.lane.prepare()
    made.lane.put(PACK, 1, 2, 3.0, 4)
    assert faults_of_writing(made.lane, rows) < 20
    made.lane.sync()
    assert faults_of_writing(made.lane, rows - 1) < 20
    unprepared = Lanes(tmp_path, slots=2 * rows)
    unprepared.numbers = itertools.count(100)
    unprepared.lane.put(PACK, 1, 2, 3.0, 4)
    assert faults_of_writing(unprepared.lane, rows) >= 100  # or the test tells nothing
    for lanes in (made, unprepared):
        lanes.lane.shut()
        lanes.lane.collect()


def test_taking_a_prepared_file_asks_for_the_next(lanes):
    """Whoever prepares files is woken when one was taken."""
    woken = []
    lanes.lane.wake = lambda: woken.append(1)
    lanes.lane.prepare()
    fast(lanes.lane, 1.0)
    assert woken == [1]
    fast(lanes.lane, 2.0)
    assert woken == [1]


def test_a_lane_that_is_shut_meanwhile_keeps_no_prepared_file(lanes):
    """A file that is prepared while the lane is shut is removed again."""
    made = lanes.lane._make_spare

    def slow(layout):
        spare = made(layout)
        lanes.lane.shut()
        return spare

    lanes.lane._make_spare = slow
    lanes.lane.prepare()
    assert list(lanes.folder.iterdir()) == []


def test_position_tells_how_far_writers_are_and_takes_no_slot(mapped):
    """Asking for the position leaves no hole."""
    fast(mapped.lane, 1.0)
    file = mapped.lane._file
    assert file.position() == file.position() == SCALARS.slot_bytes
    fast(mapped.lane, 2.0)
    assert file.position() == 2 * SCALARS.slot_bytes
