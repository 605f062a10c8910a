"""Configuration: what is misspelt is refused, and the later source wins."""

import json
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranklake.cli import run
from ranklake.config import ConfigError, from_environment, load_config, merge_environment, read_config, variables
from ranklake.config.check import OTHER_VARIABLES
from ranklake.config.shown import shown_settings
from ranklake.file_formats import MAX_BYTES, toml_lines

ROOT = Path(__file__).resolve().parents[2]
SECRET = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Give a folder to work in, and no variable of ranklake's."""
    for name in list(os.environ):
        if name.startswith("RANKLAKE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_environment_wins_over_the_file(tmp_path, monkeypatch):
    """RANKLAKE_LAKE overrides the file's uri; other keys stay."""
    file = tmp_path / "ranklake.toml"
    file.write_text('[lake]\nuri = "s3://a"\n[dask]\nworkers = 3\n[storage]\naws_region = "eu"\n')
    monkeypatch.setenv("RANKLAKE_LAKE", "s3://b")
    config = load_config(file)
    assert (config.lake.uri, config.dask.workers, config.storage) == ("s3://b", 3, {"aws_region": "eu"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[lake]\nurl = "x"\n', "unknown key 'url' in [lake]; did you mean 'uri'?"),
        ("[dsak]\n", "unknown section [dsak]; did you mean 'dask'?"),
        ("spool = 3\n", "ranklake.toml:1: spool must be a section, not int; write [spool]"),
        ('[dask]\nworkers = "two"\n', "dask.workers must be a whole number, not text"),
        ('uri = "x"\n', "'uri' stands outside a section"),
        ("[lake\n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message):
    """A wrong key, section, type or syntax gives one line that names the file and mostly the line."""
    file = tmp_path / "ranklake.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_named_file_must_exist(monkeypatch):
    """RANKLAKE_CONFIG that names no file is refused; an absent default file is fine."""
    monkeypatch.setenv("RANKLAKE_CONFIG", "/nowhere/ranklake.toml")
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config()
    monkeypatch.delenv("RANKLAKE_CONFIG")
    monkeypatch.chdir(Path("/"))
    assert load_config().lake.uri == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'[lake]\n"a(b" = "x"\n', "unknown key 'a(b' in [lake]"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[dask]\nworkers = -1\n", "dask.workers must not be negative"),
    ],
)
def test_whatever_the_file_holds(tmp_path, text, said):
    """Odd keys, bytes that are no text and negative counts are configuration errors, never anything else."""
    path = tmp_path / "ranklake.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert said in str(error.value)


def test_the_section_of_capture_is_strict(tmp_path):
    """The commands refuse a [capture] that training would have run with and warned of."""
    file = tmp_path / "ranklake.toml"
    file.write_text("[capture]\nseal_every_s = 30\n")
    assert load_config(file).capture.seal_every_s == 30
    for text, said in (
        ("[capture]\nseal_evry_s = 30\n", "did you mean 'seal_every_s'?"),
        ("[capture]\nseal_every_s = 0\n", "capture.seal_every_s must be at least 0.05"),
        ('[capture]\nseal_every_s = "x"\n', "capture.seal_every_s must be a number, not text"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
            load_config(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", ""),
        (b"\xef\xbb\xbf[dask]\nworkers = 3\n", ""),
        ("[dask]\r\nworkers = 3\r\n# \u00e4\r\n".encode(), ""),
        (b"[dask]\nworkers = 1\nworkers = 2\n", ":3: not valid TOML"),
        (b"[dask]\nworkers = 1\n[dask]\n", ":3: not valid TOML"),
        (b"\xff\xfe[\x00d\x00", ": byte 0 is not UTF-8; save it as UTF-8"),
        (b'[dask]\naddress = "\xe4"\n', ": byte 18 is not UTF-8"),
        (b"[dask]\nworkers = 1\x00\n", "not valid TOML"),
        (b"x = " + b"[" * 100_000, "not valid TOML"),
        (b"x = " + b"9" * 5_000, "not valid TOML"),
        (b"#" * (MAX_BYTES + 1), ": has more than 1,048,576 bytes"),
        (b"[capture]\nseal_every_s = nan\n", ":2: capture.seal_every_s must be a finite number"),
        (b"[capture]\nseal_every_s = true\n", ":2: capture.seal_every_s must be a number, not true or false"),
        (b"[storage]\naws_region = [1]\n", ":2: storage.aws_region must be text, not list"),
        (b"[spool]\nprefixes = [1]\n", ":2: spool.prefixes[0] must be a mapping, not a number"),
        (b'[[spool]]\nuri = "x"\n', ":1: spool must be a section, not list"),
    ],
)
def test_bad_files_are_one_line(alone, text, said):
    """Whatever bytes the file has, it is read, or refused with one line that names the line; nothing else is raised."""
    (alone / "ranklake.toml").write_bytes(text)
    if not said:
        assert load_config().dask.workers == (3 if text else 0)
        return
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(alone, monkeypatch):
    """A folder, a FIFO and a file that gives an error are told as what they are, and none is waited for."""
    (alone / "ranklake.toml").mkdir()
    os.mkfifo(alone / "fifo")
    with pytest.raises(ConfigError, match="is a folder, not a configuration file"):
        load_config()
    for name, said in (("fifo", "is no regular file"), ("/proc/self/mem", "cannot be read")):
        monkeypatch.setenv("RANKLAKE_CONFIG", name)
        with pytest.raises(ConfigError, match=said):
            load_config()


def test_a_remedy_speaks_of_how_the_file_was_named(alone, monkeypatch, capsys):
    """A file that is missing is told as it was named, by a variable or a command; a link to nothing is told, too."""
    assert run(["config", "check", "third.toml"]) == 1
    assert "third.toml: no such configuration file; write the file, or name another\n" in capsys.readouterr().out
    monkeypatch.setenv("RANKLAKE_CONFIG", "fourth.toml")
    assert run(["config", "check"]) == 1
    assert "unset RANKLAKE_CONFIG" in capsys.readouterr().out
    monkeypatch.setenv("RANKLAKE_CONFIG", "x" * 5_000)
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config()
    monkeypatch.delenv("RANKLAKE_CONFIG")
    (alone / "ranklake.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        load_config()


def test_a_file_that_is_written_meanwhile_is_read_whole(alone):
    """While an editor writes in place, over and over, a reader gets one state of the file, or an error: no mixture."""
    file = alone / "ranklake.toml"
    states = [f'[lake]\nuri = "{name * 2_000}"\n[cost]\nprices = "{name * 2_000}"\n' for name in "ab"]
    file.write_text(states[0])
    done = threading.Event()

    def edit():
        turn = 0
        while not done.is_set():
            turn += 1
            with file.open("r+") as out:
                out.write(states[turn % 2])

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        for _ in range(100):
            read = read_config()
            if read.problems:
                assert "is being written" in str(read.problems[0])
            else:
                assert read.config.lake.uri == read.config.cost.prices
    finally:
        done.set()
        editor.join()


def test_each_key_has_its_line():
    """Lines are told apart by section, also of dotted, quoted and listed keys, and behind text of several lines."""
    text = """lake.uri = "x"
[spool]
uri = '''
[dask]
uri = 1'''
  "local" = "y"
[[spool.prefixes]]
prefix = "a"
[[spool.prefixes]]
prefix = "b"
[ "cost" ]
prices = [
  "z"]
"""
    assert toml_lines(text) == {
        ("lake", "uri"): 1,
        ("spool",): 2,
        ("spool", "uri"): 3,
        ("spool", "local"): 6,
        ("spool", "prefixes"): 7,
        ("spool", "prefixes", 0): 7,
        ("spool", "prefixes", 0, "prefix"): 8,
        ("spool", "prefixes", 1): 9,
        ("spool", "prefixes", 1, "prefix"): 10,
        ("cost",): 11,
        ("cost", "prices"): 12,
    }


FILE = f"""[lake]
uri = "s3://one:{SECRET}@bucket/lake"
[spool]
uri = "s3://bucket/spool"
local = "/data/spool"
[[spool.prefixes]]
prefix = "a"
keys = "command:/opt/helper --token {SECRET}"
[plans]
key = "{SECRET}"
[capture]
seal_every_s = 30
[storage]
aws_secret_access_key = "{SECRET}"
aws_access_key_id = "env:OUR_KEY"
aws_region = "eu"
"""


def shown(capsys, *options):
    """Return what ``config show --json`` tells, by key."""
    assert run(["config", "show", "--json", *options]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    return {one["key"]: (one["value"], one["origin"]) for one in json.loads(out)}


def test_each_value_is_shown_with_its_origin(alone, monkeypatch, capsys):
    """A flag wins over a variable, that over the file, that over the default; what is empty says nothing."""
    file = alone / "ranklake.toml"
    file.write_text(FILE)
    monkeypatch.setenv("RANKLAKE_SPOOL", "s3://bucket/other")
    monkeypatch.setenv("RANKLAKE_LAKE", "")
    monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", "/mine")
    monkeypatch.setenv("RANKLAKE_CAPTURE_LOG_BURST", "7")
    monkeypatch.setenv("RANKLAKE_CAPTURE_HEARTBEAT_EVERY_S", "0")
    found = shown(capsys, "--dask", "tls://host:1", "--spool", "")
    assert found["dask.address"] == ("tls://host:1", "flag")
    assert found["spool.uri"] == ("s3://bucket/other", "environment RANKLAKE_SPOOL")
    assert found["spool.local"] == ("/mine", "environment RANKLAKE_LOCAL_SPOOL")
    assert found["lake.uri"] == ("s3://[redacted]@bucket/lake", f"file {file}:2")
    assert found["capture.seal_every_s"] == (30, f"file {file}:12")
    assert found["capture.log_burst"] == (7.0, "environment RANKLAKE_CAPTURE_LOG_BURST")
    assert found["capture.heartbeat_every_s"] == (0.0, "environment RANKLAKE_CAPTURE_HEARTBEAT_EVERY_S")
    assert found["capture.sync_every_s"] == (1.0, "default")
    assert found["storage.aws_region"] == ("eu", f"file {file}:16")
    assert shown(capsys, "--spool", "x")["spool.uri"] == ("x", "flag")


def test_secrets_are_hidden_and_references_are_shown(alone, capsys):
    """What stands in clear is hidden, also where a reference should stand; of a helper the arguments are left out."""
    (alone / "ranklake.toml").write_text(FILE)
    found = shown(capsys)
    assert found["storage.aws_secret_access_key"][0] == "[redacted]"
    assert found["storage.aws_access_key_id"][0] == "env:OUR_KEY"
    assert found["plans.key"][0] == "[redacted]"
    assert found["spool.prefixes"][0][0]["keys"] == "command:/opt/helper"
    assert run(["config", "show", "--all"]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    assert "capture.sync_every_s" in out


def test_all_that_is_wrong_is_told_at_once(alone, monkeypatch, capsys):
    """Misspelt keys, variables and options, files that are not there, references that give nothing, contradictions."""
    (alone / "ranklake.toml").write_text(
        f"""[lake]
url = "s3://b/lake"
uri = "s3://one:{SECRET}@bucket"
[spool]
uri = "s3://one:{SECRET}@bucket/spool"
[dsak]
[plans]
require_signed_plans = true
[dask]
workers = 2
address = "tcp://x:1"
tls_client_cert = "nowhere.pem"
[contracts]
overlay = "nowhere"
[capture]
encryption_key = "command:/bin/false {SECRET}"
signing_key = "{SECRET}"
sampling = 3
[storage]
aws_acces_key_id = "x"
aws_secret_access_key = "env:NOT_SET_ANYWHERE"
aws_conditional_put = "disabled"
[detectors]
off = ["los_spike"]
thresholds = [{{detector = "loss_spike", name = "min_efect", value = 3}}]
"""
    )
    monkeypatch.setenv("RANKLAKE_LKAE", "x")
    monkeypatch.setenv("RANKLAKE_CAPTURE_SEAL_EVRY_S", "3")
    monkeypatch.setenv("RANKLAKE_CAPTURE_LOG_BURST", "many")
    monkeypatch.setenv("RANKLAKE_POOL", "spot")
    assert run(["config", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert SECRET not in "\n".join(lines)
    for where, said in (
        (":2", "unknown key 'url' in [lake]; did you mean 'uri'?"),
        (":3", "lake.uri: a credential stands in the URI"),
        (":5", "the lake and the spool lie in one another"),
        (":6", "unknown section [dsak]; did you mean 'dask'?"),
        (":8", "every plan would be refused"),
        (":10", "workers of a local cluster"),
        (":11", "an address that is not reached by TLS; write tls:// there"),
        (":12", "there is no PEM file nowhere.pem"),
        (":12", "a client's certificate and its key belong together"),
        (":14", "there is no folder nowhere"),
        (":16", "/bin/false: the key command ended with status 1"),
        (":17", "no key may stand there; write file:/path"),
        (":18", "capture.sampling must be text, not a number"),
        (":20", "did you mean 'aws_access_key_id'?"),
        (":21", "$NOT_SET_ANYWHERE: the variable that should hold"),
        (":3", "aws_conditional_put = disabled is not supported"),
        (":24", "detectors.off: unknown detector 'los_spike'; did you mean 'loss_spike'?"),
        (":25", "detectors.thresholds: unknown threshold loss_spike.min_efect; did you mean 'min_effect'?"),
        ("$RANKLAKE_LKAE", "did you mean RANKLAKE_LAKE?"),
        ("$RANKLAKE_CAPTURE_SEAL_EVRY_S", "did you mean RANKLAKE_CAPTURE_SEAL_EVERY_S?"),
        ("$RANKLAKE_CAPTURE_LOG_BURST", "is no value for capture.log_burst"),
    ):
        assert [one for one in lines if f"{where}: " in one and said in one], (where, said, lines)
    assert not [one for one in lines if "POOL" in one]
    assert run(["config", "check", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == len(lines)
    assert run(["status"]) == 2
    err = capsys.readouterr().err
    assert ":2: unknown key 'url'" in err
    assert ":6: unknown section [dsak]" in err, "a command tells all that is wrong with the file"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[lake]\nuri = "s3:/bucket/lake"\n',
            ":2: lake.uri: the bucket or container is missing; write it as s3://bucket",
        ),
        (
            '[lake]\nuri = "s3:///lake"\n[spool]\nuri = "S3://b/x"\n',
            ":4: spool.uri: no store is reached by S3:; did you",
        ),
        (
            '[lake]\nuri = "~/lake"\n',
            ":2: lake.uri: ~ is not expanded here, as a shell would; write the whole path",
        ),
        (
            '[backup]\nto = ["/b", "~/bb"]\n',
            ":2: backup.to: ~ is not expanded here, as a shell would; write the whole",
        ),
        ('[lake]\nuri = "s3://bucket/lake "\n', ":2: lake.uri: begins or ends with a blank"),
        ('[lake]\nuri = "/x/a"\n[spool]\nuri = "/x/b/../a/s"\n', "the lake and the spool lie in one another"),
        ('[lake]\nuri = "file:///x/a"\n[spool]\nuri = "/x/a/s"\n', "the lake and the spool lie in one another"),
        ('[lake]\nuri = "s3://b/x"\n[report]\nout = "s3://b/x/pages"\n', ":4: the lake and the report lie in one"),
        ('[spool]\nuri = "s3://b/x/s"\n[report]\nout = "s3://b/x"\n', ":4: the spool and the report lie in one"),
        ('[lake]\nuri = "s3://my bucket/lake"\n', ":2: lake.uri: the name of the bucket"),
        ('[lake]\nuri = "/x/a"\n[audit]\nwitness = "file:/x/a/w"\n', ":4: audit.witness: lies in the lake"),
        ('[report]\nout = "s3://b"\nurl = "reports"\n', ":3: report.url begins with https:// or http://"),
        ('[report]\nout = "s4://b"\n', ":2: report.out: no store is reached by s4:"),
        ('[spool]\nlocal = "s3://b/x"\n', ":2: spool.local: ranks record into a folder"),
        ('[dask]\naddress = "http://h:8786"\n', ":2: dask.address: no scheduler is reached by http:; known: tcp"),
        ('[dask]\nmemory_limit = "lots"\n', ":2: dask.memory_limit is no amount of memory; write it as 2GiB"),
        ("[ingest]\nsegment_bytes = 0\n", ":2: ingest.segment_bytes: no segment is within 0; 536870912 is usual"),
        ('[capture]\npreemption_signals = "SIGFOO"\n', ":2: capture.preemption_signals: SIGFOO is not a signal"),
        ('[capture]\nsampling = "eval/*=10%"\n', ":2: capture.sampling: 'eval/*=10%' is not a rule of the form"),
        ("[capture]\nlog_verbose = 5\n", ":2: capture.log_verbose: 5.0 is not from 0 to 1"),
        (
            f'[storage]\nsecret = "{SECRET}"\n',
            ":2: storage.secret is not what both clients of a store take; did you mean",
        ),
        (f'[storage]\nAWS_SECRET_ACCESS_KEY = "{SECRET}"\n', "did you mean 'aws_secret_access_key'?"),
        ('[storage]\naws_secret_access_key = "evn:KEY"\n', ":2: storage.aws_secret_access_key looks like a reference"),
        ('[storage]\naws_endpoint_url = "minio:9000"\n', ":2: storage.aws_endpoint_url is not an address; write it as"),
    ],
)
def test_what_no_store_or_cluster_would_take_is_told(alone, capsys, text, said):
    """What is of the right type and cannot work is told before a run fails by it, with the line and the mend."""
    (alone / "ranklake.toml").write_text(text)
    assert run(["config", "check"]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert SECRET not in out
    assert out.count("\n") <= 2


@pytest.mark.parametrize(
    "text",
    [
        '[lake]\nuri = "abfss://c@account.dfs.core.windows.net/lake"\n[spool]\nuri = "s3a://b"\n',
        '[lake]\nuri = "s3://b/x y/lake"\n[report]\nout = "s3://b/x y/lake2"\n',
        '[lake]\nuri = "my lake"\n[spool]\nuri = "my lake 2"\n[audit]\nwitness = "file:/w"\n',
        '[dask]\naddress = "host:8786"\nmemory_limit = "0.25"\n',
        '[dask]\naddress = "tls://[::1]:8786"\nmemory_limit = "512 MB"\n',
        '[storage]\naws_endpoint_url = "http://m:9000"\naws_secret_access_key = "env:PATH"\naws_allow_http = true\n',
        '[storage]\nazure_storage_sas_token = "env:PATH"\n',
    ],
)
def test_what_works_is_not_told(alone, capsys, text):
    """Places and options that clients take are no problem, unusual as they may be."""
    (alone / "ranklake.toml").write_text(text)
    assert run(["config", "check"]) == 0, capsys.readouterr().out


def test_a_sound_file_has_no_problem(alone, capsys, monkeypatch):
    """A file by itself is checked without the environment; one that is not there is a problem, too."""
    monkeypatch.setenv("RANKLAKE_CAPTURE_LOG_BURST", "many")
    (alone / "other.toml").write_text('[lake]\nuri = "lake"\n[spool]\nuri = "spool"\n')
    assert run(["config", "check", "other.toml"]) == 0
    assert "other.toml: nothing is wrong" in capsys.readouterr().out
    assert run(["config", "check", "third.toml"]) == 1
    assert "no such configuration file" in capsys.readouterr().out


def test_the_variables_that_are_no_keys_are_known():
    """Whoever adds a variable to the code adds it to a key, or to the list of others: a check tells of all the rest."""
    found = set()
    for folder in ("src/ranklake", "capture", "flows", "lake", "quality", "retention"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"(?<!_)RANKLAKE_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")))
    assert found - set(variables().values()) - OTHER_VARIABLES == {"RANKLAKE_CAPTURE"} - set(variables().values())
    assert from_environment({"RANKLAKE_CAPTURE_SHARDS": "sometimes", "RANKLAKE_LAKE": ""}) == {}


HEADERS = (
    "[lake]",
    "[spool]",
    "[[spool.prefixes]]",
    "[capture]",
    "[dask]",
    "[storage]",
    "[ingest]",
    "[x.y]",
    "[[lake]]",
)
KEYS = (
    "uri",
    "prefixes",
    "prefix",
    "runs",
    "keys",
    "workers",
    "sampling",
    "seal_every_s",
    "spool.uri",
    '"a b"',
    "stderr",
)
VALUES = ("nan", "true", "-1", "1e400", "9" * 400, "'a'", '"env:X"', "{prefix='a/'}", "[{prefix='a'}, 1]", "1979-05-27")
VALUES += ("[]", "[[1]]", '"""a\n[lake]"""', "{require_signed = true}", "[{require_signed = true}]", "{}", "", "0x7f")
LINES = st.one_of(
    st.sampled_from(HEADERS),
    st.builds("{} = {}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.text(max_size=5),
)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=60), st.lists(LINES, max_size=8).map(lambda lines: "\n".join(lines).encode())))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_break_the_reader(tmp_path, raw):
    """Of whatever bytes, each problem is one line with the file's name, and the sound rest makes a configuration."""
    file = tmp_path / "ranklake.toml"
    file.write_bytes(raw)
    read = read_config(file)
    for one in read.problems:
        assert str(one).startswith(str(file))
        assert "\n" not in str(one)
    config = merge_environment(read, {})
    assert len(list(shown_settings(config, read, {}, {}))) >= 50


@pytest.mark.parametrize("name", ["aws_secret_access_key", "aws_session_token", "azure_storage_account_key"])
def test_a_secret_in_clear_is_told_and_not_shown(alone, capsys, name):
    """A secret among the storage options is a problem of its line, whose text has no part of it."""
    (alone / "ranklake.toml").write_text(f'[storage]\naws_region = "r"\n{name} = "a-plain-value"\n')
    assert run(["config", "check"]) == 1
    out = capsys.readouterr().out
    assert f"ranklake.toml:3: storage.{name}: a secret stands there in clear; write file:/path" in out
    assert "a-plain-value" not in out
