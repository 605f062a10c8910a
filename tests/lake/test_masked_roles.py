"""Masks in a role's views: whatever a role asks, it is answered from masked rows, and no original is in any byte."""

import random
import re

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from mask_oracle import bag, mask, random_query
from random_roles import COLUMNS, KEYS, NEW, OLD, facts, keyring, planted_lake, some_role, views_of
from rollup_inputs import NOON, append

from ranklake.commands.sql import sql
from ranklake.insight.ask import ask
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.sql import QueryError, query
from ranklake.lake.rollups.life.series import series
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.masking.masks import Mask, Pseudonyms
from ranklake.segments.keys import Keyring

CONTRACTS = load_contracts()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_answers_are_those_of_filter_then_mask_then_query(tmp_path, seed):
    """Random roles ask random queries of random tables, and get what plain Python does with the rows."""
    chance = random.Random(seed)
    lake = Lake.create(str(tmp_path / "lake")).configured(masking=MaskingSection(keyring(tmp_path, NEW, OLD)))
    stored = {table: [facts(chance, table) for _ in range(chance.randrange(1, 60))] for table in COLUMNS}
    for table, given in stored.items():
        for half in (given[::2], given[1::2]):
            if half:
                append(lake, table, half)
    asked = 0
    for _ in range(12):
        role, seen, is_seen = some_role(chance)
        views = views_of(stored, seen, is_seen)
        planted = {
            (table, name): [row.get(name) for row in stored[table]] for table in views for name in views[table][0]
        }
        for _ in range(6 if views else 0):
            one = random_query(chance, views, planted)
            found = query(lake, one.sql, role=role)
            rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
            assert bag(rows) == bag(one.answer(views)), (one.sql, role)
            asked += 1
    assert asked > 30


HASHED = frozenset({"pseudonymous"})
OPERATIONAL = frozenset({"operational"})
SCIENTIST = Role("scientist", OPERATIONAL, frozenset({"runs", "jobs"}), masked=HASHED)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Give a lake of 2,500 jobs and runs each with values that exist nowhere else, their texts, and its keyring."""
    return planted_lake(tmp_path_factory.mktemp("planted"))


PERSONAL = """
roles:
  reader:
    classes: [operational]
    masked: [pseudonymous, personal]
    masks: {jobs.gpu_count: "bucket:4"}
    tables: [jobs, runs]
"""
ASKED = [
    "SELECT * FROM jobs",
    "SELECT * FROM runs",
    'SELECT j."user", r.host, j.comment, j.work_dir FROM jobs j JOIN runs r ON j."user" = r."user"',
    "SELECT array_agg(\"user\") AS u, named_struct('c', max(comment)) AS s, map(['k'], [min(\"user\")]) AS m FROM jobs",
    'SELECT "user", upper("user"), reverse("user"), encode("user"::bytea, \'hex\') FROM jobs ORDER BY "user" DESC',
    "SELECT string_agg(\"user\", '/') FROM jobs GROUP BY gpu_count",
    'SELECT CAST("user" AS INT) FROM jobs',
    "SELECT arrow_cast(\"user\", 'Int64') FROM runs",
    "SELECT 1 / (length(comment) - length(comment)) FROM jobs",
    "EXPLAIN SELECT * FROM jobs WHERE \"user\" = 'x'",
    "EXPLAIN ANALYZE SELECT count(*) FROM jobs WHERE \"user\" > 'a'",
    "SELECT * FROM information_schema.columns",
    'SELECT min("user"), max("user"), approx_distinct("user"), count(DISTINCT "user") FROM runs',
]


@pytest.mark.slow
def test_no_planted_original_is_in_any_byte(planted, tmp_path, monkeypatch):
    """Of 10,000 values none is in what a role is printed or given as CSV, JSON, Parquet, plan or error."""
    lake, texts, keys = planted
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(PERSONAL)
    (tmp_path / "ranklake.toml").write_text(f'[sql]\nroles = "roles.yaml"\n[masking]\nkey = "{keys}"\n')
    seen, answered = bytearray(), 0
    for text in ASKED:
        for kind in ("csv", "json", "parquet"):
            out = tmp_path / f"out.{kind}"
            out.unlink(missing_ok=True)
            done = CliRunner().invoke(
                sql, [text, "--role", "reader", "--lake", lake.uri, "--output", str(out), "--verify"]
            )
            answered += done.exit_code == 0
            seen += done.output.encode() + str(done.exception).encode()
            seen += out.read_bytes() if out.exists() else b""
            if kind == "parquet" and out.exists():  # pages are compressed: look at the values, too
                rows = pq.read_table(out)
                seen += str(rows.to_pydict()).encode() + str(pq.read_metadata(out).to_dict()).encode()
    assert answered > 20
    found = set(re.findall(rb"[a-z]{14}", bytes(seen)))
    assert not found & {text.encode() for text in texts}
    assert not [text for text in texts[:200] if text.encode() in bytes(seen)]


def test_joins_over_hashed_columns_match(planted):
    """People who run jobs are found in runs by their pseudonyms, which are made with the keys and not otherwise."""
    lake, texts, _ = planted
    joined = 'SELECT count(*) AS n, count(DISTINCT r."user") AS m FROM jobs j JOIN runs r ON j."user" = r."user"'
    assert query(lake, joined, role=SCIENTIST).to_pylist() == [{"n": 2500, "m": 2500}]
    some = query(lake, "SELECT \"user\" AS u FROM runs WHERE job = 'j0'", role=SCIENTIST)["u"].to_pylist()
    assert some == [mask(texts[0], "hash", KEYS)]


def test_pseudonyms_go_on_when_a_key_is_rotated():
    """What was stored under the old key becomes what the text itself becomes; a text that only looks so is hashed."""
    before, after = Pseudonyms(Keyring((OLD,))), Pseudonyms(Keyring((NEW, OLD)))
    assert after(before("lovelace")) == after("lovelace") != before("lovelace")
    assert after(after("lovelace")) == after("lovelace")
    forged = before("lovelace")[:-1] + ("0" if before("lovelace")[-1] != "0" else "1")
    assert not after.is_genuine(forged)
    assert after(forged) != forged
    assert "lovelace" not in repr(after)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "there is no key"),
        ("env:RANKLAKE_NO_SUCH_KEY", "is not set"),
        ("file:/no/such/keyring", "cannot be read"),
        ("whatever", "not valid"),
    ],
)
def test_a_lost_key_is_one_line(planted, key, message):
    """Without the key nothing is shown: neither names nor other pseudonyms; what needs no key is answered."""
    lake = planted[0].configured(masking=MaskingSection(key))
    with pytest.raises(RoleError, match=message) as caught:
        query(lake, 'SELECT "user" FROM runs', role=SCIENTIST)
    assert str(caught.value).startswith("[masking] key")
    assert "\n" not in str(caught.value)
    unhashed = Role("r", OPERATIONAL, frozenset({"runs"}))
    assert query(lake, "SELECT count(*) AS n FROM runs", role=unhashed)["n"].to_pylist() == [2500]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ("{runs.usr: hash}", "did you mean 'user'"),
        ("{rums.user: hash}", "did you mean 'runs'"),
        ("{pseudonymus: hash}", "did you mean 'pseudonymous'"),
        ("{runs.user: hsah}", "did you mean 'hash'"),
        ("{runs.user: 'hash:2'}", "takes nothing behind the colon"),
        ("{runs.user: 'keep:'}", "write keep:2"),
        ("{runs.user: 'keep:0+0'}", "write keep:2"),
        ("{runs.world_size: 'bucket:0'}", "another width above 0"),
        ("{runs.world_size: 'bucket:0.5'}", "does not fit a column of type int32"),
        ("{runs.world_size: hash}", "hash is for string"),
        ("{runs.user: 'bucket:10'}", "does not fit a column of type string"),
        ("{runs.date: 'truncate:hour'}", "does not fit a column of type date"),
        ("{runs.submitted_ts: 'truncate:decade'}", "one of year"),
        ("{runs.run: nullify}", "tells rows of runs apart"),
        ("{steps.loss: nullify}", "does not see steps"),
        ("{operational: nullify}", "both as they are and masked"),
        ("[hash]", "masks must be a mapping"),
    ],
)
def test_a_mask_that_cannot_be_is_one_line(tmp_path, masks, message):
    """Any fault in masks refuses the file, with what to write in place of it."""
    path = tmp_path / "roles.yaml"
    path.write_text(f"roles: {{a: {{classes: [operational], tables: [runs], masks: {masks}}}}}")
    with pytest.raises(RoleError, match=message) as caught:
        load_role(path, "a", CONTRACTS)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_seen_cannot_be_masked(tmp_path):
    """Whoever writes both has not said which."""
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {a: {classes: [personal], masked: [personal], tables: [runs]}}")
    with pytest.raises(RoleError, match="take personal out of classes"):
        load_role(path, "a", CONTRACTS)


def test_a_masked_class_hides_a_grain_column_that_it_would_mix_up():
    """A whole class may be masked where one of its columns is in a grain: hashed it is seen, otherwise it is hidden."""
    table = contract("cluster_hourly")
    shown = {
        said: next(
            one.visibility
            for one in Role("r", OPERATIONAL, frozenset(), class_masks={"pseudonymous": Mask.parse(said, "")}).sights(
                table
            )
            if one.column.name == "scope_name"
        )
        for said in ("hash", "nullify")
    }
    assert shown == {"hash": "hash", "nullify": "hidden"}


def test_a_series_is_of_masked_values(planted):
    """The view ``series`` stands on what the role sees, in queries and by ``ranklake series``."""
    lake = planted[0]
    if not query(lake, "SELECT 1 AS n FROM scalars").num_rows:
        append(lake, "scalars", [{"ts": NOON, "run": "r1", "metric": "train/loss", "value": 1234.5, "step": 1}])
    value = contract("scalars").column("value").id
    role = Role(
        "r", OPERATIONAL, frozenset({"scalars", "steps"}), column_masks={("scalars", value): Mask("bucket", "1000")}
    )
    asked = "SELECT value FROM series WHERE metric = 'train/loss' AND value > 1000"
    assert ask(lake, asked, role=role).rows.num_rows == 0
    assert ask(lake, asked.replace(">", ">="), role=role).rows["value"].to_pylist() == [1000.0]
    assert series(lake, "train/loss", role=role).rows["value"].to_pylist() == [1000.0]


def test_a_query_cannot_hash_guesses(planted):
    """The function that masks has no name in the session: nobody can ask what a name would become."""
    for call in ("masked('ada')", '"masked"("user")', "mask('ada')", "hash('ada')"):
        with pytest.raises(QueryError):
            query(planted[0], f'SELECT {call}, "user" FROM runs LIMIT 1', role=SCIENTIST)
    listed = query(planted[0], "SELECT * FROM information_schema.routines", role=SCIENTIST)
    assert "masked" not in str(listed.to_pylist())
