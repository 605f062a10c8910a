"""Configuration: what is misspelt is refused, and the later source wins."""

from pathlib import Path

import pytest

from ranklake.config import ConfigError, load_config


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
        ('[dask]\nworkers = "two"\n', "dask.workers must be int, not str"),
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
        (b"\xff\xfe", "not valid TOML"),
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
        ('[capture]\nseal_every_s = "x"\n', "capture.seal_every_s must be float, not str"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
            load_config(file)
