"""The section that cannot be made: its policies or roles cannot be used, or what it reads is not as it should be."""

from ranklake.views.html.site import Section, broken


def unusable(section: str, lake: str, what: str, why: str) -> Section:
    """Return a section that says why it can say nothing else."""
    return broken(section, lake, f"{what} cannot be used: {why}")
