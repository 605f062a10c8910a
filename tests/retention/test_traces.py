"""Traces of a person: found wherever they are, in whatever form; told without the person's name."""

import base64
import bz2
import gzip
import html
import io
import json
import lzma
import quopri
import sqlite3
import sys
import tarfile
import zipfile
from unicodedata import normalize
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ciphered import ONE, encrypt_segment, source_of
from governed import Site
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.utils import htmlsafe_json_dumps
from packing import pack_up
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.retention.erasure.contents import ContentMatch, UnsearchedPart, look, match_values
from ranklake.retention.erasure.needles import WORDS, NeedleError, make_needles
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import subject_under

PERSON = 'Ada "the Countess" Lovelace <ada@example.org>'


def logs(count, text, **more):
    """Return rows of steps whose run is named so; a run's name stands in every table."""
    return step_rows(count, run=text, **more)


def found(lake, spool, *values, folders=()):
    """Return (place, where) of all traces, having seen that none of them tells a value."""
    done = search(lake, spool, values, folders)
    assert not any(value.lower() in json.dumps(done.plain()).lower() for value in values)
    return {(one.place, one.where) for one in done.traces}, {(one.place, one.where) for one in done.unsearched}


def test_a_run_is_found_in_everything_that_ingest_makes(tmp_path):
    """Rows, old versions, logs with their statistics, plans, names of segments, packs, and what lies in quarantine."""
    site = Site(tmp_path)
    for segment in range(2):
        site.bring(step_rows(30, run="ada.lovelace", segment=segment), rows_before=30 * segment)
    merge_small(site.lake, InProcess(), ["steps"], thorough=True)
    pack_up(site.spool)
    broken = put_segment(site.spool, step_rows(5, run="ada.lovelace", incarnation=9))
    broken.write_bytes(broken.read_bytes()[:-40])
    site.bring(step_rows(3, run="other", incarnation=11))
    places, unsearched = found(site.lake, Spool(str(site.spool)), "Ada.Lovelace")
    assert places >= {
        ("rows of steps", "column run"),
        ("rows of steps", "footer: statistics or metadata"),
        ("old versions of steps", "column run"),
        ("rows of segments", "column run"),
        ("log of steps", "bytes"),
        ("plans of the lake", "bytes"),
        ("segments in the spool", "name of a member"),
        ("segments in the spool", "column run"),
        ("segments in the spool", "name of the file"),
        ("raw bytes in quarantine", "bytes"),
    }
    assert {why for _, why in unsearched} == {"Parquet that cannot be read (ArrowInvalid)"}


@pytest.mark.slow
def test_a_segment_is_looked_into_where_a_key_opens_it(tmp_path):
    """Without the key it is told as not searched; with it, what is in it is found."""
    spool = tmp_path / "spool"
    path = put_segment(spool, step_rows(5, run="ada.lovelace"))
    encrypt_segment(path, ONE)
    Lake.create(str(tmp_path / "lake"))
    for keys, expected in ((source_of(tmp_path / "keys", ONE), "column run"), ("", None)):
        lake = Lake.open(str(tmp_path / "lake"), {}, LakeConfig(encryption_key=keys))
        places, unsearched = found(lake, Spool(str(spool)), "ada.lovelace")
        assert (("segments in the spool", expected) in places) == bool(keys)
        assert bool(unsearched) != bool(keys)


def zipped(name, raw):
    """Return an archive of one file."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, raw)
    return sink.getvalue()


def parquet(rows):
    """Return a Parquet file without statistics, compressed."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def tarred(raw):
    """Return a tar archive of one file."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        member = tarfile.TarInfo("a.gz")
        member.size = len(raw)
        archive.addfile(member, io.BytesIO(raw))
    return sink.getvalue()


def database(text):
    """Return a database of SQLite that has a text."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (v)")
    connection.execute("INSERT INTO t VALUES (?)", (text,))
    connection.commit()
    return connection.serialize()


def every(text, escape):
    """Return a text with each byte of it escaped."""
    return "".join(escape.format(byte) for byte in text.encode()).encode()


FORMS = {
    "plain": lambda text: text.encode(),
    "upper": lambda text: text.upper().encode(),
    "json": lambda text: json.dumps({"by": text}).encode(),
    "json in json": lambda text: json.dumps(json.dumps({"by": text})).encode(),
    "html": lambda text: f"<p>{html.escape(text)}</p>".encode(),
    "url": lambda text: f"https://x.org/?q={quote(text)}".encode(),
    "base64": lambda text: base64.b64encode(b"by " + text.encode() + b" at noon"),
    "utf-16": lambda text: text.encode("utf-16"),
    "gzip": lambda text: gzip.compress(b"-" * 999 + text.encode()),
    "bz2": lambda text: bz2.compress(b"-" * 999 + text.encode()),
    "xz": lambda text: lzma.compress(b"-" * 999 + text.encode()),
    "tar.gz of gzip": lambda text: gzip.compress(tarred(gzip.compress(text.encode()))),
    "zip behind a program": lambda text: b"#!/bin/sh\n" + zipped("a.txt", text.encode()),
    "base64 in lines": lambda text: base64.encodebytes(b"-" * 60 + text.encode() + b"-" * 60),
    "utf-16 turned round": lambda text: text.encode("utf-16-be"),
    "utf-32": lambda text: text.encode("utf-32"),
    "latin or not": lambda text: text.encode("latin-1"),
    "decomposed": lambda text: normalize("NFD", text).encode(),
    "utf-32 turned round": lambda text: text.encode("utf-32-be"),
    "hex": lambda text: text.encode().hex().encode(),
    "url, every letter": lambda text: every(text, "%{:02X}"),
    "url thrice": lambda text: quote(quote(quote(text, safe=""), safe=""), safe="").encode(),
    "url, some letters": lambda text: quote(text).replace("e", "%65").encode(),
    "mail": lambda text: quopri.encodestring(text.encode()),
    "mail, every letter": lambda text: every(text, "={:02X}"),
    "html by numbers": lambda text: "".join(f"&#{ord(letter)};" for letter in text).encode(),
    "html by hexadecimal numbers": lambda text: "".join(f"&#x{ord(letter):X};" for letter in text).encode(),
    "json by numbers": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text).encode(),
    "json in a page": lambda text: str(htmlsafe_json_dumps({"by": text})).encode(),
    "base64 in lines in json": lambda text: json.dumps(
        base64.encodebytes(b"-" * 50 + text.encode() * 2).decode()
    ).encode(),
    "base64, indented": lambda text: base64.encodebytes(b"-" * 50 + text.encode()).replace(b"\n", b"\r\n    "),
    "html of Jinja": lambda text: html.escape(text).replace("&#x27;", "&#39;").encode(),
    "url in a url": lambda text: quote(quote(text, safe=""), safe="").encode(),
    "json of PHP": lambda text: json.dumps(text).replace("/", "\\/").encode(),
    "parquet extension": lambda text: parquet(pa.table({"t": pa.array([json.dumps(text)], pa.json_(pa.utf8()))})),
    "zip": lambda text: zipped("a.txt", text.encode()),
    "gzip in zip": lambda text: zipped("a.gz", gzip.compress(text.encode())),
    "parquet in zip": lambda text: zipped("a.parquet", parquet(pa.table({"t": [text]}))),
    "sqlite": database,
    "parquet": lambda text: parquet(pa.table({"t": [None, f"by {text}"]})),
    "parquet list": lambda text: parquet(pa.table({"t": [[], ["x", text]]})),
    "parquet map": lambda text: parquet(pa.table({"t": pa.array([[("k", text)]], pa.map_(pa.string(), pa.string()))})),
    "parquet, base64 in lines": lambda text: parquet(
        pa.table({"t": [json.dumps(base64.encodebytes(b"-" * 50 + text.encode()).decode())]})
    ),
    "parquet, url": lambda text: parquet(pa.table({"t": [quote(text).replace("e", "%65")]})),
    "parquet words": lambda text: parquet(
        pa.table({"t": pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), ["other", text])})
    ),
    "parquet words in lists": lambda text: parquet(
        pa.table(
            {
                "t": pa.ListArray.from_arrays(
                    [0, 1], pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), ["x", text])
                )
            }
        )
    ),
    "parquet struct": lambda text: parquet(pa.table({"t": [{"a": {"b": text}}]})),
    "parquet bytes": lambda text: parquet(pa.table({"t": [text.encode()]})),
    "parquet dictionary": lambda text: parquet(pa.table({"t": pa.array([text, text]).dictionary_encode()})),
    "parquet metadata": lambda text: parquet(pa.table({"n": [1]}).replace_schema_metadata({"by": text})),
}


def test_a_long_value_of_a_database_is_found():
    """SQLite breaks it in two where a page ends, with a number between: its bytes alone would not tell."""
    for behind in range(4060, 4110, 3):
        text = "-" * 5000 + "ada.lovelace" + "-" * behind
        told = list(look(io.BytesIO(database(text)), "x.db", make_needles(["Ada.Lovelace"]), lambda *_: None))
        assert ContentMatch("table t", 1) in told
    damaged = bytearray(database("-" * 9000))
    damaged[100:200] = b"\xff" * 100
    told = list(look(io.BytesIO(damaged), "x.db", make_needles(["ada.lovelace"]), lambda *_: None))
    assert told == [UnsearchedPart("a database that cannot be read (DatabaseError)")]


def test_what_comes_before_damage_is_looked_into():
    """Of packed bytes whose end is damaged, or followed by others."""
    raw = gzip.compress(b"-" * 999 + b"ada.lovelace") + b"junk"
    told = list(look(io.BytesIO(raw), "x.gz", make_needles(["ada.lovelace"]), lambda *_: None))
    assert {type(one) for one in told} == {ContentMatch, UnsearchedPart}


def test_a_value_is_never_looked_for_without_some_of_its_letters():
    """Latin-1 has no Chinese; what it has of a name is another text, which stands everywhere."""
    assert list(look(io.BytesIO(b"the user rows"), "x", make_needles(["王伟 user"]), lambda *_: None)) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_found(form):
    """A value is found in whatever form; another one is not, and nothing stays unsearched."""
    for text, other in (
        (PERSON, "Grace Hopper"),
        ("Ångström-Müller", "Grace Hopper"),
        ("ada.lovelace", "grace.h"),
    ):
        raw = FORMS[form](text)
        told = list(look(io.BytesIO(raw), "x", make_needles([text]), lambda *_: None))
        assert any(isinstance(one, ContentMatch) for one in told), text
        assert list(look(io.BytesIO(raw), "x", make_needles([other]), lambda *_: None)) == []


SAME = [
    ("zoë ångström", "Zoë Ångström"),
    ("ZOË ÅNGSTRÖM", "zoë Ångström"),
    ("strasse 12", "Straße 12"),
    ("Łukasz Żółć", "łUKASZ żółĆ"),
    ("José Núñez", "jOSÉ nÚñEZ"),
    ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
    ("Иван Щукин", "иВАН щУКИН"),
    ("kelvin kay", "\u212aelvin \u212aay"),
    ("ada lovelace", "aDa LOVElace"),
]
WRITTEN = {
    "text": str.encode,
    "json": lambda text: json.dumps(text).encode(),
    "json in json": lambda text: json.dumps({"body": json.dumps({"by": text})}).encode(),
    "html": lambda text: text.encode("ascii", "xmlcharrefreplace"),
    "url": lambda text: quote(text).encode(),
}


@pytest.mark.parametrize(("value", "stored"), [*SAME, *((stored, value) for value, stored in SAME)])
def test_case_and_form_of_letters_make_no_other_value(value, stored):
    """A search, and an erasure, know a value by Unicode's case folding and whether composed or not, in all writing."""
    for within in ("", WORDS):
        needles = make_needles([value], within)
        for form in ("NFC", "NFD"):
            text = f"by {normalize(form, stored)}, today"
            assert [kind for kind, write in WRITTEN.items() if not needles.count(write(text))] == []
            column = pa.array([text, "by nobody", None])
            assert match_values(column, needles).to_pylist() == [True, False, False]
            assert needles.mask_name(text) != text
        assert not needles.count(f"by {stored[:-1]}".encode())


@pytest.mark.parametrize(("value", "stored"), [("zoë", "Zoë"), ("ÅSAÖ", "ÅsaÖ"), ("åsaö", "ÅsaÖ"), ("weiß", "WEISS")])
def test_short_values_are_known_likewise(value, stored):
    """As all that a column holds, and in JSON under its name; taken out there."""
    needles = make_needles([value], WORDS, ["user"])
    for form in ("NFC", "NFD"):
        for ascii_only in (True, False):
            text = json.dumps({"user": normalize(form, stored), "n": 1}, ensure_ascii=ascii_only)
            assert needles.count(text.encode()) == 1
            assert json.loads(needles.replace(text, "x"))["user"] == "x"
            inner = json.dumps({"body": text}, ensure_ascii=ascii_only)
            assert needles.count(inner.encode()) == 1
    assert needles.count(json.dumps({"user": f"{stored}s"}).encode()) == 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60), st.text("abAB12-@", min_size=4, max_size=9), st.integers(8, 40))
def test_pieces_hide_nothing(before, after, value, piece):
    """However bytes are cut into pieces, what lies across two of them is found, as the whole tells."""
    from ranklake.retention.erasure import contents as finding

    raw = before + value.encode() + after
    whole, finding.CHUNK_BYTES = finding.CHUNK_BYTES, piece
    try:
        told = list(look(io.BytesIO(raw), "x", make_needles([value]), lambda *_: None))
    finally:
        finding.CHUNK_BYTES = whole
    assert any(isinstance(one, ContentMatch) for one in told)


@pytest.mark.parametrize(
    "raw",
    [
        b"PAR1 and nothing",
        b"PK\x03\x04 and nothing",
        b"\x1f\x8b\x08 and nothing",
        b"PAR1",
        b"ARROW1 x",
        b"PARE x",
        b"x\x9c",
        b"Obj\x01",
        b"\x37\x7f\x06\x82",
    ],
)
def test_what_cannot_be_looked_into_is_told(raw):
    """A damaged file is no proof that nothing is in it; what its bytes show is found all the same."""
    told = list(look(io.BytesIO(raw + b" ada.lovelace"), "x", make_needles(["ada.lovelace"]), lambda *_: None))
    assert {type(one) for one in told} == {ContentMatch, UnsearchedPart}


@pytest.mark.parametrize("values", [[], [""], ["  "], ["ada"], ["ab\udcffcd"]])
def test_too_little_is_refused(values):
    """No value, or one that would be found everywhere."""
    with pytest.raises(NeedleError):
        make_needles(values)


def test_a_run_of_a_short_name_is_refused_in_its_own_words():
    """Its name stands in other data by chance; nobody is told to give an address."""
    with pytest.raises(NeedleError, match="the name of the run has fewer than 4 characters") as refusal:
        subject_under("lake", (), run="r1")
    assert "address" not in str(refusal.value)


def test_links_are_not_followed(tmp_path):
    """A link in a folder that others write to leads nowhere: it is told, and what it names is not read."""
    lake = Lake.create(str(tmp_path / "lake"))
    secret = tmp_path / "elsewhere.txt"
    secret.write_text("ada.lovelace")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "page.html").write_text("<p>ada.lovelace</p>")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "page").write_text("ada.lovelace")
    (folder / "linked").symlink_to(tmp_path / "more")
    (folder / "ada.lovelace").mkdir()
    done = search(lake, None, ["ada.lovelace"], [folder])
    assert {(one.where, one.files, one.count) for one in done.traces} == {("bytes", 1, 1), ("name of the file", 1, 1)}
    assert [(one.where, one.files) for one in done.unsearched] == [("cannot be opened (OSError)", 2)]


def test_no_value_is_in_the_answer(tmp_path):
    """Not in places, columns or names, in whatever spelling; a value that is a part of the mask ends, too."""
    value = "ada.lovelace@example.org"
    folder = tmp_path / value
    folder.mkdir()
    (folder / "a.parquet").write_bytes(parquet(pa.table({value: [value]})))
    (folder / f"İİİİ-{value.upper()}-x.txt").write_text("")
    (folder / base64.b64encode(value.encode()).decode()).write_text("")
    (folder / "the-value.txt").write_text("")
    done = json.dumps(search(Lake.create(str(tmp_path / "lake")), None, [value, "value"], [folder]).plain())
    assert value not in done.lower()
    assert base64.b64encode(value.encode())[:-2].decode() not in done
    assert "\\u0130-<value>-x.txt" in done


def test_the_command(tmp_path, capsys, monkeypatch):
    """It exits 1 where something is found, 0 where nothing is, and shows no value that was asked for."""
    site = Site(tmp_path)
    site.bring(step_rows(5, run="ada.lovelace"))
    where = ["--lake", site.lake.uri, "--spool", str(site.spool)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada.lovelace\n"))
    assert run(["erase", "find", "-", *where]) == 1
    out = capsys.readouterr().out
    assert "rows of steps" in out
    assert "ada.lovelace" not in out
    assert run(["erase", "find", "nobody.at.all", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_clean"] is True
    assert run(["erase", "find", "ada", *where]) == 2
    assert "at least 4" in capsys.readouterr().err
