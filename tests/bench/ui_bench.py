"""Measures `ranklake ui`: zooming, first paint, delay of a live step, many viewers; each in CPU time, too.

    zoom     a chart of 100,000 values in headless Chromium (software rendering), zoomed frame by frame by keys: the
             times between frames, and the CPU time of the browser a frame (all of its processes)
    paint    the page of a run of 10,000 steps on 512 ranks: first byte, first contentful paint, whole page; cold (a
             server that just started) and warm (kept by table versions), and CPU time of the server; the limit is
             a page of one word that no server sends
    live     from the end of a step until a browser shows it
    viewers  50 at once, then 200: time until an answer (p50, p95, most), CPU time an answer, memory of the server

Wall times depend on what else the machine does; its load average is told with them.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
import psutil
import pyarrow as pa
from live_child import Child
from opened import chromium
from rollup_inputs import NOON, append
from ui_client import ui_process
from wide_site import steps_of

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html import run_pages

RUN, LONG = "wide", "own/long"
FRAMES = 120
EMPTY = "data:text/html,<p>One word</p>"
ZOOM = """
async (frames) => {
    const times = [];
    const plot = document.querySelector(".plot");
    plot.focus();
    let last = await new Promise(requestAnimationFrame);
    for (let at = 0; at < frames; at++) {
        plot.dispatchEvent(new KeyboardEvent("keydown", { key: at % 12 < 6 ? "+" : "-", bubbles: true }));
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}
"""
PAINTED = """
() => new Promise((done) => new PerformanceObserver((list) => {
    const [page] = performance.getEntriesByType("navigation");
    done({ byte_ms: page.responseStart, paint_ms: list.getEntriesByName("first-contentful-paint")[0]?.startTime,
           whole_ms: page.responseEnd });
}).observe({ type: "paint", buffered: true }))
"""


def long_lake(folder, ranks, steps, values):
    """Return a lake of a run of so many steps and ranks, and of a metric with so many values."""
    place = folder / "lake"
    if place.exists():
        return Lake.open(str(place))
    lake = Lake.create(str(place))
    at = np.arange(values)
    noise = np.random.default_rng(1).normal(scale=0.1, size=values)
    columns = {
        "run": pa.array([RUN] * values), "attempt": np.zeros(values, np.int32), "rank": np.zeros(values, np.int32),
        "incarnation": np.full(values, 9), "segment": np.zeros(values, np.int32), "slot": at.astype(np.int32),
        "ts": np.datetime64(NOON.replace(tzinfo=None), "us") + at * np.timedelta64(100, "ms"),
        "date": [NOON.date()] * values, "metric": pa.array([LONG] * values), "step": at,
        "value": 3 / (1 + at / 1000) + noise,
    }  # fmt: skip
    schema = arrow_schema(contract("scalars"))
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(values, field.type)
        for field in schema
    ]
    append(lake, "scalars", pa.Table.from_arrays(arrays, schema=schema))
    append(lake, "runs", [
        {"run": RUN, "incarnation": 1, "ts": NOON, "world_size": ranks, "job": "wide", "config": '{"lr": 0.1}'}
    ])  # fmt: skip
    append(lake, "steps", steps_of(RUN, ranks, steps))
    run_rollups(lake)
    return lake


def cpu_s(process):
    """Return the CPU time of a process and of those that it began."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def browser_of_this_process():
    """Return the driver of the browser, with all of its processes."""
    return next(child for child in psutil.Process().children() if "playwright" in " ".join(child.cmdline()))


def zoom(url):
    """Return figures of zooming."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{url}explore/?run={RUN}&metric={LONG}&parts=2000")
        page.wait_for_function("() => document.querySelector('.plot')?.dataset.drawn", timeout=120_000)
        driver = browser_of_this_process()
        idle = cpu_s(driver)
        empty = page.evaluate(ZOOM.replace("plot.dispatchEvent", "(() => {})"), FRAMES)
        begun = cpu_s(driver)
        times = sorted(page.evaluate(ZOOM, FRAMES))
        spent = cpu_s(driver) - begun
    return {
        "frames": FRAMES, "frame_p50_ms": times[len(times) // 2], "frame_p95_ms": times[int(len(times) * 0.95)],
        "frame_most_ms": times[-1], "cpu_ms_a_frame": 1000 * spent / FRAMES,
        "cpu_ms_an_empty_frame": 1000 * (begun - idle) / len(empty),
    }  # fmt: skip


def painted(browser, url):
    """Return when a page in a context of its own was first painted, and whole."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(url, timeout=120_000)
    told = page.evaluate(PAINTED)
    context.close()
    return told


def paint(lake):
    """Return figures of first paint, cold and warm, and of the server's CPU time."""
    told = {}
    path = run_pages.href(RUN)
    with ui_process(lake) as (process, url), chromium() as browser:
        server = psutil.Process(process.pid)
        browser.new_page().goto(f"{url}serving/", timeout=120_000)  # the process has its modules and its browser
        for state, address in (("limit", EMPTY), ("cold", url + path), ("warm", url + path)):
            begun = cpu_s(server)
            told |= {f"{state}_{name}": value for name, value in painted(browser, address).items()}
            told[f"{state}_server_cpu_ms"] = 1000 * (cpu_s(server) - begun)
    return told


def live(lake, folder):
    """Return the delay of ten steps until a browser shows them."""
    places = SimpleNamespace(spool=folder / "spool", local=folder / "local")
    child = Child(places)
    child.record(0)
    delays = []
    with ui_process(lake, environment={"RANKLAKE_LOCAL_SPOOL": str(places.local)}) as (_, url), chromium() as browser:
        page = browser.new_page()
        page.goto(f"{url}live/?run=live")
        shown = "step => document.querySelector('#tiles dd')?.textContent === step"
        page.wait_for_function(shown, arg="0", timeout=120_000)
        for step in range(1, 11):
            ended_ns = child.record(step)
            page.wait_for_function(shown, arg=str(step), timeout=60_000)
            delays.append((time.time_ns() - ended_ns) / 1e9)
    child.close()
    return {"delay_p50_s": sorted(delays)[5], "delay_most_s": max(delays)}


@contextmanager
def followers(url, count):
    """Give so many that follow what is recorded, each by a connection that stays."""
    due, heard = threading.Event(), []

    def follow():
        with urllib.request.urlopen(f"{url}events?run=x", timeout=60) as stream:
            while not due.is_set():
                heard.append(stream.readline())

    threads = [threading.Thread(target=follow, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield heard
    due.set()
    for thread in threads:
        thread.join(10)


def viewers(lake, count, rounds=4):
    """Return times of answers to so many viewers at once, each of whom looks at five addresses and follows a run."""
    paths = (
        run_pages.href(RUN), "runs/", f"explore/?run={RUN}&metric=loss",
        f"explore/points.json?run={RUN}&metric=loss&parts=800",
        f"explore/points.json?run={RUN}&metric={LONG}&parts=800",
    )  # fmt: skip
    with ui_process(lake) as (process, url), followers(url, count):
        server = psutil.Process(process.pid)

        def look(viewer):
            mine = []
            for turn in range(rounds * len(paths)):
                begun = time.monotonic()
                address = url + paths[(viewer + turn) % len(paths)]
                with urllib.request.urlopen(address, timeout=300) as answer:
                    answer.read()
                mine.append(time.monotonic() - begun)
            return mine

        begun, started = cpu_s(server), time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            each = list(pool.map(look, range(count)))
        spent, took = cpu_s(server) - begun, time.monotonic() - started
        memory = server.memory_info().rss
    times = sorted(one for mine in each for one in mine)
    return {
        "viewers": count, "answers": len(times), "took_s": took, "p50_s": times[len(times) // 2],
        "p95_s": times[int(len(times) * 0.95)], "most_s": times[-1],
        "slowest_viewer_s": max(map(sum, each)), "fastest_viewer_s": min(map(sum, each)),
        "cpu_ms_an_answer": 1000 * spent / len(times), "server_rss_mb": memory / 1e6,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["zoom", "paint", "live", "viewers"], action="append")
    parser.add_argument("--folder", type=Path, help="where the lake is kept, and found again")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--values", type=int, default=100_000)
    options = parser.parse_args()
    parts = options.part or ["zoom", "paint", "live", "viewers"]
    told = {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="ranklake-bench-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lake = long_lake(folder, options.ranks, options.steps, options.values)
        for part in parts:
            if part == "zoom":
                with ui_process(lake) as (_, url):
                    told[part] = zoom(url)
            elif part == "paint":
                told[part] = paint(lake)
            elif part == "live":
                told[part] = live(lake, Path(scratch))
            else:
                told[part] = [viewers(lake, count) for count in (50, 200)]
            print(json.dumps({part: told[part]}), file=sys.stderr)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
