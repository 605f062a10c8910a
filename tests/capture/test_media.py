"""Images, tables, confusion matrices and texts that a run shows: what is kept, and what is refused and why."""

import base64
import contextlib
import hashlib
import json
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from ranklake.capture.assets import media as media_module
from ranklake.capture.assets.image_file import MOST_PIXELS, MOST_SIDE, image_file, png
from ranklake.capture.assets.media_table import MOST_CLASSES, MOST_COLUMNS, MOST_ROWS
from ranklake.capture.common.values import BadValueError
from tests.support.recorded import check_books, rows

JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 3, 5) + b"\x01\x01\x11\x00" + b"\xff\xd9"


def shown_small(prefix):
    """Return a JPEG whose frame is huge for decoders, and small for who takes a length from what is none."""
    huge = b"\xff\xd8" + prefix + JPEG[8:12] + b"\x08" + struct.pack(">HH", 60_000, 60_000) + b"\x01\x01\x11\x00"
    after = 4 + int.from_bytes(huge[4:6])
    return huge + bytes(max(0, after - len(huge))) + JPEG[8:]


MARKUP = "<script>alert(1)</script>\u202e"


def decoded(raw):
    """Return the pixels of a PNG of eight bits without filters, as any reader would."""
    width, height, _, colour = struct.unpack(">IIBB", raw[16:26])
    at, packed = 8, b""
    while at < len(raw):
        size, name = struct.unpack(">I4s", raw[at : at + 8])
        data = raw[at + 8 : at + 8 + size]
        assert struct.unpack(">I", raw[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + data)
        packed += data if name == b"IDAT" else b""
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[colour])


def settle(run):
    """Wait until the media that were given are made, however slow the machine."""
    if run.rows.media._background is not None:
        run.rows.media._background.drain(60)


def kept(place):
    """Return rows by name, their bytes decoded, after closing all runs."""
    for run in place.runs:
        settle(run)
        run.close(60)
    found = {}
    for row in rows(place.spool, "media"):
        told = row["content"] or row["personal_text"] or row["personal_image"]
        raw = base64.b64decode(told) if row["kind"] == "image" else told.encode()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (row["bytes"], row["sha256"])
        found[row["name"]] = row | {"raw": raw}
    check_books(place.spool)
    return found


def test_each_kind_in_each_form(place, tmp_path):
    """Its row has the bytes, their digest, the step and how large it is."""
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    (tmp_path / "a.png").write_bytes(png(pixels).raw)
    run = place.start()
    with run.step(7):
        run.media("array", pixels)
    run.media("grey", np.eye(3), step=9)
    run.media("mask", np.eye(3, dtype=bool))
    run.media("first", torch.rand(3, 4, 5, requires_grad=True))
    run.media("half", torch.ones(2, 2, dtype=torch.bfloat16))
    run.media("png", png(pixels).raw, caption="a sample")
    run.media("jpeg", JPEG)
    run.media("path", tmp_path / "a.png")
    run.media("text path", str(tmp_path / "a.png"), kind="image")
    run.media("rows", [{"a": 1, "b": "x"}, {"a": float("nan")}])
    run.media("lists", [[1, 2.5], [None, True]], columns=["a", "b"])
    run.media("mapping", {"a": np.arange(2), "b": ["x", "y"]})
    run.media("frame", pd.DataFrame({"a": [1, 2], "b": ["x", None]}))
    arrow = pa.table({"a": [1, 2], "b": ["x", None]})
    run.media("arrow", arrow)
    run.media("batch", arrow.to_batches()[0])
    run.media("polars", pl.DataFrame({"a": [1, 2], "b": ["x", None]}))
    run.media("matrix", np.array([[3, 1], [0, 4]]), kind="confusion_matrix", labels=["cat", "dog"])
    run.media("ratios", [[0.5, 0.5], [0, 1]], kind="confusion_matrix")
    run.media("text", "Once upon a time")
    pixels[:] = 0  # what is changed afterwards is not shown
    found = kept(place)
    assert len(found) == 19
    assert (found["array"]["step"], found["grey"]["step"], found["png"]["step"]) == (7, 9, 7)
    assert np.array_equal(decoded(found["array"]["raw"]), np.arange(60).reshape(4, 5, 3))
    assert decoded(found["grey"]["raw"]).squeeze().tolist() == (np.eye(3) * 255).tolist()
    assert decoded(found["mask"]["raw"]).squeeze().tolist() == (np.eye(3) * 255).tolist()
    assert (found["first"]["row_count"], found["first"]["column_count"]) == (4, 5)
    assert found["half"]["media_type"] == "image/png"
    assert found["path"]["raw"] == found["text path"]["raw"] == found["png"]["raw"] == found["array"]["raw"]
    assert (found["jpeg"]["media_type"], found["jpeg"]["row_count"], found["jpeg"]["column_count"]) == (
        "image/jpeg",
        3,
        5,
    )
    assert json.loads(found["rows"]["raw"]) == {"columns": ["a", "b"], "rows": [[1, "x"], ["nan", None]]}
    assert json.loads(found["lists"]["raw"]) == {"columns": ["a", "b"], "rows": [[1, 2.5], [None, True]]}
    assert json.loads(found["mapping"]["raw"]) == {"columns": ["a", "b"], "rows": [[0, "x"], [1, "y"]]}
    assert json.loads(found["frame"]["raw"])["columns"] == ["a", "b"]
    for name in ("arrow", "batch", "polars"):
        assert json.loads(found[name]["raw"]) == {"columns": ["a", "b"], "rows": [[1, "x"], [2, None]]}
    assert json.loads(found["matrix"]["raw"]) == {"labels": ["cat", "dog"], "counts": [[3, 1], [0, 4]]}
    assert json.loads(found["ratios"]["raw"]) == {"labels": ["0", "1"], "counts": [[0.5, 0.5], [0, 1]]}
    assert (found["text"]["kind"], found["text"]["raw"]) == ("text", b"Once upon a time")


def test_what_may_be_about_persons_has_columns_of_their_class(place):
    """Images and texts unless the script says that nobody is in them; a confusion matrix is of machines."""
    run = place.start()
    run.media("image", np.eye(3))
    run.media("plot", np.eye(3), personal=False)
    run.media("text", "by ada")
    run.media("matrix", [[1]], kind="confusion_matrix")
    run.media("names", [[1]], kind="confusion_matrix", personal=True)
    columns = ("content", "personal_text", "personal_image")
    held = {name: [one for one in columns if row[one]] for name, row in kept(place).items()}
    assert held == {
        "image": ["personal_image"], "plot": ["content"], "text": ["personal_text"], "matrix": ["content"],
        "names": ["personal_text"],
    }  # fmt: skip


def test_fill_bytes_stand_before_a_marker():
    """As the standard of JPEG has it, any number of them."""
    filled = JPEG[:8] + b"\xff\xff" + JPEG[8:]
    assert (image_file(filled).width, image_file(filled).height) == (5, 3)


def test_what_a_png_holds_compressed_is_not_kept(place):
    """A text in it would be found by no search for a person; the pixels stay as they are."""
    raw = png(np.eye(3)).raw

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    noted = raw[:33] + chunk(b"tEXt", b"Comment\0kept")
    packed = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"gone")) + chunk(
        b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"gone")
    )
    run = place.start()
    run.media("image", noted + packed + raw[33:])
    run.media("damaged", noted[:-4] + b"\xff" + raw[33:])
    assert kept(place)["image"]["raw"] == noted + raw[33:]
    assert run.gaps() == {"media": {"bad value": 1}}


REFUSED = {
    "bytes of something": (b"GIF89a", {}, "bad value"),
    "cut short": (png(np.eye(3)).raw[:-4], {}, "bad value"),
    "a jpeg cut short": (JPEG[:-3], {}, "bad value"),
    "a jpeg that hides its size behind a restart": (shown_small(b"\xff\xd0"), {}, "bad value"),
    "a jpeg that hides its size behind a fill byte": (shown_small(b"\xff"), {}, "bad value"),
    "a jpeg that hides its size behind a stuffed byte": (shown_small(b"\xff\x00"), {}, "bad value"),
    "a bomb": (png(np.eye(3)).raw[:16] + struct.pack(">II", 60_000, 60_000) + png(np.eye(3)).raw[24:], {}, "bad value"),
    "nan": (np.full((3, 3), np.nan), {}, "bad value"),
    "floats of bytes": (np.full((3, 3), 200.0), {}, "bad value"),
    "negative": (np.full((3, 3), -1), {}, "bad value"),
    "five channels": (np.zeros((5, 5, 5)), {}, "bad value"),
    "empty": (np.zeros((0, 3)), {}, "bad value"),
    "objects": (np.array([[None]]), {}, "bad value"),
    "sparse": (torch.eye(3).to_sparse(), {}, "bad value"),
    "not resolved": (torch._neg_view(torch.zeros(3, 3)), {}, "bad value"),
    "a tower": (np.zeros((MOST_SIDE + 1, 1), np.uint8), {}, "bad value"),
    "gone": (Path("/nowhere/a.png"), {}, "bad value"),
    "a folder": (Path("/"), {}, "bad value"),
    "a pipe": (Path("FIFO"), {}, "bad value"),
    "a long text": ("x" * (1 << 20), {}, "too large"),
    "text of numbers": (3, {"kind": "text"}, "bad value"),
    "nothing": (None, {}, "bad value"),
    "ragged": ([[1], [1, 2]], {}, "bad value"),
    "no columns": ([], {}, "bad value"),
    "a number as a column": ({"a": np.array(1)}, {}, "bad value"),
    "a wide frame": (pd.DataFrame(np.zeros((1, 100_000))), {}, "too large"),
    "large cells": ([["x" * 2000]] * MOST_ROWS, {}, "too large"),
    "labels of a number": ([[1]], {"kind": "confusion_matrix", "labels": 5}, "bad value"),
    "columns of a number": ([[1]], {"columns": 5}, "bad value"),
    "lengths": ({"a": [1], "b": []}, {}, "bad value"),
    "rows": ([[1]] * (MOST_ROWS + 1), {}, "too large"),
    "columns": ([list(range(MOST_COLUMNS + 1))], {}, "too large"),
    "oblong": ([[1, 2]], {"kind": "confusion_matrix"}, "bad value"),
    "flat": ([1, 2], {"kind": "confusion_matrix"}, "bad value"),
    "negative counts": ([[-1]], {"kind": "confusion_matrix"}, "bad value"),
    "nan counts": ([[float("nan")]], {"kind": "confusion_matrix"}, "bad value"),
    "classes": (np.zeros((MOST_CLASSES + 1, MOST_CLASSES + 1)), {"kind": "confusion_matrix"}, "too large"),
    "labels": ([[1]], {"kind": "confusion_matrix", "labels": ["a", "b"]}, "bad value"),
    "kind": ("x", {"kind": "video"}, "bad value"),
    "unknown": ("x", {"captoin": "c"}, "bad arguments"),
    "on a device": (torch.zeros(3, 3, device="meta"), {}, "device value"),
    "step": ("x", {"step": "seven"}, "bad value"),
    "": ("x", {}, "bad name"),
    "a\nline": ("x", {}, "bad name"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_counted_with_its_reason(place, tmp_path, warnings_told, name, monkeypatch):
    """Nothing is raised; the warning says what is wrong."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("FIFO")
    value, options, reason = REFUSED[name]
    run = place.start()
    run.media(name, value, **options)
    assert kept(place) == {}
    assert run.gaps() == {"media": {reason: 1}}
    assert f"not recorded in media: {reason}" in warnings_told.text


LARGE = {
    "eight bits of float": torch.zeros(1, dtype=torch.float8_e4m3fn).expand(1 << 12, 1 << 12),
    "one gigabyte": np.broadcast_to(np.uint8(1), (1 << 15, 1 << 15)),
    "noise": np.random.default_rng(0).integers(0, 256, (900, 900), np.uint8),
    "channels first": np.random.default_rng(0).integers(0, 256, (3, 1200, 800), np.uint8),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_image_is_scaled(place, name):
    """Every k-th pixel of every k-th row is kept, so that it fits; its shape stays what it was."""
    run = place.start()
    run.media("large", LARGE[name])
    run.close(60)
    (row,) = kept(place).values()
    shape = [side for side in LARGE[name].shape if side > 4]
    assert row["bytes"] <= 512 << 10
    assert row["row_count"] * shape[1] == pytest.approx(row["column_count"] * shape[0], rel=0.01)
    assert run.gaps() == {}


def _until(stopped, seconds):
    """Take some seconds, unless told to stop."""
    over = threading.Event()
    while seconds > 0 and not stopped():
        over.wait(0.1)
        seconds -= 0.1


def test_a_large_image_keeps_no_other_from_being_kept(place):
    """At the close there is half of the time that it may take for all that waits, whatever the first of them needs."""
    run = place.start()
    run.media("large", LARGE["noise"])
    run.rows.media._background.submit(lambda stopped: _until(stopped, 1.3))
    for number in range(5):
        run.media(f"small{number}", np.zeros((3, 3)))
    run.close(60)
    assert len(kept(place)) == 6
    assert run.gaps() == {}


def test_a_figure_is_drawn(place):
    """It is asked to save itself, at once, as are the figure of axes, and what draws the figure of now."""

    class Figure:
        dpi = 300

        def get_size_inches(self):
            return 20, 10

        def savefig(self, buffer, *, format, dpi):  # noqa: A002 - as it is called
            assert (format, dpi) == ("png", 2048 / 20)
            buffer.write(png(np.eye(3)).raw)

    class Axes:
        figure = Figure()

    run = place.start()
    run.media("figure", Figure())
    run.media("axes", Axes())
    run.close(60)
    assert {name: row["kind"] for name, row in kept(place).items()} == {"figure": "image", "axes": "image"}


def test_names_and_texts_keep_markup_as_text_and_lose_credentials(place):
    """What looks like a key goes, as from log lines; the rest stays as it was."""
    run = place.start()
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    run.media("<b>", f"{MARKUP} {secret}", caption=f"{MARKUP} {secret}")
    run.media("cells", [[secret, {"password": "hunter2-hunter2"}]], columns=[MARKUP, "b"])
    found = kept(place)
    assert found["<b>"]["raw"].decode().startswith(MARKUP)
    assert json.loads(found["cells"]["raw"])["columns"][0] == MARKUP
    assert not [one for one in (secret, "hunter2") if one in json.dumps(found, default=str)]


def test_cells_under_telling_names_are_credentials(place):
    """As the values of keys are: of a column, and of a row that says what its value is; words of a model stay."""
    run = place.start()
    run.media("column", {"user": ["ada"], "password": ["hunter2-hunter2"], "hf_token": ["qwertz-uiop-1"]})
    run.media("row", [{"name": "api_key", "value": "hunter2-hunter2"}, {"name": "lr", "value": "0.1"}])
    run.media("frame", pd.DataFrame([["hunter2-hunter2", "a"]], columns=["password", "password"]))
    run.media("words", {"token": ["the", "cat sat on the mat"], "logprob": [-0.5, -1]})
    found = {name: json.loads(row["raw"])["rows"] for name, row in kept(place).items()}
    assert "hunter2" not in json.dumps(found)
    assert found["column"] == [["ada", "[redacted]", "[redacted]"]]
    assert found["row"][1] == ["lr", "0.1"]
    assert found["words"] == [["the", -0.5], ["cat sat on the mat", -1]]


def test_of_what_a_cell_holds_no_more_is_looked_at_than_is_shown(place):
    """Tables of token ids hold millions of numbers, of which each cell shows the first hundreds."""
    looked = []

    class Number(int):
        def __abs__(self):
            looked.append(self)
            return super().__abs__()

    run = place.start()
    run.media("ids", [[list(map(Number, range(20_000))), {str(n): [n, [n]] for n in range(20_000)}, "x" * 10_000_000]])
    (cells,) = json.loads(kept(place)["ids"]["raw"])["rows"]
    assert 0 < len(looked) < 1000
    assert cells[0].startswith("[0, 1, 2")
    assert [(len(cell), cell[-3:]) for cell in cells] == [(1024, "[…]")] * 3


def test_a_child_has_limits_of_its_own(place):
    """What waits in its parent when it is forked is the parent's, and takes none of its room."""
    run = place.start(media_max_count=3)
    hold = threading.Event()
    run.media("before", "x")
    settle(run)
    run.rows.media._background.submit(lambda _: hold.wait(60))
    for name in ("first", "second"):
        run.media(name, np.zeros((4000, 4000), np.uint8))
    child = os.fork()
    if not child:
        for name in ("one", "two", "three"):
            run.media(name, np.zeros((1000, 1000, 3), np.uint8))
        run.close(60)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hold.set()
    assert set(kept(place)) == {"before", "first", "second", "one", "two", "three"}


def test_of_a_masked_medium_there_is_no_digest(place, tmp_path):
    """A short text could be guessed from it."""
    (tmp_path / "masking.yaml").write_text("at_capture: {masks: {media.personal_text: redact}}\n")
    run = place.start(masking_policy=str(tmp_path / "masking.yaml"))
    run.media("text", "by ada@example.org")
    run.media("open", "by ada@example.org", personal=False)
    settle(run)
    run.close(60)
    masked, plain = rows(place.spool, "media")
    assert "ada" not in masked["personal_text"]
    assert masked["sha256"] is None
    assert plain["sha256"] == hashlib.sha256(b"by ada@example.org").hexdigest()


def test_a_process_keeps_so_many_and_so_large_ones(place, capfd):
    """What comes beyond the settings is counted, and the closing line tells of it."""
    run = place.start(announce="on", media_max_count=3, media_max_bytes=100, media_max_total_bytes=150)
    run.media("first", "x" * 100)
    settle(run)
    run.media("second", "x" * 100)
    run.media("large", "x" * 101)
    settle(run)
    run.media("third", "x" * 10)
    settle(run)
    run.media("fourth", "x")
    assert set(kept(place)) == {"first", "third"}
    assert run.gaps() == {"media": {"more media than the settings allow": 2, "too large": 1}}
    assert "2 media kept and 3 refused" in capfd.readouterr().err


def test_training_does_not_wait_for_the_making(place, monkeypatch):
    """What waits is bounded: beyond it is refused, not queued."""
    monkeypatch.setattr(media_module, "_MAX_WAITING_BYTES", 1000)
    run = place.start()
    hold = threading.Event()
    run.media("first", "x")
    settle(run)
    run.rows.media._background.submit(lambda _: hold.wait(10))
    run.media("waits", "x" * 900)
    run.media("refused", "x" * 900)
    hold.set()
    settle(run)
    assert run.gaps() == {"media": {"media queue full": 1}}
    assert set(kept(place)) == {"first", "waits"}


def test_a_run_that_is_over(place):
    """It counts what it is given."""
    run = place.start()
    run.close()
    run.media("late", "x")
    assert run.gaps() == {"media": {"after close": 1}}


def test_an_image_of_pillows(place):
    """It is asked to save itself, in the background, in a mode that PNG has; what cannot be is refused."""

    class Image:
        mode, size = "RGB", (3, 3)

        def convert(self, mode):
            assert (self.mode, mode) == ("CMYK", "RGB")
            return Image()

        def copy(self):
            return self

        def save(self, buffer, form):
            assert form == "PNG"
            buffer.write(png(np.eye(3)).raw)

    class Strange(Image):
        def save(self, buffer, form):
            raise OSError("cannot write mode F as PNG")

    class Printed(Image):
        mode = "CMYK"

    class Cut(Image):
        def copy(self):
            raise OSError("image file is truncated")

    run = place.start()
    run.media("good", Image())
    run.media("printed", Printed())
    run.media("cut", Cut())
    run.media("bad", Strange())
    found = kept(place)
    assert found["good"]["raw"] == found["printed"]["raw"] == png(np.eye(3)).raw
    assert run.gaps() == {"media": {"bad value": 2}}


@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_raise_anything_else(seed):
    """Cut, flipped and made up, they are an image of a size within bounds, or refused."""
    random = np.random.default_rng(seed)
    for _ in range(2000):
        raw = bytearray(JPEG if random.random() < 0.5 else png(np.eye(4)).raw)
        for _ in range(random.integers(1, 4)):
            raw[random.integers(len(raw))] = random.integers(256)
        whole = bytes(raw[: random.integers(len(raw) + 1)]) if random.random() < 0.3 else bytes(raw)
        with contextlib.suppress(BadValueError):
            found = image_file(whole)
            assert 0 < found.width * found.height <= MOST_PIXELS
