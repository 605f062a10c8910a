"""Measures how soon pages of a site can be read and used: in headless Chromium, each in a context of its own.

    content  milliseconds from the navigation's start until the content is there (DOMContentLoaded)
    first    until the first plot is drawn
    usable   until every plot on the screen is drawn
    all      until those further down are drawn, too, which are drawn when there is nothing else to do
    longest  the longest task, for which a click has to wait; blocked: what tasks took beyond 50 ms each

Without a site it makes one: a day of 4,096 GPUs, in one run. Times are the least of the rounds; bytes are those of the
page, without the assets, which all pages share.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from opened import chromium, opened
from wide_site import wide_site

WIDTH = 34


def measure(site, rounds):
    """Return what opening took by page, of the least usable round."""
    with chromium() as browser:
        return {
            str(path.relative_to(site)): min(
                (opened(browser, f"file://{path.resolve()}") for _ in range(rounds)), key=lambda one: one.usable_ms
            )
            for path in sorted(site.rglob("*.html"))
        }


def told(name, size, one):
    """Return a line of the table."""
    shown = name if len(name) <= WIDTH else f"{name[: WIDTH - 1]}…"
    numbers = (one.content_ms, one.first_ms, one.usable_ms, one.last_ms, one.longest_ms, one.blocked_ms)
    times = "".join(f"{'-' if value is None else format(value, '.0f'):>9}" for value in numbers)
    return f"{shown:<{WIDTH}}{times}{one.seen:>6}/{one.plots:<4}{one.elements:>8,}{size / 1000:>8,.0f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, help="folder of a site; by default one is made")
    parser.add_argument("--gpus", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranklake-bench-") as scratch:
        site = options.site
        if site is None:
            print(f"making the site of {options.gpus:,} GPUs…", file=sys.stderr)
            wide_site(Path(scratch), options.gpus)
            site = Path(scratch) / "out"
        found = measure(site, options.rounds)
        sizes = {name: (site / name).stat().st_size for name in found}
    if options.json:
        print(json.dumps({name: {**asdict(one), "bytes": sizes[name]} for name, one in found.items()}))
        return
    heads = "".join(f"{head:>9}" for head in ("content", "first", "usable", "all", "longest", "blocked"))
    print(f"{'page, ms':<{WIDTH}}{heads}{'plots':>8}   elements      kB")
    for name, one in found.items():
        print(told(name, sizes[name], one))
    print(f"\nusable after {max(one.usable_ms for one in found.values()):.0f} ms at the latest (1,000 asked)")


if __name__ == "__main__":
    main()
