"""Synthetic samples of a node's GPUs and host, one per second, as rows for the sealer.

Values have the resolution of their sources: power in mW, clocks in steps of 15 MHz, whole degrees and percents, ratios
of DCGM to six digits. Columns that never change on a healthy device are included, as in production.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ranklake.bench.job import DEVICE_NAME, Job
from ranklake.capture.common.arrays import Array, numbers, take_texts, truths
from ranklake.capture.sealing.rows import Columns, Rows
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_NS: Final = 10**9
_BUSY_W, _IDLE_W, _LIMIT_W = 615.0, 72.0, 700.0
_CORRECTED: Final = 2e-5  # memory errors per second and GPU
_CLOCK, _THROTTLED_CLOCK, _CLOCK_STEP = 1_755e6, 1_275e6, 15e6
_PROFILED: Final = (
    ("graphics_engine_active_ratio", 0.985, 0.004), ("sm_active_ratio", 0.86, 0.012),
    ("sm_occupancy_ratio", 0.21, 0.006),
    ("tensor_active_ratio", 0.47, 0.01), ("fp64_active_ratio", 0.0, 0.0), ("fp32_active_ratio", 0.06, 0.003),
    ("fp16_active_ratio", 0.02, 0.002), ("integer_active_ratio", 0.05, 0.002), ("dram_active_ratio", 0.42, 0.015),
)  # fmt: skip
_ZERO_COUNTERS: Final = (
    "sync_boost_violation_ns", "board_limit_violation_ns", "low_utilization_violation_ns", "reliability_violation_ns",
    "nvlink_crc_flit_error_count", "nvlink_crc_data_error_count", "nvlink_replay_error_count",
    "nvlink_recovery_error_count",
    "ecc_uncorrected_volatile_count", "ecc_uncorrected_aggregate_count", "remapped_rows_corrected_count",
    "remapped_rows_uncorrected_count",
)  # fmt: skip


@dataclass
class Sampler:
    """The samples of one node. Windows must be requested in order, since counters accumulate.

    Attributes
    ----------
    boot_ns
        Reading of the node's monotonic clock at the start of the job.
    """

    job: Job
    node: int
    boot_ns: int
    _seen: set[str] = field(default_factory=set)
    _last: dict[str, Array] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Name of the node."""
        return f"synthetic-node{self.node:04d}"

    def gpus(self, window: int, ticks: Array) -> Rows:
        """Return a row for each tick and GPU.

        Parameters
        ----------
        ticks
            Seconds since the job's start.
        """
        job, draws = self.job, self.job.random_for("gpus", self.node, window)
        ranks = np.array(job.ranks(self.node))
        shape = (len(ticks), len(ranks))
        busy = np.broadcast_to(job.is_training(ticks)[:, None], shape)
        is_last_attempt = ticks[:, None] >= job.attempts[-1].begin_s
        hot = (ranks == job.straggler)[None, :] & is_last_attempt & busy
        power = np.where(busy, _BUSY_W + draws.normal(0, 22.0, shape), _IDLE_W + draws.normal(0, 0.6, shape))
        power = np.round(np.clip(np.where(hot, power * 0.78, power), 60.0, _LIMIT_W), 3)
        warm = self._warming(power, hot)
        clock = np.where(hot, _THROTTLED_CLOCK, _CLOCK) - _CLOCK_STEP * draws.binomial(6, 0.3, shape)
        clock = np.where(busy, clock, 1_980e6)
        util = np.where(busy, 1.0 - draws.binomial(4, 0.12, shape) / 100, 0.0)
        link = np.where(busy, draws.normal(9.1e10, 4e9, shape), draws.gamma(1.0, 2e4, shape))
        used = np.where(busy, 68_400 * _MIB + 2 * _MIB * draws.poisson(3.0, shape), 612 * _MIB)
        missing = draws.random(shape) < 1e-3  # noqa: PLR2004 - a reading in a thousand fails
        numeric: dict[str, Any] = {
            "node_rank": self.node, "device_index": np.arange(len(ranks)),
            "holder_attempt": np.where(is_last_attempt, len(job.attempts) - 1, 0),
            "holder_rank": ranks, "holder_count": 1,
            "gpu_utilization_ratio": util,
            "memory_utilization_ratio": np.round(util * draws.normal(0.42, 0.02, shape), 2),
            "encoder_utilization_ratio": 0.0, "decoder_utilization_ratio": 0.0,
            "memory_used_bytes": used, "memory_free_bytes": 81_559 * _MIB - used - 510 * _MIB,
            "memory_reserved_bytes": 510 * _MIB, "memory_total_bytes": 81_559 * _MIB,
            "memory_own_bytes": np.maximum(0, used - 612 * _MIB), "bar1_used_bytes": 3 * _MIB,
            "sm_clock_hz": clock, "sm_clock_max_hz": 1_980e6, "memory_clock_hz": 2_619e6,
            "memory_clock_max_hz": 2_619e6,
            "sm_clock_target_hz": 1_980e6, "memory_clock_target_hz": 2_619e6,
            "power_watts": power, "power_limit_watts": _LIMIT_W, "power_limit_default_watts": _LIMIT_W,
            "energy_joules": np.round(self._counter_values("energy", power), 3),
            "temperature_celsius": np.round(warm), "memory_temperature_celsius": np.round(warm * 1.18 + 6),
            "slowdown_temperature_celsius": 87.0, "shutdown_temperature_celsius": 92.0, "performance_state": 0,
            "power_violation_ns": self._counter_values("power", np.floor(busy * draws.gamma(2.0, 9e6, shape))),
            "thermal_violation_ns": self._counter_values("heat", np.floor(hot * draws.normal(6e8, 4e7, shape))),
            "pcie_transmit_bytes_per_s": np.round(np.where(busy, draws.gamma(8.0, 4e7, shape), 2e4) / 1024) * 1024,
            "pcie_receive_bytes_per_s": np.round(np.where(busy, draws.gamma(8.0, 9e7, shape), 2e4) / 1024) * 1024,
            "pcie_link_generation": 5, "pcie_link_width": 16,
            "nvlink_transmit_bytes_per_s": link, "nvlink_receive_bytes_per_s": link * draws.normal(1.0, 0.003, shape),
            "nvlink_transmit_bytes": self._counter_values("sent", (link / 1024).astype(np.int64) * 1024),
            "nvlink_receive_bytes": self._counter_values("got", (link / 1024).astype(np.int64) * 1024),
            "nvlink_active_count": 18,
            "ecc_corrected_volatile_count": self._counter_values("ecc", draws.random(shape) < _CORRECTED),
            "ecc_corrected_aggregate_count": 3, "xid_last": 0, **dict.fromkeys(_ZERO_COUNTERS, 0),
        }  # fmt: skip
        unprofiled = self.node % 16 == 5  # noqa: PLR2004 - a node in sixteen has no DCGM
        for name, level, noise in _PROFILED:
            ratio = np.where(busy, draws.normal(level, noise, shape), 0.0).clip(0, 1)
            numeric[name] = np.round(ratio, 6)
        columns = _columns("gpu_samples", numeric, shape)
        columns["power_watts"] = numbers(power.ravel(), pa.float32(), missing.ravel())
        if unprofiled:
            reason = json.dumps({name: "no DCGM" for name, _, _ in _PROFILED}, separators=(",", ":"))
            columns |= {name: pa.nulls(power.size, pa.float32()) for name, _, _ in _PROFILED}
            columns["unavailable"] = _repeat_text(reason, power.size)
        device = np.broadcast_to(np.arange(len(ranks)), shape).ravel()
        identities = [job.identity("GPU", int(rank)) for rank in ranks]
        columns |= {
            "host": _repeat_text(self.host, power.size),
            "source": _repeat_text("nvml" if unprofiled else "dcgm", power.size),
            "device_uuid": take_texts(device, [f"GPU-{identity}" for identity in identities]),
            "device_name": _repeat_text(DEVICE_NAME, power.size),
            "board_part_number": _repeat_text("692-2G520-0200-000", power.size),
            "serial_number": take_texts(
                device, [f"16532{int(identity[:8], 16) % 10**8:08d}" for identity in identities]
            ),
            "pci_bus_id": take_texts(device, [f"00000000:{18 + 17 * index:02X}:00.0" for index in range(len(ranks))]),
            "driver_version": _repeat_text("570.124.06", power.size),
            "vbios_version": _repeat_text("96.00.99.00.01", power.size),
            "cuda_version": _repeat_text("12.8", power.size),
            "nvml_version": _repeat_text("12.570.124.06", power.size),
            "holder_run": _repeat_text(job.run, power.size),
            "clock_event_reasons": take_texts(
                np.where(hot, 2, busy).ravel().astype(np.int64), ["gpu_idle", "sw_power_cap", "sw_thermal_slowdown"]
            ),
            "ecc_enabled": truths(np.ones(power.size, bool)),
            "row_remap_pending": truths(np.zeros(power.size, bool)),
            "row_remap_failure": truths(np.zeros(power.size, bool)),
        }
        return self._timed_rows("gpus", ticks, len(ranks), columns, draws)

    def hosts(self, window: int, ticks: Array) -> Rows:
        """Return a row for each tick about the host."""
        job, draws = self.job, self.job.random_for("host", self.node, window)
        busy = job.is_training(ticks)
        shape = (len(ticks), 1)
        user = np.where(busy, draws.normal(0.115, 0.006, len(ticks)), 0.004).clip(0, 1)
        system = np.where(busy, draws.normal(0.021, 0.002, len(ticks)), 0.002).clip(0, 1)
        memory = (2_048 - 190) * _GIB - draws.integers(0, 4 * _GIB, len(ticks)) // 4096 * 4096

        def counter(name: str, rate: float, spread: float = 0.1, quantum: int = 1) -> Array:
            rates = np.where(busy, rate, rate * 0.01) * draws.lognormal(0, spread, len(ticks))
            return self._counter_values(name, (rates / quantum).astype(np.int64)[:, None] * quantum)

        numeric: dict[str, Any] = {
            "node_rank": self.node,
            "holder_attempt": np.where(ticks >= job.attempts[-1].begin_s, len(job.attempts) - 1, 0),
            "cpu_count": 192, "cpu_utilization_ratio": user + system, "cpu_user_ratio": user,
            "cpu_system_ratio": system,
            "cpu_iowait_ratio": draws.binomial(3, 0.1, len(ticks)) / 19_200, "cpu_steal_ratio": 0.0,
            "cpu_interrupt_ratio": draws.binomial(9, 0.3, len(ticks)) / 19_200,
            "cpu_time_s": np.round(self._counter_values("cpu", (192 * (user + system))[:, None]), 2),
            "cpu_frequency_hz": np.round(draws.normal(3.1e9, 2e7, len(ticks)), -3),
            "cpu_temperature_celsius": np.round(draws.normal(58, 1, len(ticks))),
            "load_average_1m": np.round(draws.normal(27, 0.5, len(ticks)), 2),
            "load_average_5m": np.round(draws.normal(27, 0.1, len(ticks)), 2),
            "load_average_15m": np.round(draws.normal(27, 0.03, len(ticks)), 2),
            "process_running_count": draws.poisson(26, len(ticks)),
            "process_blocked_count": draws.poisson(0.05, len(ticks)),
            "context_switch_count": counter("switches", 41_000),
            "memory_total_bytes": 2_048 * _GIB, "memory_used_bytes": 2_048 * _GIB - memory - 96 * _GIB,
            "memory_available_bytes": memory + 64 * _GIB, "memory_cached_bytes": 96 * _GIB,
            "memory_dirty_bytes": draws.poisson(800, len(ticks)) * 4096, "memory_shared_bytes": 18 * _GIB,
            "swap_total_bytes": 0, "swap_used_bytes": 0, "swap_in_bytes": 0, "swap_out_bytes": 0, "oom_kill_count": 0,
            "major_fault_count": counter("major", 0.4), "minor_fault_count": counter("minor", 9_000),
            "disk_read_bytes": counter("read", 2.4e8, 0.3, 4096),
            "disk_write_bytes": counter("written", 3e6, 0.6, 4096),
            "disk_read_count": counter("reads", 1_900, 0.3), "disk_write_count": counter("writes", 120, 0.6),
            "filesystem_used_bytes": 410 * _GIB + counter("disk", 40_000, 0.2, 4096),
            "filesystem_total_bytes": 3_500 * _GIB,
            "network_receive_bytes": counter("received", 2.1e8, 0.2),
            "network_transmit_bytes": counter("sent to", 6e5, 0.3),
            "network_receive_packet_count": counter("packets in", 26_000, 0.2),
            "network_transmit_packet_count": counter("packets out", 3_000),
            "network_receive_error_count": 0, "network_transmit_error_count": 0, "network_receive_dropped_count": 0,
            "network_transmit_dropped_count": 0, "tcp_retransmit_count": counter("retransmitted", 0.8, 0.5),
            "infiniband_receive_bytes": counter("ib in", 2.9e11, 0.03),
            "infiniband_transmit_bytes": counter("ib out", 2.9e11, 0.03),
            "clock_offset_s": draws.normal(0, 4e-6, len(ticks)).round(9), "uptime_s": 86_400.0 * 9 + ticks,
        }  # fmt: skip
        columns = _columns("host_samples", {name: _to_columns(value) for name, value in numeric.items()}, shape)
        columns |= {
            "host": _repeat_text(self.host, len(ticks)),
            "subject": _repeat_text("host", len(ticks)),
            "boot_id": _repeat_text(job.identity("boot", self.node), len(ticks)),
            "holder_run": _repeat_text(job.run, len(ticks)),
            "clock_synchronized": truths(np.ones(len(ticks), bool)),
        }
        return self._timed_rows("host", ticks, 1, columns, draws)

    def _warming(self, power: Array, hot: Array) -> Array:
        """Return core temperatures, which each second move a twentieth of the way to the value that power implies."""
        targets = 27.0 + 0.052 * power + 22.0 * hot
        current = self._last.get("warmth", np.full(power.shape[1], 33.0))
        result = np.empty(power.shape)
        for tick, target in enumerate(targets):
            current = current + (target - current) / 20.0
            result[tick] = current
        self._last["warmth"] = current
        return result

    def _counter_values(self, name: str, increments: Array) -> Array:
        """Return the readings of a counter, which continue over windows."""
        last = self._last.get(name)
        sums: Array = np.cumsum(increments, axis=0) + (0 if last is None else last)
        if len(sums):
            self._last[name] = sums[-1]
        return sums

    def _timed_rows(self, name: str, ticks: Array, count: int, columns: Columns, draws: np.random.Generator) -> Rows:
        """Return rows with times; all rows of a tick share the time at which the sampler woke."""
        at_ns = self.boot_ns + (ticks * _NS).astype(np.int64) + draws.integers(20_000, 900_000, len(ticks))
        interval_ns = np.diff(
            at_ns, prepend=self._last.get(f"{name} ns", at_ns[:1] - _NS)[-1:] if len(at_ns) else at_ns
        )
        if len(at_ns):
            self._last[f"{name} ns"] = at_ns[-1:]
        fresh = np.zeros(len(ticks), bool)
        fresh[:1] = name not in self._seen
        self._seen.add(name)
        columns["interval_ns"] = numbers(np.repeat(interval_ns, count), pa.int64(), np.repeat(fresh, count))
        times = np.repeat(at_ns, count)
        return Rows(times, np.arange(len(times)), columns, 0)


def _repeat_text(text: str, count: int) -> pa.Array:
    return take_texts(np.zeros(count, np.int64), [text])


def _to_columns(value: Any) -> Any:  # noqa: ANN401 - a number or an array
    return value[:, None] if isinstance(value, np.ndarray) and value.ndim == 1 else value


def _columns(table: str, values: dict[str, Any], shape: tuple[int, ...]) -> Columns:
    """Return numeric columns, broadcast to (ticks, devices), in the types of the contract."""
    schema = arrow_schema(contract(table), segment=True)
    return {
        name: numbers(np.broadcast_to(value, shape).ravel(), schema.field(name).type) for name, value in values.items()
    }
