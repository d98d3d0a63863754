"""How a report looks: one style sheet, light and dark."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --ink: #17212b; --grey: #5a6877; --ground: #fbfcfd; --card: #ffffff;
  --rule: #dfe4e9; --good: #1d5a98; --bad: #8f1d13; --open: #5a6877; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --grey: #9fadba; --ground: #12181e; --card: #1a222a;
  --rule: #2d3842; --good: #7db4e6; --bad: #f0a294; --open: #9fadba; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
.verdict p { margin: .5rem 0; padding: .8rem 1rem; background: var(--card); border: 1px solid var(--rule);
  border-left: 5px solid var(--open); border-radius: 6px; font-size: 1.05rem; overflow-wrap: anywhere; }
.verdict p.compatible { border-left-color: var(--good); }
.verdict p.incompatible { border-left-color: var(--bad); border-left-style: double; }
.verdict p.not-decided { border-left-style: dashed; }
figure { margin: 1rem 0; }
figure > img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 6px;
  border: 1px solid var(--rule); }
@media (prefers-color-scheme: dark) { figure > img { filter: brightness(.9); } }
figcaption { color: var(--grey); font-size: .88rem; margin-top: .5rem; max-width: 44rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 60%; }
caption { text-align: left; color: var(--grey); padding-bottom: .4rem; }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--rule); text-align: left; white-space: nowrap; }
thead th { color: var(--grey); font-weight: 500; }
tbody th { font-weight: 600; white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
.number { text-align: right; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--grey); }
.lost { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 1rem; }
.lost li { display: flex; gap: .5rem; background: var(--card); border: 1px solid var(--rule); border-radius: 6px;
  padding: .6rem; max-width: 100%; }
.lost figure { margin: 0; width: 96px; min-width: 0; }
.lost .thumbnail { width: 100%; aspect-ratio: 1; object-fit: contain; }
.lost figcaption { font-size: .78rem; text-align: center; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .35rem 1.25rem; margin: 0; }
dt { color: var(--grey); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 32rem) { main { padding-top: 1.5rem; } dl { grid-template-columns: 1fr; gap: .1rem; }
  dd { margin-bottom: .6rem; } }
@media print { body { background: #ffffff; } details > * { display: block; } }
"""
