"""The GPU sampler: against tapes of NVML, against its failures, and against a real library without a driver."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import nvml_tape
import pyarrow as pa
import pynvml
import pytest
from nvml_player import Handle, Player

from ranklake.capture.samplers.gpu import RARE_NS, SLOW_NS, GpuSampler
from ranklake.capture.samplers.gpu_parts import FIELDS, GPM, PARTS, PCIE_RATES, clock_reasons
from ranklake.capture.samplers.sample import Tree, by_environment, held_by
from ranklake.capture.spool.stream_files import StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

SECOND = 10**9
HANDMADE = Path(__file__).parents[1] / "support" / "nvml_handmade.jsonl"
FIRST, SECOND_GPU = "GPU-00000000-0000-4000-8000-000000000000", "GPU-10000000-0000-4000-8000-000000000000"
RANK = StreamName("train", 1, 3, 77)


@pytest.fixture
def player():
    """Give the tape of two devices."""
    return Player(HANDMADE)


@pytest.fixture
def sampler(player):
    """Give a sampler of that tape, with a rank whose process is on the first device; its thread ends with the test."""
    made = GpuSampler(player, lambda: {4242: RANK})
    yield made
    made.close()
    made.join()


def sampled(sampler, at_s=1):
    """Return the rows of a tick by device, and its events by name."""
    found = list(sampler.sample(at_s * SECOND))
    rows = {row.columns["device_uuid"]: row.columns for row in found if row.table == "gpu_samples"}
    events = {row.columns["event"]: row.columns for row in found if row.table == "events"}
    schema = arrow_schema(contract("gpu_samples"), segment=True)
    for row in rows.values():  # every column is the contract's, and every value is of its type
        pa.array([row], pa.struct([schema.field(name) for name in row]))
        assert all(row.get(name) is None for name in why(row))
    return rows, events


def why(row):
    """Return why columns are missing."""
    return json.loads(row["unavailable"] or "{}")


def until(true):
    """Wait until something holds."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_tape_says_what_it_is(player):
    """It is no recording, and does not claim to be one."""
    assert player.header["recorded"] is False
    assert "NOT recorded" in player.header["about"]
    script = "import nvml_handmade as m; m.Path.write_text = lambda s, t: print(t, end=''); m.main()"
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=HANDMADE.parent
    )
    assert made.stdout == HANDMADE.read_text()


def test_units_are_those_of_the_contract(sampler):
    """Percent become ratios, MHz Hz, mW W, mJ J, KiB and MiB bytes."""
    row = sampled(sampler)[0][FIRST]
    assert (row["gpu_utilization_ratio"], row["decoder_utilization_ratio"]) == (0.97, 0.25)
    assert (row["sm_clock_hz"], row["sm_clock_max_hz"], row["memory_clock_hz"]) == (1755e6, 1980e6, 2619e6)
    assert (row["power_watts"], row["power_limit_watts"], row["energy_joules"]) == (412.345, 700, 987654.321)
    assert (row["memory_used_bytes"], row["memory_reserved_bytes"]) == (60 << 30, 640 << 20)
    assert (row["nvlink_transmit_bytes"], row["nvlink_active_count"]) == (1 << 30, 18)
    assert (row["temperature_celsius"], row["memory_temperature_celsius"]) == (54, 58)
    assert (row["slowdown_temperature_celsius"], row["shutdown_temperature_celsius"]) == (90, 95)
    assert (row["ecc_enabled"], row["ecc_corrected_volatile_count"], row["pcie_replay_count"]) == (True, 3, 7)
    assert (row["remapped_rows_corrected_count"], row["row_remap_pending"]) == (1, False)
    assert (row["cuda_version"], row["driver_version"], row["pci_bus_id"]) == ("12.8", "570.124.06", "00000000:18:00.0")
    assert why(row) == {
        "fan_speed_ratio": "not supported",
        "retired_pages_single_bit_count": "not supported",
        "retired_pages_double_bit_count": "not supported",
    }


def test_counters_and_reasons_move_with_the_tape(player, sampler):
    """Each tick is its own; the clocks' reasons are names; GPM needs two samples."""
    first = sampled(sampler, 1)[0][FIRST]
    player.tick = 1
    second = sampled(sampler, 2)[0][FIRST]
    assert second["energy_joules"] - first["energy_joules"] == pytest.approx(412)
    assert second["power_violation_ns"] - first["power_violation_ns"] == 125_000_000
    assert (first["clock_event_reasons"], second["clock_event_reasons"]) == ("", "hw_thermal_slowdown,sw_power_cap")
    assert not any(column in first for column in GPM)
    assert (second["sm_active_ratio"], second["tensor_active_ratio"]) == (0.88, 0.5225)
    assert second["pcie_receive_bytes_per_s"] == 48 * (1 << 20)
    assert (first["interval_ns"], second["interval_ns"]) == (None, SECOND)


def test_dear_calls_are_made_now_and_then(player, sampler):
    """Processes each ten seconds, what hardly changes each minute; what a device has not got is asked for once."""
    sampled(sampler, 1)
    player.asked.clear()
    for at in range(2, 1 + SLOW_NS // SECOND):
        sampled(sampler, at)
    names = {name for name, _ in player.asked}
    assert "nvmlDeviceGetComputeRunningProcesses" not in names
    assert "nvmlDeviceGetUtilizationRates" in names
    sampled(sampler, 1 + SLOW_NS // SECOND)
    names = {name for name, handle in player.asked if handle == "h0"}
    assert "nvmlDeviceGetComputeRunningProcesses" in names
    assert names.isdisjoint({"nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetPcieThroughput"})
    sampled(sampler, 1 + RARE_NS // SECOND)
    assert ("nvmlDeviceGetMaxClockInfo", "h0") in player.asked
    assert ("nvmlDeviceGetFanSpeed", "h0") not in player.asked


def test_a_device_is_attributed_to_the_rank_on_it(sampler):
    """By the process, of whose memory alone the row tells; nobody of ours is on the other."""
    rows, _ = sampled(sampler)
    held = rows[FIRST]
    assert (held["holder_run"], held["holder_attempt"], held["holder_rank"], held["holder_count"]) == ("train", 1, 3, 1)
    assert held["memory_own_bytes"] == 50 << 30
    assert (rows[SECOND_GPU]["holder_count"], rows[SECOND_GPU]["memory_own_bytes"]) == (0, 0)
    later = sampled(sampler, 2)[0][FIRST]
    assert later["holder_run"] == "train"
    assert "memory_own_bytes" not in later


def test_mig_instances_have_rows_of_their_own(player, sampler):
    """With their memory, instance and profile, and GPM by instance; what only the whole has is not supported."""
    rows, _ = sampled(sampler, 1)
    assert len(rows) == 4
    part = rows["MIG-20000000-0000-5000-8000-000000000000"]
    assert (part["mig_gpu_instance"], part["mig_compute_instance"], part["mig_profile"]) == (9, 0, "1g.10gb")
    assert (part["device_index"], part["memory_total_bytes"], part["pci_bus_id"]) == (1, 10 << 30, "00000000:2A:00.0")
    assert why(part)["power_watts"] == "not supported"
    rows, _ = sampled(sampler, 2)
    assert rows["MIG-20000000-0000-5000-8000-000000000000"]["sm_active_ratio"] == 0.88
    assert ("nvmlGpmMigSampleGet", "h1") in player.asked


def test_xids_are_events_when_they_happen(player, sampler):
    """With the device and its holder; the row keeps the last one."""
    assert sampled(sampler, 1)[0][FIRST]["xid_last"] is None
    player.happen("h0", 79)
    player.happen("h1", 94, 9, 0)
    until(lambda: len(sampler._watch._received) == 2)
    found = [row for row in sampler.sample(2 * SECOND) if row.table == "events"]
    assert [row.columns["event"] for row in found] == ["xid", "xid"]
    first, second = (json.loads(row.columns["attributes"]) for row in found)
    assert (first["xid"], first["device_uuid"], first["holder_run"], first["holder_rank"]) == (79, FIRST, "train", 3)
    assert (second["xid"], second["gpu_instance"]) == (94, 9)
    rows, events = sampled(sampler, 3)
    assert (rows[FIRST]["xid_last"], rows[SECOND_GPU]["xid_last"]) == (79, 94)
    assert events == {}


# ── failures ──


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver not loaded"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML not found"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver and NVML are of different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "not permitted"),
        (12345, "NVML error 12345"),
    ],
)
def test_a_driver_that_is_not_there_is_one_event(player, sampler, code, reason):
    """It is asked for again each minute; when it is there, that is an event, and rows follow."""
    player.failing["nvmlInit"] = code
    rows, events = sampled(sampler, 1)
    assert rows == {}
    assert reason in events["sampler_unavailable"]["message"]
    assert sampled(sampler, 2) == ({}, {})
    assert sampled(sampler, 1 + RARE_NS // SECOND) == ({}, {})
    player.failing.clear()
    rows, events = sampled(sampler, 1 + 2 * RARE_NS // SECOND)
    assert len(rows) == 4
    assert "sampler_available" in events


def test_a_real_library_without_a_driver_is_told():
    """As the machine is that runs the test: rows, or the reason why there are none."""
    real = GpuSampler(pynvml, dict)
    found = list(real.sample(SECOND))
    real.close()
    assert found
    assert {row.table for row in found} <= {"gpu_samples", "events"}


def test_a_device_that_is_lost_is_told_and_the_others_go_on(player, sampler):
    """Its last row says so; it costs no call until it is looked for again, and an event tells when it is back."""
    sampled(sampler, 1)
    player.failing["*", "h0"] = pynvml.NVML_ERROR_GPU_IS_LOST
    rows, events = sampled(sampler, 2)
    assert set(why(rows[FIRST]).values()) == {"GPU is lost"}
    assert json.loads(events["gpu_lost"]["attributes"])["holder_rank"] == 3
    assert rows[SECOND_GPU]["power_watts"] > 0
    player.asked.clear()
    rows, events = sampled(sampler, 3)
    assert FIRST not in rows
    assert SECOND_GPU in rows
    assert "h0" not in {handle for _, handle in player.asked}
    for minute, call in enumerate(["nvmlDeviceGetHandleByIndex", ("nvmlDeviceGetHandleByIndex", 0), ("*", "h0")]):
        player.failing = {call: pynvml.NVML_ERROR_GPU_IS_LOST}  # still counted in the last two cases
        rows, events = sampled(sampler, 3 + (1 + minute) * RARE_NS // SECOND)
        assert (FIRST in rows, events) == (False, {}), call
    player.failing.clear()
    rows, events = sampled(sampler, 3 + 4 * RARE_NS // SECOND)
    assert "gpu_found" in events
    assert rows[FIRST]["power_watts"] > 0


def test_a_device_that_was_lost_before_the_start_is_told(player, sampler):
    """It has no row; an event says so once, and another when it answers."""
    player.failing["nvmlDeviceGetHandleByIndex", 1] = pynvml.NVML_ERROR_GPU_IS_LOST
    rows, events = sampled(sampler, 1)
    assert FIRST in rows
    assert SECOND_GPU not in rows
    assert events["gpu_lost"]["message"] == "GPU 1 of this host was lost before the start: GPU is lost"
    assert json.loads(events["gpu_lost"]["attributes"]) == {"device_index": 1, "reason": "GPU is lost"}
    assert "gpu_lost" not in sampled(sampler, 1 + RARE_NS // SECOND)[1]
    player.failing.clear()
    rows, events = sampled(sampler, 1 + 2 * RARE_NS // SECOND)
    assert SECOND_GPU in rows
    assert "gpu_found" in events


def test_a_call_that_the_driver_is_too_old_for_costs_its_columns(player, sampler):
    """The module raises what is no error of NVML's there, and AttributeError for what it is too old for itself."""
    player.failing["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVMLLibraryMismatchError("use _v2")
    player.failing["nvmlDeviceGetRemappedRows"] = AttributeError("nvmlDeviceGetRemappedRows")
    rows, events = sampled(sampler, 1)
    assert "sampler_failed" not in events
    assert rows[FIRST]["power_watts"] > 0
    assert why(rows[FIRST])["memory_own_bytes"] == "not known to the driver"
    assert why(rows[FIRST])["row_remap_pending"] == "not known to nvidia-ml-py"


def test_minus_one_is_no_power(player, sampler):
    """A driver answers 4,294,967,295 mW where it means -1."""
    player.answer("nvmlDeviceGetPowerUsage", [{"handle": "h0"}], (1 << 32) - 1)
    rows, _ = sampled(sampler, 1)
    assert rows[FIRST].get("power_watts") is None
    assert why(rows[FIRST])["power_watts"] == "the driver answers 4294967295"
    assert rows[SECOND_GPU]["power_watts"] > 0


def test_a_call_that_begins_to_fail_costs_its_column(player, sampler):
    """Half-way, for a while: NULL with its reason, never the last value; then it is there again."""
    assert sampled(sampler, 1)[0][FIRST]["temperature_celsius"] == 54
    player.failing["nvmlDeviceGetTemperature"] = pynvml.NVML_ERROR_UNKNOWN
    row = sampled(sampler, 2)[0][FIRST]
    assert "temperature_celsius" not in row
    assert why(row)["temperature_celsius"] == "unknown error"
    assert row["power_watts"] > 0
    player.failing.clear()
    assert sampled(sampler, 3)[0][FIRST]["temperature_celsius"] == 54


def test_a_sample_of_gpm_that_is_refused_takes_no_more_memory(player, sampler):
    """The library's memory for two samples is asked for once, however often it gives none."""
    player.failing["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_NO_PERMISSION
    asked = []
    for at in range(1, 6):
        assert why(sampled(sampler, at)[0][FIRST])["sm_active_ratio"] == "not permitted"
        asked.append(sum(call == "nvmlGpmSampleAlloc" for call, *_ in player.asked))
    assert asked[0] == asked[-1] > 0


def test_permission_and_missing_gpm_are_reasons(player, sampler):
    """A device without GPM has its rates of PCIe from elsewhere, and the rest NULL."""
    player.failing["nvmlGpmQueryDeviceSupport"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    player.failing["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    for counter in (0, 1):
        player.answer("nvmlDeviceGetPcieThroughput", [{"handle": "h0"}, counter], 5_000 + counter)
    row = sampled(sampler, 1)[0][FIRST]
    assert why(row)["sm_active_ratio"] == "not supported"
    assert {row["pcie_transmit_bytes_per_s"], row["pcie_receive_bytes_per_s"]} == {5_000_000, 5_001_000}
    assert why(row)["holder_count"] == why(row)["memory_own_bytes"] == "not permitted"
    assert "holder_count" not in row
    later = sampled(sampler, 2)[0][FIRST]
    assert "pcie_transmit_bytes_per_s" not in why(later)


def test_xids_that_cannot_be_had_are_told(player):
    """Once, and as the reason of the column."""
    player.failing["nvmlEventSetCreate"] = pynvml.NVML_ERROR_NO_PERMISSION
    made = GpuSampler(player, dict)
    rows, events = sampled(made, 1)
    assert "xid cannot be sampled: not permitted" in events["sampler_unavailable"]["message"]
    assert why(rows[FIRST])["xid_last"] == "not permitted"
    assert sampled(made, 2)[1] == {}
    made.close()


def test_a_field_of_its_own_may_fail(player, sampler):
    """A batch of fields answers each for itself."""
    answers = player._answers
    for (call, _), ticks in answers.items():
        if call == "nvmlDeviceGetFieldValues":
            for one in ticks[0]["answer"]:
                if one["fields"]["fieldId"] == pynvml.NVML_FI_DEV_MEMORY_TEMP:
                    one["fields"]["nvmlReturn"] = pynvml.NVML_ERROR_NO_PERMISSION
    row = sampled(sampler)[0][FIRST]
    assert why(row)["memory_temperature_celsius"] == "not permitted"
    assert row["energy_joules"] > 0


# ── tables, names and holders ──


def test_every_column_has_a_source():
    """What the contract has of a device is read, or is known to be another source's."""
    read = (
        {column for part in (*PARTS, *PCIE_RATES) for column in part.columns} | {one.column for one in FIELDS} | {*GPM}
    )
    columns = {column.name for column in contract("gpu_samples").columns if column.id >= 41}
    assert columns - read == {"memory_own_bytes", "retired_pages_pending_count", "xid_last", "unavailable"}
    assert read <= columns


def test_every_bit_has_a_name():
    """Those of the library as it is, and a number for what comes later."""
    bits = {
        getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason")) and not name.endswith("All")
    }
    assert all("bit_" not in clock_reasons(bit) for bit in bits)
    assert clock_reasons(1 << 20 | 1) == "bit_20,gpu_idle"


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ("LOCAL_RANK=1", {1}),
        ("CUDA_VISIBLE_DEVICES=1", {1}),
        ("LOCAL_RANK=0\0CUDA_VISIBLE_DEVICES=1,0", {1}),
        (f"CUDA_VISIBLE_DEVICES={SECOND_GPU[:12]}", {1}),
        ("LOCAL_RANK=5\0CUDA_VISIBLE_DEVICES=1,0", None),
        ("CUDA_VISIBLE_DEVICES=0,1", None),
        ("LOCAL_RANK=x", None),
        ("HOME=/", None),
    ],
)
def test_a_container_has_its_holders_by_their_environment(tmp_path, environment, devices):
    """Where the driver tells other process numbers; what the environment does not say is not known."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/environ").write_text(f"SECRET=no\0{environment}\0")
    tree = Tree(str(tmp_path))
    found = [by_environment(at, uuid, {7: RANK}, tree) for at, uuid in enumerate((FIRST, SECOND_GPU))]
    if devices is None:
        assert found == [None, None]
    else:
        assert {at for at, ranks in enumerate(found) if ranks} == devices


def test_several_holders_have_no_one_rank():
    """Two ranks of one run share the run; two runs share nothing but their count."""
    other = StreamName("train", 1, 4, 78)
    assert held_by([RANK, other]) == {"holder_count": 2, "holder_run": "train", "holder_attempt": 1}
    assert held_by([RANK, StreamName("b", 0, 0, 9)]) == {"holder_count": 2}


# ── recording a device ──


def test_a_tape_of_a_player_plays_the_same(player, tmp_path):
    """What the recorder writes down, played, gives the rows that were sampled when it was recorded."""
    out = io.StringIO()
    tape = nvml_tape.Tape(player, out)
    made = GpuSampler(tape, dict)
    expected = []
    for tick in range(3):
        tape.tick = player.tick = tick
        expected.append(sampled(made, 1 + tick)[0])
    made.close()
    made.join()
    file = tmp_path / "tape.jsonl"
    file.write_text(json.dumps({"recorded": False}) + "\n" + out.getvalue().replace('{"fields": {}}', "null"))
    again = GpuSampler(played := Player(file), dict)
    for tick in range(3):
        played.tick = tick
        assert sampled(again, 1 + tick)[0] == expected[tick]
    again.close()
    again.join()


def test_structures_of_the_library_can_be_taped(player):
    """Ctypes' numbers, arrays, structures, unions and pointers."""
    out = io.StringIO()
    tape = nvml_tape.Tape(player, out)
    values = (pynvml.c_nvmlFieldValue_t * 1)()
    values[0].value.ullVal = 5
    plain = tape._plain(values)
    assert plain[0]["fields"]["value"]["fields"]["ullVal"] == 5
    assert tape._plain(pynvml.c_nvmlDevice_t()) == {"handle": "h0"}
    assert tape._plain(b"text") == "text"
    assert json.loads(json.dumps(tape._plain(pynvml.c_nvmlMemory_v2_t())))["fields"]["total"] == 0


def test_recording_without_a_device_is_an_error_in_one_line(player, tmp_path, monkeypatch):
    """And leaves no file."""
    player.failing["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(nvml_tape.NoDeviceError, match="NVML: nothing can be recorded: driver not loaded"):
        nvml_tape.record(player, 1, tmp_path / "tape")
    assert not (tmp_path / "tape").exists()
    player.failing.clear()
    monkeypatch.setattr(nvml_tape.time, "sleep", lambda seconds: None)
    assert nvml_tape.record(player, 2, tmp_path / "tape") > 100
    header = json.loads((tmp_path / "tape").read_text().splitlines()[0])
    assert (header["recorded"], header["driver"], len(header["devices"])) == (True, "570.124.06", 2)
    assert isinstance(Handle("h0"), str)
