"""The gateway's own small HTML pages: one look, no scripts, nothing from elsewhere."""

from html import escape
from typing import Final

from starlette.responses import HTMLResponse

# The pages have one inline style sheet and nothing else: no script may run, nothing is fetched.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6b7a; --line: #dfe4ea; --paper: #fff;
  --tint: #f5f7f9; --accent: #0b6e4f; --stop: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #9aa7b4; --line: #313c47; --paper: #161c22; --tint: #1e262e;
    --accent: #5cc8a1; --stop: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
nav { font-size: .9rem; color: var(--soft); }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .6rem 0 .4rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { margin: .4rem 0 1rem; }
a { color: var(--accent); }
code, pre { font: .875em/1.55 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
code { background: var(--tint); padding: .1em .35em; border-radius: 4px; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 8px; padding: 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre code { background: none; padding: 0; }
table { width: 100%; border-collapse: collapse; font-size: .95rem; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem; }
th, td { padding: .5rem .75rem .5rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.code { white-space: nowrap; }
.soft { color: var(--soft); }
.badge { display: inline-block; padding: .1em .6em; border-radius: 99px; border: 1px solid currentColor;
  font-size: .8rem; margin-right: .4rem; white-space: nowrap; }
.stop { color: var(--stop); } .go { color: var(--accent); }
"""


def page(title: str, body: str, *, home: str) -> HTMLResponse:
    """Answer with a page. `title` is text, `body` is HTML whose parts are escaped; `home` leads to /."""
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Fencepost</title>"
        f'<link rel="icon" href="{home}docs/assets/favicon-32x32.png"><style>{_STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )
    return HTMLResponse(html, headers=_HEADERS)
