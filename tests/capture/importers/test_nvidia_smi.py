# ruff: noqa: E501 - lines as the tools print them
"""What nvidia-smi and dcgmi print: units, what is not available, times, devices."""

import csv
import random
import re

import pytest
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

QUERY = """timestamp, index, name, pstate, utilization.gpu [%], memory.used [MiB], power.draw [W], clocks.current.sm [MHz], temperature.gpu, temperature.memory, clocks_throttle_reasons.active, ecc.mode.current, compute_mode
2026/03/06 16:45:26.250, 0, NVIDIA GH200 120GB, P0,  57 %,    2 MiB,  84.33 W, 1590 MHz, 31, [N/A], 0x0000000000000004, Enabled, Default
2026/03/06 16:45:27.250, 0, NVIDIA GH200 120GB, P8,  0 %, 2589 MiB, 128.78 W, 345 MHz, 33, [Not Supported], 0x0000000000000000, Enabled, Default
"""
DMON = """$nvidia-smi dmon -i 0 -s pucet -d 1 -o TD
#Date       Time        gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk sbecc    fb rxpci txpci
#YYYYMMDD   HH:MM:SS    Idx     W     C     C     %     %     %     %   MHz   MHz  errs    MB  MB/s  MB/s
 20210102   19:12:31      0    37    19     -     7     0     0     0  4006   582     -   239     5    10

 20210102   19:12:33      1    39    19     -     0     0     0     0  4006  1582     -     7     0     1
#Date       Time        gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk sbecc    fb rxpci txpci
 20210102   19:12:35      0    39    19     -     0     0     0     0  4006  1582     0    74     0     0
"""
DCGMI = """2026-01-05 10:00:00 #Entity   GPUTL   POWER   TOTEC      GRACT   DRAMA
2026-01-05 10:00:00 ID                W       mJ
2026-01-05 10:00:01 GPU 0     75      59.2    2.07e+11   0.429   N/A
2026-01-05 10:00:01 GPU-I 0   N/A     N/A     N/A        0.750   0.800
2026-01-05 10:00:02 GPU 0     61      60      2.071e+11  0.367   0.4
"""


def test_units_are_those_of_the_columns(lake, spool, tmp_path):
    """Percent become ratios, MiB bytes, MHz Hz; what is not available is NULL, with the tool's reason."""
    (tmp_path / "gpu.csv").write_text(QUERY)
    done = imported(lake, spool, "nvidia_smi", tmp_path / "gpu.csv")
    assert (done.rows, done.refused) == ({"gpu_samples": 2}, {})
    assert any("compute_mode" in note for note in done.notes)
    assert any("UTC" in note for note in done.notes)
    first, second = ask(lake, "SELECT * FROM gpu_samples ORDER BY ts")
    wanted = {
        "source": "nvml", "device_index": 0, "device_name": "NVIDIA GH200 120GB", "performance_state": 0,
        "memory_used_bytes": 2 << 20, "clock_event_reasons": "sw_power_cap", "ecc_enabled": True, "interval_ns": None,
        "unavailable": '{"memory_temperature_celsius":"not available"}',
    }  # fmt: skip
    assert {name: first[name] for name in wanted} == wanted
    assert first["gpu_utilization_ratio"] == pytest.approx(0.57)
    assert first["sm_clock_hz"] == pytest.approx(1.59e9)
    assert str(first["ts"]).startswith("2026-03-06 16:45:26.25")
    assert (second["interval_ns"], second["clock_event_reasons"]) == (10**9, "")
    assert second["unavailable"] == '{"memory_temperature_celsius":"not supported"}'


def test_nounits_gives_the_same_rows(lake, spool, tmp_path):
    """Without units in values, those of the header count; without them there, nvidia-smi's own."""
    bare = re.sub(r"(?<=\d) (?:%|MiB|W|MHz)(?=,)", "", QUERY)
    headless = re.sub(r" \[(?:%|MiB|W|MHz)\]", "", bare, count=4)
    assert "[W]" not in headless
    for name, text in (("units", QUERY), ("nounits", bare), ("plain", headless)):
        (tmp_path / f"{name}.csv").write_text(text)
        imported(lake, spool, "nvidia_smi", tmp_path / f"{name}.csv")
    rows = ask(lake, "SELECT * FROM gpu_samples ORDER BY run, ts")
    own = {"run", "incarnation", "segment", "slot"}
    by_run = {}
    for row in rows:
        by_run.setdefault(row["run"], []).append({name: value for name, value in row.items() if name not in own})
    assert by_run["units"] == by_run["nounits"] == by_run["plain"]


def test_dmon(lake, spool, tmp_path):
    """A row a line; the command, repeated headers and empty lines are none."""
    (tmp_path / "dmon.txt").write_text(DMON)
    done = imported(lake, spool, "nvidia_smi", tmp_path / "dmon.txt", zone="Europe/Berlin")
    assert (done.rows, done.refused, done.notes) == ({"gpu_samples": 3}, {}, [])
    rows = ask(lake, "SELECT * FROM gpu_samples ORDER BY ts")
    assert str(rows[0]["ts"]).startswith("2021-01-02 18:12:31")
    assert [row["interval_ns"] for row in rows] == [None, None, 4 * 10**9]
    assert [row["power_watts"] for row in rows] == [37, 39, 39]
    assert [row["memory_used_bytes"] for row in rows] == [239 << 20, 7 << 20, 74 << 20]
    assert [row["pcie_receive_bytes_per_s"] for row in rows] == [5e6, 0, 0]
    assert [row["ecc_corrected_aggregate_count"] for row in rows] == [None, None, 0]


def test_dcgmi(lake, spool, tmp_path):
    """Its lines have the time that a collector put in front; a MIG instance's device is not known."""
    (tmp_path / "dcgmi.txt").write_text(DCGMI)
    done = imported(lake, spool, "nvidia_smi", tmp_path / "dcgmi.txt")
    assert (done.rows["gpu_samples"], sum(done.refused.values())) == (2, 1)
    rows = ask(lake, "SELECT * FROM gpu_samples ORDER BY ts")
    assert [row["energy_joules"] for row in rows] == [2.07e8, 2.071e8]
    assert [row["dram_active_ratio"] for row in rows] == [None, pytest.approx(0.4)]
    assert [(row["source"], row["device_index"]) for row in rows] == [("dcgm", 0)] * 2


def test_a_plain_reader_gives_the_same(lake, spool, wild):
    """Seventy-three lines of a public repository, read by `csv`."""
    file = wild("07-nvidia-smi-csv/power.csv")
    done = imported(lake, spool, "nvidia_smi", file, run="smi")
    assert (done.rows, done.refused) == ({"gpu_samples": 73}, {})
    with file.open() as text:
        plain = [float(row[" power.draw [W]"].split()[0]) for row in csv.DictReader(text)]
    rows = ask(lake, "SELECT power_watts FROM gpu_samples ORDER BY ts")
    assert [row["power_watts"] for row in rows] == pytest.approx(plain)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("index, power.draw [W]\n0, 1 W\n1, 2 W\n0, 3 W\n", "add timestamp to --query-gpu"),
        ("# gpu   pwr\n# Idx   W\n 0 5\n 0 6\n", "dmon -o DT"),
        ("#Entity   GPUTL\nID\nGPU 0  5\nGPU 0  6\n", "ts '%F %T'"),
        ("2026/03/06 16:45:26.123, 0, 5 %\n", "without noheader"),
        ("# gpu   pid  type  sm\n# Idx   #   C/G   %\n 0  1  C  5\n", "of processes"),
    ],
)
def test_what_is_missing_is_asked_for(tmp_path, text, what):
    """Times, names and devices are never made up."""
    (tmp_path / "x").write_text(text)
    with pytest.raises(SourceError, match=re.escape(what)):
        import_files("nvidia_smi", [str(tmp_path / "x")], str(tmp_path / "spool"))


def test_one_sample_without_a_time_is_of_the_files_last_change(lake, spool, tmp_path):
    """As of a page of Prometheus."""
    (tmp_path / "now.csv").write_text("index, power.draw [W]\n0, 1.5 W\n1, 2 W\n")
    done = imported(lake, spool, "nvidia_smi", tmp_path / "now.csv")
    changed_s = (tmp_path / "now.csv").stat().st_mtime
    assert done.rows == {"gpu_samples": 2}
    assert [row["ts"].timestamp() for row in ask(lake, "SELECT ts FROM gpu_samples")] == pytest.approx(
        [changed_s] * 2, abs=0.002
    )


def test_a_time_that_clocks_show_twice_is_refused(lake, spool, tmp_path):
    """So is one that they skip; another zone is another import."""
    lines = [
        f"{day} {hour}:30:00.000, 0, 1 W"
        for day, hour in (("2026/10/25", "02"), ("2026/10/25", "03"), ("2026/03/29", "02"))
    ]
    (tmp_path / "x.csv").write_text("\n".join(["timestamp, index, power.draw [W]", *lines]) + "\n")
    done = imported(lake, spool, "nvidia_smi", tmp_path / "x.csv", zone="Europe/Berlin", run="a")
    assert done.refused == {"a local time that clocks show twice, or never": 2}
    with pytest.raises(SourceError, match="the zone changed"):
        import_files("nvidia_smi", [str(tmp_path / "x.csv")], str(spool), run="a")
    for zone, hint in (("Europe/Berln", "Europe/Berlin"), ("", "no such zone")):
        with pytest.raises(SourceError, match=hint):
            import_files("nvidia_smi", [str(tmp_path / "x.csv")], str(spool), zone=zone)
    with pytest.raises(SourceError, match="mlperf takes no zone"):
        import_files("mlperf", [str(tmp_path / "x.csv")], str(spool), zone="UTC")


def test_lines_cut_anywhere_are_rows_or_refused(lake, spool, tmp_path):
    """Rows that went in are stored or in quarantine; the same file again stores nothing twice."""
    chance = random.Random(3)
    for name, text, first in (("q", QUERY, 1), ("d", DMON, 3), ("c", DCGMI, 2)):
        lines = text.splitlines()
        body = [line for line in lines[first:] if line.strip() and "#" not in line] * 30
        cut = [line[: chance.randrange(len(line.rstrip()) - 8, len(line) + 1)] for line in body]
        file = tmp_path / name
        file.write_text("\n".join([*lines[:first], *cut, "nan, " * 12 + "nan", "\x00\ufffd☃"]) + "\n")
        done = imported(lake, spool, "nvidia_smi", file)
        assert done.rows["gpu_samples"] + sum(done.refused.values()) == len(body) + 2
        assert imported(lake, spool, "nvidia_smi", file).again == 1
    assert {row["table"] for row in rejects(lake)} == {"gpu_samples"}
