"""The section that cannot be made: its policies or roles cannot be used, or what it reads is not as it should be."""

from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section


def unusable(section: str, lake: str, what: str, why: str) -> Section:
    """Return a section that says why it can say nothing else."""
    return broken(section, lake, f"{what} cannot be used: {why}")


def broken(section: str, lake: str, headline: str) -> Section:
    """Return a section of one page that has nothing but a headline."""
    title, home = section.capitalize(), f"{section}/index.html"
    told = {"lake": lake, "headline": headline, "state": "failing", "hint": "", "needs": [], "more": 0,
            "figures": [], "charts": [], "tables": []}  # fmt: skip
    digest = digest_of(told)
    page = Page(home, title, "overview.html", lambda: told, digest)
    return Section(section, title, "failing", headline, home, (page,), (Entry(title, "page", "failing", home),))
