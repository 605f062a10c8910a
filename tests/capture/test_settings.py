"""Settings: three sources, the later wins, and nothing that is wrong with them reaches training."""

import pytest

from ranklake.capture.common.settings import CaptureSettings, read_settings


def read(given, environment):
    told = []
    return read_settings(given, environment, lambda _, text: told.append(text)), told


def test_the_later_source_wins(tmp_path):
    """A file gives way to the environment, and that to what start is given; None there is not given."""
    file = tmp_path / "ranklake.toml"
    file.write_text("[capture]\nseal_every_s = 7\nsync_every_s = 3.0\n[lake]\nuri = 'x'\n")
    environment = {"RANKLAKE_CONFIG": str(file), "RANKLAKE_CAPTURE_SYNC_EVERY_S": "5"}
    assert read({}, environment)[0] == CaptureSettings(seal_every_s=7.0, sync_every_s=5.0)
    settings, told = read({"seal_every_s": 9, "sync_every_s": None}, environment)
    assert (settings.seal_every_s, settings.sync_every_s, told) == (9.0, 5.0, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tags": ["a"]},
            "unknown setting 'tags' in start() (run.tags.add(…) tags it",
        ),
        ({"seal_evry_s": 3}, "unknown setting 'seal_evry_s' in start() (did you mean 'seal_every_s'?); it is left out"),
        ({"seal_every_s": "often"}, "seal_every_s in start() is not usable"),
        ({"seal_every_s": -1}, "seal_every_s must be at least 0.05"),
        ({"seal_every_s": float("nan")}, "seal_every_s must be at least 0.05"),
        ({"seal_every_s": object()}, "seal_every_s in start() is not usable"),
    ],
)
def test_a_wrong_setting_is_told_and_left_out(given, said):
    """Misspelt, unusable or absurd: one warning that names it, and the default."""
    settings, told = read(given, {"RANKLAKE_CONFIG": "/nowhere/ranklake.toml"})
    assert settings == CaptureSettings()
    assert len(told) == 1
    assert said in told[0]


def test_a_broken_file_is_told(tmp_path):
    """A file that is no TOML costs its settings, nothing else."""
    file = tmp_path / "ranklake.toml"
    file.write_bytes(b"\xff[capture")
    settings, told = read({"sync_every_s": 2}, {"RANKLAKE_CONFIG": str(file)})
    assert settings.sync_every_s == 2.0
    assert "cannot be read" in told[0]
