"""The HTML of reports: one self-contained page of tables and plots, for wide windows and phones, light and dark."""

import base64
import html
import io
from pathlib import Path

import numpy as np
from PIL import Image

from paddle_ldopt.trainer import write_whole

_STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1,h2{line-height:1.2} h1,p,td,li{overflow-wrap:anywhere} a{color:#0969da}
.row{display:flex;flex-wrap:wrap;gap:0 2.5rem} .row>*{max-width:100%;min-width:0} .row>:has(img){flex:1 1 22rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}
img{width:100%;max-width:40rem} img.small{width:auto;max-width:6rem;display:block}
.wide{overflow-x:auto} .wide :is(td,th){white-space:nowrap}
.pairs td{text-align:left}
.wide td:first-child{white-space:normal;min-width:6rem}
table{border-collapse:collapse;margin:0 0 1rem}
td,th{padding:.2rem .6rem;border-bottom:1px solid #8884;text-align:right}
td:first-child,th:first-child{text-align:left;padding-left:0;overflow-wrap:normal}
@media(max-width:40rem){body{margin:1rem auto} h1{font-size:1.4rem} .wide{font-size:.8em} td,th{padding:.2rem .35rem}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#191919} a{color:#6cb6ff}
img:not(.small){filter:invert(.9) hue-rotate(180deg)}}"""


def write_page(path, title, parts):
    """Write a page: its title and its parts, which are HTML of `section`, `side_by_side` or `paragraph`."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    page = (
        f'<!doctype html><html lang="en">{head}<title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n"
    )
    write_whole(path, page)


def paragraph(text):
    return f"<p>{html.escape(text)}</p>"


def section(title, content):
    """Return a heading in plain text and its content, which is HTML."""
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def side_by_side(*sections):
    """Return sections that stand side by side where the window is wide enough."""
    return f'<div class="row">{"".join(sections)}</div>'


def pairs(values):
    cells = table((), [(name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in values.items()])
    return f'<div class="pairs">{cells}</div>'


def table(header, rows):
    """Return a table of plain text and images; with a header it scrolls sideways where the window is narrow."""
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>' if head else f"<table>{body}</table>"


def _cell(value):
    """Return a cell; a path or the pixels of an image become a thumbnail."""
    if not isinstance(value, (Path, np.ndarray)):
        return html.escape(str(value))
    with Image.open(value) if isinstance(value, Path) else Image.fromarray(value) as opened:
        small = opened.convert("RGB")
    small.thumbnail((96, 96))
    small.save(buffer := io.BytesIO(), format="png")
    name = value.name if isinstance(value, Path) else ""
    return f'<img class="small" alt="" src="{_source(buffer.getvalue())}">{html.escape(name)}'


def _source(png):
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def picture(path):
    return f'<img alt="{html.escape(path.stem)}" src="{_source(path.read_bytes())}">'


def plots(alt, draw, *data, panels=1):
    """Return one image for each panel, drawn by `draw(axes, *data)`."""
    from matplotlib.figure import Figure

    figures = [Figure(figsize=(5, 3), layout="constrained") for _ in range(panels)]
    draw([figure.subplots() for figure in figures], *data)
    return f'<div class="plots">{"".join(_image(alt, figure) for figure in figures)}</div>'


def _image(alt, figure):
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=160)
    return f'<img alt="{alt}" src="{_source(buffer.getvalue())}">'
