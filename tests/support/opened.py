"""Pages as a browser opens them: what it took until one could read and use them."""

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass

BEGUN = """
    window.longTasks = [];
    new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((one) => [one.startTime, one.duration])))
        .observe({ type: "longtask", buffered: true });
    window.drawnAt = [];
    document.addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
        for (const one of changes) if (one.target.dataset.drawn && !drawnAt.some(([place]) => place === one.target)) {
            const box = one.target.getBoundingClientRect();
            drawnAt.push([one.target, performance.now(), box.top < innerHeight && box.bottom > 0]);
        }
    }).observe(document, { attributeFilter: ["data-drawn"], subtree: true }));
"""
"""To be run before a page's own scripts: keeps tasks over 50 ms, and when each plot was drawn and was on the screen."""
_TOLD = """
    () => {
        const [page] = performance.getEntriesByType("navigation");
        const at = drawnAt.map(([, when]) => when);
        const seen = drawnAt.filter(([, , isSeen]) => isSeen).map(([, when]) => when);
        return {
            content_ms: page.domContentLoadedEventEnd, load_ms: page.loadEventEnd,
            plots: at.length, first_ms: at.length ? Math.min(...at) : null, last_ms: at.length ? Math.max(...at) : null,
            seen: seen.length, seen_ms: seen.length ? Math.max(...seen) : null,
            blocked_ms: longTasks.reduce((sum, [, length]) => sum + length - 50, 0),
            longest_ms: Math.max(0, ...longTasks.map(([, length]) => length)),
            elements: document.querySelectorAll("*").length,
        };
    }
"""


@dataclass(frozen=True)
class Opened:
    """What opening a page took, in milliseconds since its navigation began; plots that it has, and that are on screen.

    seen_ms is when the last plot on the screen was drawn: then the page can be read and used.
    """

    content_ms: float
    load_ms: float
    plots: int
    first_ms: float | None
    last_ms: float | None
    seen: int
    seen_ms: float | None
    blocked_ms: float
    longest_ms: float
    elements: int

    @property
    def usable_ms(self):
        """When the page could be read and used."""
        return max(self.content_ms, self.seen_ms or 0.0)


@contextmanager
def chromium():
    """Give headless Chromium: Debian's, or the one that CHROMIUM names."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


def drawn(page):
    """Wait until the charts and maps of a page are drawn."""
    for chart in page.query_selector_all("[data-chart], [data-heat]"):
        page.wait_for_function("chart => chart.dataset.drawn", arg=chart)


def opened(browser, url, width=1440, height=900):
    """Open a page in a browser's new context, which has nothing of it in its cache; return what that took."""
    context = browser.new_context(viewport={"width": width, "height": height})
    context.add_init_script(BEGUN)
    page = context.new_page()
    page.goto(url)
    drawn(page)
    found = Opened(**page.evaluate(_TOLD))
    context.close()
    return found
