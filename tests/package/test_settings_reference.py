"""The reference of settings: each key of each section, from the docstring of the field that declares it."""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

from click.testing import CliRunner

from ranklake.config import Config
from ranklake.lake.store.writers import Prefix
from ranklake.settings_reference import field_docs, main, reference

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Sample:
    """A section."""

    plain: int = 3
    """How many ``rows``
    there are."""
    silent: str = ""

    other: str = field(default="", metadata={"variable": "RANKLAKE_OTHER"})
    """Another."""

    @property
    def derived(self) -> str:
        """No key."""
        return ""


def test_a_field_is_described_by_the_text_below_it():
    """The text below a field is one line of Markdown; a field without one, and what is no field, are left out."""
    assert field_docs(Sample) == {"plain": "How many `rows` there are.", "other": "Another."}


def test_every_key_is_described():
    """Each key of each section says what it is, so that the reference can."""
    kinds = [item.default_factory for item in fields(Config) if is_dataclass(item.default_factory)]
    assert len(kinds) > 10
    for kind in (*kinds, Prefix):
        assert field_docs(kind).keys() == {item.name for item in fields(kind)}, kind


def test_the_reference_is_up_to_date(tmp_path):
    """The page in the repository is what the fields say; another one is told, and written anew when asked."""
    pages = (ROOT / "docs/settings.md", ROOT / "docs/settings-capture.md")
    texts = (reference(), reference(of_capture=True))
    assert tuple(page.read_text(encoding="utf-8") for page in pages) == texts, "run make catalog"
    for key in ("- `prices` (text, `RANKLAKE_PRICES`): Price table", "## `[[spool.prefixes]]`\n", "default `2GiB`"):
        assert (key in texts[0]) != (key in texts[1])
    old, capture = tmp_path / "settings.md", tmp_path / "settings-capture.md"
    old.write_text("old")
    asked = [CliRunner().invoke(main, [option, "--page", str(old)]) for option in ("--check", "--write", "--check")]
    assert [(one.exit_code, one.output) for one in asked] == [
        (1, f"out of date: {old}\nout of date: {capture}\n"),
        (0, f"wrote {old}\nwrote {capture}\n"),
        (0, ""),
    ]
