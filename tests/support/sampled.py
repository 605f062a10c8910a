"""Samples of devices and hosts made by hand, one process and device or host a call."""

import json
from datetime import timedelta

from rollup_inputs import NOON

LINK = 400 * 10**9
"""Speed of a link, bit/s."""


def gpu_samples(
    count=100, *, device="GPU-1", start=NOON, every_s=1.0, watts=500.0, joules=1e6, incarnation=7, **columns
):
    """Return the rows of one process that samples a device, held throughout; the first tells no interval."""
    return [
        {
            "ts": start + timedelta(seconds=every_s * n),
            "incarnation": incarnation,
            "slot": n,
            "host": "node1",
            "device_uuid": device,
            "source": "nvml",
            "interval_ns": round(every_s * 1e9) if n else None,
            "holder_run": "r1",
            "holder_attempt": 0,
            "holder_rank": 0,
            "holder_count": 1,
            "gpu_utilization_ratio": 0.5,
            "energy_joules": joules + watts * every_s * n,
            **columns,
        }
        for n in range(count)
    ]


def host_samples(count=61, *, host="node1", start=NOON, every_s=10, incarnation=7, **columns):
    """Return a host's rows, held by one run; columns are values, or functions of a row's number."""
    return [
        {
            "ts": start + timedelta(seconds=every_s * n),
            "incarnation": incarnation,
            "slot": n,
            "subject": "host",
            "host": host,
            "boot_id": "boot",
            "interval_ns": every_s * 10**9 if n else None,
            "holder_run": "r1",
            "holder_attempt": 0,
            **{name: value(n) if callable(value) else value for name, value in columns.items()},
        }
        for n in range(count)
    ]


def with_links(host, *, at=0, down=(), speeds=(), count=61, **names):
    """Return a host's samples: from sample `at` on, these links are down, or have other speeds."""

    def links(n):
        state = {name: {"up": up, "bits_per_s": LINK, "make": "MT4129"} for name, up in names.items()}
        for name in down if n >= at else ():
            state[name]["up"] = False
        for name, speed in dict(speeds).items() if n >= at else ():
            state[name]["bits_per_s"] = speed
        return json.dumps(state)

    return host_samples(count, host=host, links=links)
