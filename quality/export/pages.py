"""Data Docs that load nothing from elsewhere: no script, no style sheet, font or image of another host.

Great Expectations' pages fetch some fifteen files from content networks, and draw their index by script. Here scripts
go, pages forbid all loading (Content-Security-Policy), and the index is a plain list of links.
"""

import re
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

_POLICY: Final = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'\">"
)
_STYLE: Final = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; max-width: 80rem; }
table { border-collapse: collapse; } th, td { border: 1px solid #ccc; padding: .3rem .6rem; vertical-align: top; }
.fa-check-circle::before { content: "passed"; color: #1a7f37; } .fa-times::before { content: "failed"; color: #b42318; }
.fa-exclamation-triangle::before { content: "errored"; color: #b54708; }
.modal, .ge-walkthrough-modal, nav.navbar, .cta-footer, .action-card, button { display: none; }
</style>"""
_GONE: Final = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<script\b.*?</script\s*>",
        r"<link\b[^>]*>",
        r"<(?:img|iframe|source|video|audio|embed|object)\b[^>]*\bsrc(?:set)?\s*=\s*[\"']?\s*(?:https?:)?//[^>]*>",
        r"@import\b[^;<]*;",
    )
)
_REMOTE_URL: Final = re.compile(r"url\(\s*['\"]?\s*(?:https?:)?//[^)]*\)", re.IGNORECASE)
_TAG: Final = re.compile(r"<[^>]*>")
_HANDLER: Final = re.compile(r"[\s/]on\w+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s>]*)", re.IGNORECASE)
_HEAD: Final = re.compile(r"<head[^>]*>", re.IGNORECASE)


def make_local(site: Path) -> None:
    """Rewrite all pages of a site, and its index."""
    for page in sorted(site.rglob("*.html")):
        page.write_text(local(page.read_text(encoding="utf-8")), encoding="utf-8")
    for sheet in sorted(site.rglob("*.css")):
        sheet.write_text(_REMOTE_URL.sub("none", sheet.read_text(encoding="utf-8")), encoding="utf-8")
    (site / "index.html").write_text(_index(site), encoding="utf-8")


def local(text: str) -> str:
    """Return a page without what it would load or run."""
    for gone in _GONE:
        text = gone.sub("", text)
    text = _REMOTE_URL.sub("none", text)
    text = _TAG.sub(lambda found: _HANDLER.sub("", found[0]), text)
    return _HEAD.sub(lambda found: f"{found[0]}\n{_POLICY}\n{_STYLE}", text, count=1)


def _index(site: Path) -> str:
    results = sorted((site / "validations").rglob("*.html"), reverse=True)
    suites = sorted((site / "expectations").rglob("*.html"))
    lists = "".join(
        f"<h2>{title}</h2><ul>{''.join(_link(path.relative_to(site)) for path in paths)}</ul>"
        for title, paths in (("Validation results", results), ("Expectation suites", suites))
    )
    title = "Data Docs of a ranklake lake"
    head = f'<head>{_POLICY}<meta charset="utf-8"><title>{title}</title>{_STYLE}</head>'
    return f'<!DOCTYPE html>\n<html lang="en">{head}<body><h1>{title}</h1>{lists}</body></html>\n'


def _link(path: Path) -> str:
    words = " · ".join(path.with_suffix("").parts[1:])
    return f'<li><a href="{escape(quote(path.as_posix()))}">{escape(words)}</a></li>'
