"""How the page looks: from 400 pixels of width on, light and dark as the reader's system is.

Pictures are drawn on white. On a dark page their lightness is turned, which keeps hues: captions name colours. The
contents stay in view in one line, which scrolls where it is too long; what a link leads to keeps clear of it. A link to
a fold opens it.
"""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #fff; --panel: #f4f6f8; --line: #d0d7de;
  --link: #0550ae; --good: #116329; --bad: #a40e26; --dot: #0072b2; --roof: #57606a; --ffma: #a04100;
  --comment: #4d6a4d; --word: #7a2a8c; --text: #0a4a80; --directive: #8a4600; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --paper: #0d1117; --panel: #161b22; --line: #30363d;
    --link: #79b8ff; --good: #56d364; --bad: #ff7b72; --dot: #58a6ff; --roof: #9aa4af; --ffma: #f0883e;
    --comment: #8ddb8c; --word: #d2a8ff; --text: #a5d6ff; --directive: #ffa657; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 78rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
h3 { font-size: 1.1rem; margin: 1.5rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .5rem 0; max-width: 60rem; }
a { color: var(--link); }
nav { display: flex; gap: .3rem 1rem; margin: 1rem -1rem 0; padding: .5rem 1rem; position: sticky; top: 0; z-index: 1;
  overflow-x: auto; scrollbar-width: thin; white-space: nowrap; background: var(--paper);
  border-bottom: 1px solid var(--line); }
:target { scroll-margin-top: 4.2rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem; }
code { background: var(--panel); padding: .1em .3em; border-radius: 3px; }
.wide { overflow-x: auto; max-width: 100%; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .85rem; overflow-wrap: normal; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { background: var(--panel); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
.claims table { min-width: 78rem; }
.claims td:first-child { white-space: nowrap; }
.soft, .missing, figcaption { color: var(--soft); font-size: .9rem; }
.missing { border-left: 3px solid var(--line); padding-left: .6rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; }
img { display: block; height: auto; max-width: max(100%, 60rem); background: #fff; border-radius: 6px; }
@media (prefers-color-scheme: dark) { img { filter: invert(.93) hue-rotate(180deg); } }
.lessons { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.lessons figure { max-width: min(100%, 32rem); }
.lessons img { max-width: 100%; }
svg { display: block; width: 100%; min-width: 38rem; max-width: 52rem; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .bound { fill: none; stroke: var(--roof); stroke-width: 2; }
svg .ffma { stroke: var(--ffma); stroke-dasharray: 6 4; }
svg .dot { fill: var(--dot); }
svg .leader { stroke: var(--soft); stroke-width: .7; }
details { margin: .4rem 0; border: 1px solid var(--line); border-radius: 6px; padding: 0 .7rem; }
summary { cursor: pointer; padding: .4rem 0; }
details:target { border-color: var(--link); }
details:target > summary { list-style-type: disclosure-open; }
details:target::details-content { content-visibility: visible; block-size: auto; }
details[open] > summary, details:target > summary { border-bottom: 1px solid var(--line); margin-bottom: .5rem; }
pre { margin: .5rem 0; padding: .6rem; background: var(--panel); border-radius: 6px; overflow-x: auto;
  overflow-wrap: normal; line-height: 1.4; }
pre.head { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 50rem) { table { width: max-content; } th, td { max-width: 15rem; } }
.k { color: var(--word); } .c { color: var(--comment); } .s { color: var(--text); } .d { color: var(--directive); }
"""
