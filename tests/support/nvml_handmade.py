"""Makes nvml_handmade.jsonl: a tape written by hand from NVML's documented types and ranges, of no real device.

    PYTHONPATH=src python tests/support/nvml_handmade.py

It stands for what ``nvml_h200.jsonl``, recorded on one sound GPU, cannot show: a second device, MIG, NVLink, faults.
"""

import json
from pathlib import Path

import pynvml

from ranklake.capture.samplers.gpu_parts import FIELDS, GPM, RARE

TICKS = 4
ALL_BITS = 2**32 - 1
HEADER = {
    "about": "hand-made from the types and ranges that NVML documents; NOT recorded on a device",
    "recorded": False,
    "made_by": "tests/support/nvml_handmade.py",
    "imitates": "two H100 80 GB, the second one partitioned (MIG), driver 570",
}
FIELD_VALUES = {  # at tick 0, and by how much it grows in a tick
    "TOTAL_ENERGY_CONSUMPTION": (987_654_321, 412_000),
    "MEMORY_TEMP": (58, 1),
    "PERF_POLICY_POWER": (5_000_000_000, 125_000_000),
    "PERF_POLICY_THERMAL": (0, 0),
    "NVLINK_THROUGHPUT_DATA_TX": (1 << 20, 1 << 10),
    "NVLINK_THROUGHPUT_DATA_RX": (1 << 21, 1 << 10),
    "ECC_SBE_VOL_TOTAL": (3, 0),
    "PCIE_REPLAY_COUNTER": (7, 1),
}
INTS = {"MEMORY_TEMP", "PCIE_REPLAY_COUNTER"}  # of 32 bits, as an H200 answers
NOT_HERE = {"RETIRED_SBE", "RETIRED_DBE"}  # rows are remapped since Ampere
GPM_VALUES = {"GRAPHICS_UTIL": 97.5, "SM_UTIL": 88.0, "SM_OCCUPANCY": 41.0, "ANY_TENSOR_UTIL": 52.25,
              "INTEGER_UTIL": 11.0, "FP64_UTIL": 0.0, "FP32_UTIL": 8.5, "FP16_UTIL": 1.5, "DRAM_BW_UTIL": 63.0,
              "PCIE_TX_PER_SEC": 12.0, "PCIE_RX_PER_SEC": 48.0, "NVLINK_TOTAL_TX_PER_SEC": 2048.0,
              "NVLINK_TOTAL_RX_PER_SEC": 1024.0}  # fmt: skip


def handle(name):
    """Return what the library points to."""
    return {"handle": name}


def fields(**members):
    """Return a structure."""
    return {"fields": members}


def identity(name, uuid, model):
    """Yield the calls that tell who a device is."""
    yield "nvmlDeviceGetUUID", [name], uuid
    yield "nvmlDeviceGetName", [name], model
    yield "nvmlDeviceGetBoardPartNumber", [name], "692-2G520-0200-000"
    yield "nvmlDeviceGetSerial", [name], f"16500{len(uuid):08d}"
    yield "nvmlDeviceGetVbiosVersion", [name], "96.00.99.00.01"
    yield "nvmlDeviceGetPciInfo", [name], fields(busId="00000000:18:00.0" if name == "h0" else "00000000:2A:00.0")


def memory(name, used, total):
    """Yield the call that tells a device's memory."""
    found = fields(version=pynvml.nvmlMemory_v2, total=total, reserved=640 << 20, free=total - used, used=used)
    yield "nvmlDeviceGetMemoryInfo", [name, pynvml.nvmlMemory_v2], found


def whole(name, tick):
    """Yield the calls about a whole device."""
    yield "nvmlDeviceGetUtilizationRates", [name], fields(gpu=97 - tick, memory=63)
    yield from memory(name, (60 << 30) + (tick << 20), 80 << 30)
    yield "nvmlDeviceGetClockInfo", [name, pynvml.NVML_CLOCK_SM], 1755
    yield "nvmlDeviceGetClockInfo", [name, pynvml.NVML_CLOCK_MEM], 2619
    yield "nvmlDeviceGetMaxClockInfo", [name, pynvml.NVML_CLOCK_SM], 1980
    yield "nvmlDeviceGetMaxClockInfo", [name, pynvml.NVML_CLOCK_MEM], 2619
    yield "nvmlDeviceGetApplicationsClock", [name, pynvml.NVML_CLOCK_SM], 1980
    yield "nvmlDeviceGetApplicationsClock", [name, pynvml.NVML_CLOCK_MEM], 2619
    yield "nvmlDeviceGetPowerUsage", [name], 412_345 + tick
    yield "nvmlDeviceGetEnforcedPowerLimit", [name], 700_000
    yield "nvmlDeviceGetPowerManagementDefaultLimit", [name], 700_000
    yield "nvmlDeviceGetTemperature", [name, pynvml.NVML_TEMPERATURE_GPU], 54 + tick
    yield "nvmlDeviceGetTemperatureThreshold", [name, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN], 90
    yield "nvmlDeviceGetTemperatureThreshold", [name, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN], 95
    yield "nvmlDeviceGetPerformanceState", [name], 0
    reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    yield "nvmlDeviceGetCurrentClocksEventReasons", [name], reasons if tick else pynvml.nvmlClocksEventReasonNone
    yield "nvmlDeviceGetEncoderUtilization", [name], [0, 100_000]
    yield "nvmlDeviceGetDecoderUtilization", [name], [25, 100_000]
    yield "nvmlDeviceGetCurrPcieLinkGeneration", [name], 5
    yield "nvmlDeviceGetCurrPcieLinkWidth", [name], 16
    yield "nvmlDeviceGetBAR1MemoryInfo", [name], fields(bar1Total=128 << 30, bar1Free=127 << 30, bar1Used=1 << 30)
    yield "nvmlDeviceGetRemappedRows", [name], [1, 0, 0, 0]
    yield "nvmlDeviceGetEccMode", [name], [1, 1]
    for link in range(18):
        yield "nvmlDeviceGetNvLinkState", [name, link], 1
    no_part = {"gpuInstanceId": ALL_BITS, "computeInstanceId": ALL_BITS}
    processes = [fields(pid=4242, usedGpuMemory=50 << 30, **no_part), fields(pid=9, usedGpuMemory=1 << 30, **no_part)]
    yield "nvmlDeviceGetComputeRunningProcesses", [name], processes if name == "h0" else []
    for often in range(RARE + 1):
        due = [one for one in FIELDS if one.often <= often]
        numbers = [getattr(pynvml, f"NVML_FI_DEV_{one.name}") for one in due]
        asked = [number if one.scope is None else [number, one.scope] for number, one in zip(numbers, due, strict=True)]
        yield "nvmlDeviceGetFieldValues", [name, asked], [field(one.name, tick) for one in due]
        kept = [one for one in due if one.name not in NOT_HERE]  # after the others were refused
        asked = [one for one, which in zip(asked, due, strict=True) if which in kept]
        yield "nvmlDeviceGetFieldValues", [name, asked], [field(one.name, tick) for one in kept]
    yield "nvmlGpmQueryDeviceSupport", [name], fields(version=1, isSupportedDevice=1)


def field(name, tick):
    """Return a field's value."""
    begin, grows = FIELD_VALUES.get(name, (0, 0))
    number = begin + grows * tick
    return fields(
        fieldId=getattr(pynvml, f"NVML_FI_DEV_{name}"),
        nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED if name in NOT_HERE else pynvml.NVML_SUCCESS,
        valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT if name in INTS else pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        value=fields(dVal=0.0, uiVal=number & ALL_BITS, ullVal=number),
    )


def calls(tick):
    """Yield the calls of a tick: name, arguments, answer."""
    yield "nvmlSystemGetDriverVersion", [], "570.124.06"
    yield "nvmlSystemGetNVMLVersion", [], "12.570.124.06"
    yield "nvmlSystemGetCudaDriverVersion", [], 12080
    yield "nvmlDeviceGetCount", [], 2
    for index in range(2):
        yield "nvmlDeviceGetHandleByIndex", [index], handle(f"h{index}")
        yield "nvmlDeviceGetMigMode", [f"h{index}"], [index, index]
        uuid = f"GPU-{index}0000000-0000-4000-8000-000000000000"
        yield from identity(f"h{index}", uuid, "NVIDIA H100 80GB HBM3")
        yield from whole(f"h{index}", tick)
    yield "nvmlDeviceGetMaxMigDeviceCount", ["h1"], 3
    for number in (0, 2):  # the second place is empty
        part = f"m{number}"
        yield "nvmlDeviceGetMigDeviceHandleByIndex", ["h1", number], handle(part)
        yield "nvmlDeviceGetGpuInstanceId", [part], 7 + number
        yield "nvmlDeviceGetComputeInstanceId", [part], 0
        yield from identity(
            part, f"MIG-{number}0000000-0000-5000-8000-000000000000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        )
        yield from memory(part, 2 << 30, 10 << 30)
        yield "nvmlDeviceGetComputeRunningProcesses", [part], []
    metrics = [getattr(pynvml, f"NVML_GPM_METRIC_{name}") for name, _ in GPM.values()]
    values = [[number, 0, GPM_VALUES[name]] for number, (name, _) in zip(metrics, GPM.values(), strict=True)]
    yield "nvmlGpmMetricsGet", [{"gpm": [[number, 0, 0.0] for number in metrics]}], {"gpm": values}


def main():
    """Write the tape beside this file."""
    lines = [HEADER]
    said = {}
    for tick in range(TICKS):
        for call, arguments, answer in calls(tick):
            args = [handle(one) if isinstance(one, str) else one for one in arguments]
            key = json.dumps([call, args])
            if said.get(key) != answer:  # what stays the same is written once
                said[key] = answer
                lines.append({"tick": tick, "call": call, "args": args, "answer": answer})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    Path(__file__).with_suffix(".jsonl").write_text(text)


if __name__ == "__main__":
    main()
