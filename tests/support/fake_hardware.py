"""A GPU that a tape of NVML stands for, and a /proc of files, both of which go wrong when they are told to."""

import copy
import os
from pathlib import Path

import pynvml
from nvml_handmade import ALL_BITS, fields
from nvml_player import Player

TAPE = Path(__file__).with_name("nvml_handmade.jsonl")
_DEVICE = {"handle": "h0"}
_COPIED = ("stat", "meminfo", "vmstat", "loadavg", "diskstats", "uptime", "net/dev", "net/snmp")
GPU_CALLS = {
    "gpu_temperature": ("nvmlDeviceGetTemperature", [_DEVICE, pynvml.NVML_TEMPERATURE_GPU], 88),
    "thermal_throttling": ("nvmlDeviceGetCurrentClocksEventReasons", [_DEVICE],
                           pynvml.nvmlClocksEventReasonHwThermalSlowdown),
    "power_brake": ("nvmlDeviceGetCurrentClocksEventReasons", [_DEVICE],
                    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
    "remap_pending": ("nvmlDeviceGetRemappedRows", [_DEVICE], [1, 0, 1, 0]),
    "remap_failed": ("nvmlDeviceGetRemappedRows", [_DEVICE], [1, 0, 0, 1]),
    "nvlink_down": ("nvmlDeviceGetNvLinkState", [_DEVICE, 17], 0),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", [_DEVICE], 8),
}  # fmt: skip
"""A fault of a device: the call of NVML that tells it, and its answer while it lasts."""
GPU_COUNTERS = {
    "ecc": ("ECC_DBE_VOL_TOTAL", 2),
    "nvlink_recovery": ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 3),
    "pcie_replays": ("PCIE_REPLAY_COUNTER", 900),
}
"""Counters of a device, and what they grow by."""
XIDS = {"xid_dbe": 48, "xid_bus": 79}
GPU_FAULTS = (*GPU_CALLS, *GPU_COUNTERS, *XIDS, "gpu_lost", "low_sm")
HOST_FAULTS = ("iowait", "io_pressure", "memory_pressure", "oom_kill", "link_down")


class Gpu:
    """One H100 of a rank's node, held by this process.

    Attributes
    ----------
    player
        What stands for the module ``pynvml``.
    """

    def __init__(self, uuid, kind):
        self.player, self._kind = Player(TAPE), kind
        for ticks in self.player._answers.values():
            for tick in [tick for tick in ticks if tick]:
                del ticks[tick]
        self.player.answer("nvmlDeviceGetCount", [], 1)
        self.player.answer("nvmlDeviceGetUUID", [_DEVICE], uuid)
        holder = fields(pid=os.getpid(), usedGpuMemory=50 << 30, gpuInstanceId=ALL_BITS, computeInstanceId=ALL_BITS)
        self.player.answer("nvmlDeviceGetComputeRunningProcesses", [_DEVICE], [holder])
        if kind in GPU_CALLS:
            self.player.answer(*GPU_CALLS[kind], tick=1)
        if kind == "low_sm":
            self._change("nvmlGpmMetricsGet", lambda answer: {"gpm": [
                [code, back, 40.0 if code == pynvml.NVML_GPM_METRIC_SM_UTIL else value]
                for code, back, value in answer["gpm"]]})  # fmt: skip
        if kind in GPU_COUNTERS:
            self._change("nvmlDeviceGetFieldValues", self._grown)

    def _change(self, call, change):
        for (name, _), ticks in self.player._answers.items():
            if name == call and "answer" in ticks.get(0, {}):
                ticks[1] = {"answer": change(copy.deepcopy(ticks[0]["answer"]))}

    def _grown(self, answer):
        name, more = GPU_COUNTERS[self._kind]
        for item in answer:
            if item["fields"]["fieldId"] == getattr(pynvml, f"NVML_FI_DEV_{name}"):
                value = item["fields"]["value"]["fields"]
                value["ullVal"] += more
                value["uiVal"] += more
        return answer

    def turn(self, *, bad):
        """Have the fault begin or end."""
        begins = bad and not self.player.tick
        self.player.tick = int(bad)
        if begins and self._kind in XIDS:
            self.player.happen("h0", XIDS[self._kind])
        if begins and self._kind == "gpu_lost":
            self.player.failing["*", "h0"] = pynvml.NVML_ERROR_GPU_IS_LOST


class Host:
    """Files as /proc and /sys have them: this machine's own, but for what is planted; without its load."""

    def __init__(self, root, kind):
        self.root, self._kind, self._waited = root, kind, 0
        self._write("proc/sys/kernel/random/boot_id", f"00000000-0000-4000-8000-{abs(hash(str(root))) % 10**12:012d}")
        self._write("sys/class/net/eth0/device", "")
        self._write("sys/class/net/eth0/speed", "100000")
        self.turn(bad=False)

    def _write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(text)
        part.replace(file)

    def turn(self, *, bad):
        """Write the files as of now."""
        for name in _COPIED:
            text = (Path("/proc") / name).read_text()
            if name == "stat":
                text = self._stat(text, bad=bad and self._kind == "iowait")
            if name == "vmstat" and bad and self._kind == "oom_kill":
                text = "\n".join(f"oom_kill {int(line.split()[1]) + 2}" if line.startswith("oom_kill ") else line
                                 for line in text.splitlines())  # fmt: skip
            self._write(f"proc/{name}", text)
        for resource in ("cpu", "memory", "io"):
            share = 45.0 if bad and self._kind == f"{resource}_pressure" else 0.0
            self._write(f"proc/pressure/{resource}", "".join(
                f"{kind} avg10={share:.2f} avg60=0.00 avg300=0.00 total=0\n" for kind in ("some", "full")))  # fmt: skip
        self._write("sys/class/net/eth0/operstate", "down" if bad and self._kind == "link_down" else "up")

    def _stat(self, text, *, bad):
        """Return the CPUs' time, idle but for what they wait for disks: two thirds of the time."""
        first, rest = text.split("\n", 1)
        label, *values = first.split()
        total = sum(map(int, values))
        grown, self._total = total - getattr(self, "_total", total), total
        self._waited += 2 * grown // 3 if bad else 0
        idle = [0, 0, 0, total - self._waited, self._waited, *[0] * (len(values) - 5)]
        return f"{label}  {' '.join(map(str, idle))}\n{rest}"
