"""The GPU sampler against a recording of a real device, and what nvidia-smi printed of it at the same moments."""

import csv
import json
from pathlib import Path

import pytest
from nvml_player import Player

from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.gpu_parts import GPM

SUPPORT = Path(__file__).parents[1] / "support"
MIB = 1 << 20
# column of gpu_samples, its unit in nvidia-smi's, and half a digit of what nvidia-smi prints (it rounds MiB up)
PRINTED = {
    "device_name": ("name", None, 0), "pci_bus_id": ("pci.bus_id", None, 0),
    "vbios_version": ("vbios_version", None, 0),
    "driver_version": ("driver_version", None, 0),
    "memory_total_bytes": ("memory.total [MiB]", MIB, 1), "memory_reserved_bytes": ("memory.reserved [MiB]", MIB, 1),
    "memory_used_bytes": ("memory.used [MiB]", MIB, 1), "memory_free_bytes": ("memory.free [MiB]", MIB, 1),
    "gpu_utilization_ratio": ("utilization.gpu [%]", 0.01, 0.001),
    "memory_utilization_ratio": ("utilization.memory [%]", 0.01, 0.001),
    "encoder_utilization_ratio": ("utilization.encoder [%]", 0.01, 0.001),
    "decoder_utilization_ratio": ("utilization.decoder [%]", 0.01, 0.001),
    "temperature_celsius": ("temperature.gpu", 1, 0), "memory_temperature_celsius": ("temperature.memory", 1, 0),
    "power_watts": ("power.draw [W]", 1, 0.005), "power_limit_watts": ("enforced.power.limit [W]", 1, 0),
    "power_limit_default_watts": ("power.default_limit [W]", 1, 0),
    "sm_clock_hz": ("clocks.current.sm [MHz]", 1e6, 0), "memory_clock_hz": ("clocks.current.memory [MHz]", 1e6, 0),
    "sm_clock_max_hz": ("clocks.max.sm [MHz]", 1e6, 0), "memory_clock_max_hz": ("clocks.max.memory [MHz]", 1e6, 0),
    "sm_clock_target_hz": ("clocks.applications.graphics [MHz]", 1e6, 0),
    "memory_clock_target_hz": ("clocks.applications.memory [MHz]", 1e6, 0),
    "pcie_link_generation": ("pcie.link.gen.gpucurrent", 1, 0), "pcie_link_width": ("pcie.link.width.current", 1, 0),
    "power_violation_ns": ("clocks_event_reasons_counters.sw_power_cap [us]", 1000, 1000),
    "ecc_corrected_volatile_count": ("ecc.errors.corrected.volatile.total", 1, 0),
    "ecc_uncorrected_volatile_count": ("ecc.errors.uncorrected.volatile.total", 1, 0),
    "ecc_corrected_aggregate_count": ("ecc.errors.corrected.aggregate.total", 1, 0),
    "ecc_uncorrected_aggregate_count": ("ecc.errors.uncorrected.aggregate.total", 1, 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    """Give the device's row at each recorded tick, sampled in the rhythm of the recording, and each tick's load."""
    player = Player(SUPPORT / "nvml_h200.jsonl")
    sampler = GpuSampler(player, dict)
    rows = {}
    for tick, at_s in player.header["seconds"].items():
        player.tick = int(tick)
        (row,) = sampler.sample(round((1 + at_s) * 1e9))
        rows[int(tick)] = row.columns
    sampler.close()
    sampler.join()
    return rows, {int(tick): load for tick, load in player.header["load"].items()}


def test_the_sampler_tells_what_nvidia_smi_prints(recorded):
    """Each column that was due lies between what nvidia-smi printed just before and just after, to its last digit."""
    rows, _ = recorded
    with (SUPPORT / "nvml_h200_smi.csv").open() as file:
        printed = list(csv.DictReader(file))
    compared = set()
    for before, after in zip(printed[::2], printed[1::2], strict=True):
        row = rows[0] | rows[int(before["tick"])]
        for column, (field, unit, resolution) in PRINTED.items():
            if unit is None:
                assert row[column] == before[field], column
            else:
                values = [float(text[field].split()[0]) * unit for text in (before, after)]
                if column in rows[int(before["tick"])] or values[0] == values[1]:
                    low, high = min(values) - resolution * unit, max(values) + resolution * unit
                    assert low <= row[column] <= high, (column, before["tick"])
                    compared.add(column)
        bits = {int(text["clocks_event_reasons.active"], 16) for text in (before, after)}
        assert row["clock_event_reasons"] in {"sw_power_cap" if bit == 4 else "" for bit in bits}
        assert row["performance_state"] == int(before["pstate"].removeprefix("P"))
        assert row["ecc_enabled"] is (before["ecc.mode.current"] == "Enabled")
    assert compared == {column for column, (_, unit, _) in PRINTED.items() if unit is not None}


def test_what_a_single_card_lacks_has_a_reason(recorded):
    """No fan, no NVLink, no retired pages since Ampere; everything else of it is told."""
    assert json.loads(recorded[0][0]["unavailable"]) == dict.fromkeys(
        (
            "fan_speed_ratio", "nvlink_active_count", "nvlink_crc_data_error_count", "nvlink_crc_flit_error_count",
            "nvlink_receive_bytes", "nvlink_recovery_error_count", "nvlink_replay_error_count", "nvlink_transmit_bytes",
            "retired_pages_double_bit_count", "retired_pages_single_bit_count",
        ),
        "not supported",
    )  # fmt: skip


def test_gpm_shows_what_the_device_worked_on(recorded):
    """Matrix products use the tensor pipes, copies the memory, and neither is at work where nothing is."""
    rows, loads = recorded
    shares = {
        load: [
            [rows[tick][column] for column in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")]
            for tick in rows
            if loads[tick] == load and "sm_active_ratio" in rows[tick]
        ]
        for load in ("matmul", "memory")
    }
    assert all(sm > 0.9 and tensor > 0.85 and dram < 0.3 for sm, tensor, dram in shares["matmul"])
    assert all(tensor == 0 and dram > 0.85 for _, tensor, dram in shares["memory"])
    assert max(rows[42][column] for column in GPM if column.endswith("_active_ratio")) < 0.02
    assert len(shares["matmul"]) == 4


def test_energy_agrees_with_power_and_violations_with_time(recorded):
    """Counters are in the units that their columns name: at the power cap joules are watts, nanoseconds the time."""
    rows, _ = recorded
    first, last = rows[10], rows[18]
    seconds = 17.05 - 9.05
    assert (last["energy_joules"] - first["energy_joules"]) / seconds == pytest.approx(last["power_watts"], rel=0.01)
    assert (last["power_violation_ns"] - first["power_violation_ns"]) / 1e9 == pytest.approx(seconds, rel=0.05)
    assert last["thermal_violation_ns"] == 0
