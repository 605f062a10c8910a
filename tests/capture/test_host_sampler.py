"""The host sampler: against psutil on the real machine, and against folders of files as other machines have them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.capture.samplers import proc
from ranklake.capture.samplers.host import RARE_NS, SLOW_NS, HostSampler
from ranklake.capture.samplers.sample import NOT_PERMITTED, NOT_THERE, NOT_UNDERSTOOD, Tree
from ranklake.capture.spool.stream_files import StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

SECOND = 10**9
WAITS = """
import sys, threading
threading.Thread(target=sys.stdin.read, daemon=True).start()
sum(range(10**6))
print(flush=True)
threading.Event().wait()
"""

WITHOUT_ROOT = """
import os, pathlib
from ranklake.capture.samplers.host import HostSampler
sampler = HostSampler(dict, pathlib.Path(), ".")
if os.getuid() == 0:
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
print(next(iter(sampler.sample(10**9))).columns["unavailable"])
"""


def write(root, files):
    """Write files by their paths below a root."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(str(text))
    return root


def sampled(sampler, at_s=1, subject="host"):
    """Return the rows of a tick that are about one kind of subject."""
    rows = [row.columns for row in sampler.sample(at_s * SECOND)]
    schema = arrow_schema(contract("host_samples"), segment=True)
    for row in rows:  # every column is the contract's, and every value is of its type
        pa.array([row], pa.struct([schema.field(name) for name in row]))
    return [row for row in rows if row["subject"] == subject]


def unavailable(row):
    """Return why columns are missing."""
    return json.loads(row["unavailable"] or "{}")


def of(root, holders=(), **more):
    """Return a sampler of a folder."""
    return HostSampler(lambda: dict(holders), root, str(root), **more)


# ── the real machine ──


def between(before, found, after, slack=0.0):
    """Say whether a counter read between two readings lies between them."""
    return before - slack <= found <= after + slack


def test_it_agrees_with_psutil(tmp_path):
    """Counters lie between psutil's before and after; sizes are its own, but for what changes meanwhile."""
    sampler = HostSampler(dict, tmp_path)

    def counters():
        found = psutil.disk_io_counters(perdisk=True)
        whole = {path.name for path in Path("/sys/block").iterdir()}
        virtual = ("loop", "ram", "zram", "dm-", "md")
        disks = [c for name, c in found.items() if name in whole and not name.startswith(virtual)]
        nets = [c for name, c in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        times = psutil.cpu_times()
        return {
            "cpu_time_s": times.user + times.nice + times.system + times.irq + times.softirq,
            "context_switch_count": psutil.cpu_stats().ctx_switches,
            "disk_read_bytes": sum(c.read_bytes for c in disks),
            "disk_write_bytes": sum(c.write_bytes for c in disks),
            "disk_read_count": sum(c.read_count for c in disks),
            "disk_write_count": sum(c.write_count for c in disks),
            "disk_read_time_s": sum(c.read_time for c in disks) / 1e3,
            "disk_busy_time_s": sum(c.busy_time for c in disks) / 1e3,
            "network_receive_bytes": sum(c.bytes_recv for c in nets),
            "network_transmit_packet_count": sum(c.packets_sent for c in nets),
            "network_receive_dropped_count": sum(c.dropin for c in nets),
            "swap_in_bytes": psutil.swap_memory().sin,
            "uptime_s": time.time() - psutil.boot_time(),
        }

    before = counters()
    (row,) = sampled(sampler)
    after = counters()
    for name, value in before.items():
        slack = 2.0 if name in {"uptime_s", "cpu_time_s"} else 0.0  # psutil reads some of the sums a moment later
        assert between(value, row[name], after[name], slack), name
    memory = psutil.virtual_memory()
    assert row["memory_total_bytes"] == memory.total
    assert abs(row["memory_available_bytes"] - memory.available) < 1 << 30
    assert row["swap_total_bytes"] == psutil.swap_memory().total
    assert row["cpu_count"] == psutil.cpu_count()
    assert row["load_average_15m"] == pytest.approx(psutil.getloadavg()[2], abs=1)
    usage = psutil.disk_usage(str(tmp_path))
    assert row["filesystem_total_bytes"] == usage.total


def test_it_agrees_with_psutil_about_a_process(tmp_path):
    """Memory, threads, files, CPU time and switches of a real process that waits."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        theirs = psutil.Process(child.pid)
        name = StreamName("run", 1, 5, 9)
        (row,) = sampled(HostSampler(lambda: {child.pid: name}, tmp_path), subject="process")
        assert (row["holder_run"], row["holder_attempt"], row["holder_rank"]) == ("run", 1, 5)
        assert row["process_rss_bytes"] == pytest.approx(theirs.memory_info().rss, rel=0.2)
        assert row["process_thread_count"] == theirs.num_threads() == 2
        assert row["process_open_file_count"] == theirs.num_fds()
        times = theirs.cpu_times()
        assert row["cpu_time_s"] == pytest.approx(times.user + times.system, abs=0.05)
        assert row["uptime_s"] == pytest.approx(time.time() - theirs.create_time(), abs=2)
        assert row["context_switch_count"] <= sum(theirs.num_ctx_switches())
        child.kill()
    assert sampled(HostSampler(lambda: {child.pid: name}, tmp_path), subject="process") == []


def test_cpu_shares_tell_what_a_busy_thread_does(tmp_path):
    """A core kept busy shows in the next row, and the parts are no more than the whole."""
    sampler = HostSampler(dict, tmp_path)
    (first,) = sampled(sampler, 1)
    assert "cpu_utilization_ratio" not in first
    over = time.process_time() + 0.3
    while time.process_time() < over:
        pass
    (row,) = sampled(sampler, 2)
    assert 0 < row["cpu_user_ratio"] <= row["cpu_utilization_ratio"] <= 1
    assert row["interval_ns"] == SECOND


def test_dear_things_are_read_now_and_then(tmp_path):
    """Between, their columns are NULL; what cannot be had is said when it is looked for."""
    sampler = HostSampler(lambda: {os.getpid(): StreamName("r", 0, 0, 1)}, tmp_path)
    subjects = [[row.columns["subject"] for row in sampler.sample(at * SECOND)] for at in range(1, 12)]
    slow = 1 + SLOW_NS // SECOND
    assert "process" in subjects[0]
    assert all(found == ["host"] for found in subjects[1 : slow - 1])
    assert "process" in subjects[slow - 1]
    assert RARE_NS > SLOW_NS


# ── other machines ──


def test_a_machine_without_anything_costs_reasons_and_no_row(tmp_path):
    """Every column is NULL with its reason, and the row is there."""
    (row,) = sampled(of(tmp_path))
    why = unavailable(row)
    assert {why[name] for name in ("cpu_time_s", "memory_total_bytes", "disk_read_bytes", "power_watts")} == {NOT_THERE}
    assert all(row.get(name) is None for name in why)
    assert row["boot_id"] is None


def test_files_of_another_kind_are_not_understood(tmp_path):
    """Nonsense in a file costs its own columns."""
    write(tmp_path, {"proc/stat": "nonsense", "proc/loadavg": "1.0 2.0 3.0 1/2 3", "proc/meminfo": "MemTotal: 1 kB\n"})
    (row,) = sampled(of(tmp_path))
    assert row["load_average_5m"] == 2.0
    assert unavailable(row)["cpu_count"] == unavailable(row)["memory_used_bytes"] == NOT_UNDERSTOOD


def test_a_file_that_may_not_be_read_is_told(tmp_path):
    """As RAPL's counters are to all but root, which the child gives up, as root may read everything."""
    write(tmp_path, {"proc/loadavg": "1 2 3", "proc/meminfo": "MemTotal: 1 kB\n"})
    (tmp_path / "proc/loadavg").chmod(0)
    tmp_path.chmod(0o755)  # it reads from there, as the folders above are root's
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOT], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(told.stdout)["load_average_1m"] == NOT_PERMITTED


def test_infiniband_ports_are_summed_and_told_apart(tmp_path):
    """Data counters are words of four bytes; a counter that one port has not got is left out of it."""
    for device, words in (("mlx5_0", 10), ("mlx5_1", 5)):
        place = f"sys/class/infiniband/{device}/ports/1"
        write(tmp_path, {f"{place}/counters/port_rcv_data": words, f"{place}/counters/port_xmit_wait": 3,
                         f"{place}/state": "4: ACTIVE\n", f"{place}/rate": "400 Gb/sec (4X NDR)\n"})  # fmt: skip
    write(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/hw_counters/rp_cnp_handled": 7})
    (row,) = sampled(of(tmp_path))
    assert row["infiniband_receive_bytes"] == 60
    assert row["infiniband_transmit_wait_count"] == 6
    assert row["infiniband_congestion_notification_count"] == 7
    ports = json.loads(row["infiniband_ports"])
    assert ports["mlx5_1/1"] == {
        "infiniband_receive_bytes": 20,
        "infiniband_transmit_wait_count": 3,
        "rate": "400 Gb/sec (4X NDR)",
        "state": "ACTIVE",
    }


def test_links_tell_whether_they_are_up_and_how_fast(tmp_path):
    """Cards with a device behind them, and InfiniBand ports; a speed of -1 is not told, and bridges are no links."""
    write(tmp_path, {
        "sys/class/net/eth0/operstate": "up\n", "sys/class/net/eth0/speed": "100000\n",
        "sys/class/net/eth1/operstate": "down\n", "sys/class/net/eth1/speed": "-1\n",
        "sys/class/net/eth0/device/vendor": "", "sys/class/net/eth1/device/vendor": "",
        "sys/class/net/docker0/operstate": "up\n", "sys/class/net/docker0/speed": "10000\n",
        "sys/class/infiniband/mlx5_0/hca_type": "MT4129\n", "sys/class/infiniband/mlx5_0/board_id": "MT_0000000838\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
    })  # fmt: skip
    (row,) = sampled(of(tmp_path))
    assert json.loads(row["links"]) == {
        "eth0": {"up": True, "bits_per_s": 100 * 10**9},
        "eth1": {"up": False},
        "mlx5_0/1": {"up": True, "bits_per_s": 400 * 10**9, "make": "MT4129 MT_0000000838"},
        "mlx5_1/1": {"up": False, "bits_per_s": 2_500_000_000},
    }


def test_a_host_without_network_cards_says_so(tmp_path):
    """A container without a network has no links, and the row says why."""
    (row,) = sampled(of(tmp_path))
    assert unavailable(row)["links"] == "no network card"


def test_a_group_of_one_rank_names_it(tmp_path):
    """Groups of one run, such as Slurm's of tasks, are told apart by the rank of each; a shared one names none."""
    group_of = {7: "a", 8: "b", 9: "b", 10: "c"}
    write(tmp_path, {f"proc/{pid}/cgroup": f"0::/{group}\n" for pid, group in group_of.items()})
    write(tmp_path, {f"sys/fs/cgroup/{group}/cpu.stat": "usage_usec 1\n" for group in "abc"})
    holders = {pid: StreamName("r", 0, rank, rank) for rank, pid in enumerate(group_of, start=1)}
    found = [row.get("holder_rank") for row in sampled(of(tmp_path, holders), subject="container")]
    assert sorted(found, key=str) == [1, 4, None]


def test_a_group_of_version_2_has_the_narrowest_limit_of_its_parents(tmp_path):
    """Limits may be set above; throttling and OOM kills are the group's own."""
    group = "sys/fs/cgroup/pod/train"
    write(tmp_path, {
        "proc/7/cgroup": "0::/pod/train\n",
        f"{group}/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
        f"{group}/cpu.stat": "usage_usec 5000000\nnr_periods 20\nnr_throttled 4\nthrottled_usec 1500000\n",
        f"{group}/memory.max": "1000\n", "sys/fs/cgroup/pod/memory.max": "4000\n",
        f"{group}/memory.current": "900\n", f"{group}/memory.events": "low 0\noom 2\noom_kill 1\n",
    })  # fmt: skip
    (row,) = sampled(of(tmp_path, {7: StreamName("r", 0, 0, 1)}), subject="container")
    assert (row["cgroup_cpu_limit"], row["cgroup_memory_limit_bytes"]) == (2.5, 1000)
    assert (row["cgroup_memory_used_bytes"], row["cgroup_oom_kill_count"]) == (900, 1)
    assert (row["cgroup_period_count"], row["cgroup_throttled_count"], row["cgroup_throttled_s"]) == (20, 4, 1.5)
    assert (row["cpu_time_s"], row["holder_run"]) == (5.0, "r")


def test_a_group_of_version_1_and_a_path_that_only_the_host_has(tmp_path):
    """In a container the mount begins at its own group; "no limit" is a huge number there."""
    write(tmp_path, {
        "proc/7/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 1\nnr_throttled 0\nthrottled_time 2000000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    })  # fmt: skip
    (row,) = sampled(of(tmp_path, {7: StreamName("r", 0, 0, 1)}), subject="container")
    assert (row["cgroup_cpu_limit"], row["cgroup_memory_limit_bytes"]) == (None, None)
    assert (row["cgroup_throttled_s"], row["cgroup_memory_used_bytes"]) == (2.0, 5)
    assert unavailable(row) == {"cgroup_oom_kill_count": NOT_THERE}


def test_heat_power_and_energy(tmp_path):
    """The warmest package; the host's meter; energy over a counter that began again."""
    rapl = "sys/class/powercap/intel-rapl:0"
    write(tmp_path, {
        "sys/class/hwmon/hwmon0/name": "coretemp\n", "sys/class/hwmon/hwmon0/temp1_input": "41000",
        "sys/class/hwmon/hwmon1/name": "coretemp\n", "sys/class/hwmon/hwmon1/temp1_input": "66500",
        "sys/class/hwmon/hwmon2/name": "nvme\n", "sys/class/hwmon/hwmon2/temp1_input": "90000",
        "sys/class/hwmon/hwmon3/name": "power_meter\n", "sys/class/hwmon/hwmon3/power1_average": "812000000",
        f"{rapl}/energy_uj": "9000000", f"{rapl}/max_energy_range_uj": "10000000", f"{rapl}:0/energy_uj": "1",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2000000",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3000000",
    })  # fmt: skip
    sampler = of(tmp_path)
    (row,) = sampled(sampler, 1)
    assert (row["cpu_temperature_celsius"], row["power_watts"], row["energy_joules"]) == (66.5, 812.0, 9.0)
    assert row["cpu_frequency_hz"] == 2.5e9
    write(tmp_path, {f"{rapl}/energy_uj": "500000"})
    (row,) = sampled(sampler, 1 + RARE_NS // SECOND)
    assert row["energy_joules"] == 10.5


def test_disk_latency_is_that_of_the_interval(tmp_path):
    """Mean of what was read between two rows; NULL where nothing was written, and partitions are not counted twice."""
    (tmp_path / "sys/block/sda").mkdir(parents=True)
    stats = (
        " 8 0 sda {} 0 80 {} 7 0 8 9 0 50 0\n 8 1 sda1 {} 0 80 {} 7 0 8 9 0 50 0\n 253 0 dm-0 1 0 1 1 1 0 1 1 0 1 0\n"
    )
    sampler = of(write(tmp_path, {"proc/diskstats": stats.format(10, 100, 10, 100)}))
    (row,) = sampled(sampler, 1)
    assert "disk_read_latency_s" not in row
    write(tmp_path, {"proc/diskstats": stats.format(14, 110, 14, 110)})
    (row,) = sampled(sampler, 2)
    assert row["disk_read_latency_s"] == pytest.approx(0.0025)
    assert "disk_write_latency_s" not in row
    assert (row["disk_read_count"], row["disk_read_bytes"], row["disk_busy_time_s"]) == (14, 40960, 0.05)


def test_runs_that_share_a_host_do_not_have_it_alone(tmp_path):
    """The host's row names a run only if all that record are of it."""
    one, other = StreamName("a", 0, 0, 1), StreamName("b", 0, 0, 2)
    (row,) = sampled(of(tmp_path, {1: one, 2: StreamName("a", 0, 1, 3)}))
    assert row["holder_run"] == "a"
    (row,) = sampled(of(tmp_path, {1: one, 2: other}))
    assert "holder_run" not in row


TIMES = st.fixed_dictionaries({kind: st.floats(0, 1e9) for kind in proc.CPU_TIMES})


@given(TIMES, TIMES)
def test_shares_are_shares_whatever_the_counters_do(now, before):
    """Also where the kernel's counters go back."""
    found = proc.cpu_ratios(now, before)
    assert all(0 <= value <= 1 for value in found.values())


def test_a_huge_file_is_not_read_to_its_end(tmp_path):
    """What is no file of the kernel's cannot take all memory."""
    write(tmp_path, {"big": "x" * (3 << 20)})
    assert len(Tree(str(tmp_path)).text("big")) < 2 << 20
