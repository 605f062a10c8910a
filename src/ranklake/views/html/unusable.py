"""The section of a lake whose policies or roles cannot be used: nothing of what they say is known."""

from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section


def unusable(section: str, lake: str, what: str, why: str) -> Section:
    """Return a section that says why it can say nothing else."""
    title, home = section.capitalize(), f"{section}/index.html"
    headline = f"{what} cannot be used: {why}"
    told = {"lake": lake, "headline": headline, "state": "failing", "hint": "", "needs": [], "more": 0,
            "figures": [], "charts": [], "tables": []}  # fmt: skip
    digest = digest_of(told)
    page = Page(home, title, "overview.html", lambda: told, digest)
    return Section(section, title, "failing", headline, home, (page,), (Entry(title, "page", "failing", home),))
