"""A page of sections, written as one self-contained HTML file, a Markdown file and PNG files."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from idode.errors import InputError, one_line
from idode.runs.folder import REPORT_FILES
from idode.storage import write_atomically

__all__ = ["Section", "Table", "check_folder", "render_html", "render_markdown", "write_page"]

ABOUT = "The run"  # heading of the facts
STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f7f8fa; color: #2d3748;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 28px; font-weight: 650; margin: 0 0 4px; }
h2 { font-size: 19px; font-weight: 620; margin: 0 0 12px; }
p.lead { color: #5a6578; margin: 0 0 28px; overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid #e2e6ec; border-radius: 10px;
  padding: 24px 28px; margin: 0 0 24px; }
img { display: block; width: 100%; height: auto; margin: 0 auto 12px; }
img.small { max-width: 560px; image-rendering: pixelated; }
p.caption { color: #5a6578; font-size: 14px; margin: 0; }
.wide { overflow-x: auto; }
.wide td:first-child { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; margin: 0 0 12px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 12px; border-bottom: 1px solid #e9edf2; }
th:first-child, td:first-child { text-align: left; }
th { color: #5a6578; font-weight: 600; border-bottom-color: #cbd3de; }
table.facts td { text-align: left; overflow-wrap: anywhere; }
table.facts td:first-child { color: #5a6578; white-space: nowrap; width: 1%; }
.words th:last-child, .words td:last-child { text-align: left; min-width: 15em; }
footer { color: #8390a3; font-size: 13px; }
@media (max-width: 600px) {
  main { padding: 24px 10px 40px; }
  section { padding: 16px 14px; }
  th, td { padding: 6px; }
  .wide td:first-child, table.facts td:first-child { white-space: normal; }
  .wide td:first-child { min-width: 7em; overflow-wrap: anywhere; }
  table.facts td:first-child { width: 40%; }
}
"""


@dataclass(frozen=True)
class Table:
    """Text in rows under a header; the first column names the row, ``words`` ends it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: bool = False  # the last column is a sentence, not a number


@dataclass(frozen=True)
class Section:
    """A heading, a picture or a table or both, and a caption.

    ``key`` is the name of the PNG file; ``pixelated`` pictures are enlarged without smoothing.
    """

    key: str
    title: str
    caption: str
    png: bytes | None = None
    table: Table | None = None
    pixelated: bool = False


def render_html(
    title: str,
    lead: str,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    footer: str,
    about: str = ABOUT,
) -> str:
    """The page as HTML with the pictures inside."""
    rows = "".join(f"<tr><td>{_e(k)}</td><td>{_e(v)}</td></tr>" for k, v in facts.items())
    body = "\n".join(_section(s) for s in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="idode">
<title>{_e(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_e(title)}</h1>
<p class="lead">{_e(lead)}</p>
<section id="run"><h2>{_e(about)}</h2><table class="facts">{rows}</table></section>
{body}
<footer>{_e(footer)}</footer>
</main>
</body>
</html>
"""


def _e(text: str) -> str:
    return html.escape(text)


def _section(section: Section) -> str:
    parts = [f'<section id="{_e(section.key)}"><h2>{_e(section.title)}</h2>']
    if section.png is not None:
        data = base64.b64encode(section.png).decode()
        kind = ' class="small"' if section.pixelated else ""
        alt = _e(section.title)
        parts.append(f'<img{kind} alt="{alt}" src="data:image/png;base64,{data}">')
    if section.table is not None:
        head = "".join(f"<th>{_e(cell)}</th>" for cell in section.table.header)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>"
            for row in section.table.rows
        )
        kind = ' class="words"' if section.table.words else ""
        parts.append(f'<div class="wide"><table{kind}><tr>{head}</tr>{rows}</table></div>')
    parts.append(f'<p class="caption">{_e(section.caption)}</p></section>')
    return "\n".join(parts)


def render_markdown(
    title: str,
    lead: str,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    footer: str,
    about: str = ABOUT,
) -> str:
    """The page as Markdown, which refers to the pictures as files."""
    run = Table((about.lower(), ""), tuple(facts.items()))
    parts = [f"# {_m(title)}", _m(lead), _rows(run)]
    for section in sections:
        parts.append(f"## {_m(section.title)}")
        if section.png is not None:
            parts.append(f"![{_m(section.title)}]({section.key}.png)")
        if section.table is not None:
            parts.append(_rows(section.table))
        parts.append(_m(section.caption))
    return "\n\n".join([*parts, _m(footer)]) + "\n"


def _m(text: str) -> str:
    """Text that is text in Markdown too: a configuration may hold tags and links."""
    for mark, escaped in {"\\": "\\\\", "<": "&lt;", "[": "\\[", "]": "\\]"}.items():
        text = text.replace(mark, escaped)
    return one_line(text)


def _rows(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_m(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join(
        [line(table.header), "|---" * len(table.header) + "|", *map(line, table.rows)]
    )


def write_page(
    folder: Path,
    title: str,
    lead: str,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    footer: str,
    about: str = ABOUT,
    names: Sequence[str] = REPORT_FILES[:2],
) -> Path:
    """Write the page and its pictures to a folder, replacing files of the same names.

    The HTML file is written last, so that a folder which has one is complete.

    Args:
        folder: Created where it does not exist.
        title: Heading of the page.
        lead: One sentence below it.
        facts: Names and values of the first table.
        sections: The rest of the page.
        footer: Last line.
        about: Heading of the first table.
        names: Of the HTML and the Markdown file.

    Returns:
        The path of the HTML file.
    """
    content = title, lead, facts, sections, footer, about
    page, text = (folder / name for name in names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            if section.png is not None:
                write_atomically(folder / f"{section.key}.png", section.png, sync=False)
        write_atomically(text, render_markdown(*content))
        write_atomically(page, render_html(*content))
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror}): give a folder you may write to"
        ) from None
    return page


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder with other files than those of a report, or with a report unless forced."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder for the report")
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # Hidden files are what a process killed while writing leaves behind.
    names = {name for name in found if not name.startswith(".")}
    if others := sorted(names - set(REPORT_FILES)):
        raise InputError(
            f"{folder} holds {others[0]}, which is not part of a report: give another folder"
        )
    if names and not force:
        raise InputError(f"{folder} holds a report: give another folder, or --force to replace it")
