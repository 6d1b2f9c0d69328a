"""The table as a picture, plain SVG: for each row the ratio to the best peer, and the share of the ceiling.

``python -m bench.kernels.picture RECORD.json`` draws RECORD.svg from a record.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

_LEFT, _WIDTH, _GAP, _SHARE, _ROW, _TOP = 210, 330, 140, 190, 22, 74
_MOST = 2.0  # times the best peer: longer bars are cut, and say so
_OURS, _BEHIND, _INK, _PALE = "#2f6fb2", "#f2b84b", "#24292f", "#57606a"
_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,sans-serif;font-size:12px;fill:#24292f}"
    ".t{font-size:15px;font-weight:600}.m{fill:#57606a}.e{text-anchor:end}"
)


def picture(report: dict[str, Any]) -> str:
    """An SVG of a record of ``bench.kernels_h200``."""
    rows = report["rows"]
    most = min(max([1.0, *(row["ratio"] or 0.0 for row in rows)]), _MOST) * 1.04
    height = _TOP + _ROW * len(rows) + 40
    right = _LEFT + _WIDTH + _GAP
    total = right + _SHARE + 60
    mean, worst = report["geometric_mean"], report["worst"]
    summary = f"{report['device']}; geometric mean {mean}; worst {worst['variant']} {worst['ratio']}" if worst else ""
    line = _LEFT + _WIDTH / most
    end = _TOP + _ROW * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>',
        _text(12, 24, "Speed beside the fastest peer, and share of the tensor cores' ceiling", "t"),
        _text(12, 44, summary, "m"),
        _text(_LEFT, _TOP - 8, "times the best peer (1 = equal)", "m"),
        _text(right, _TOP - 8, f"of a GEMM of 8192 ({report['gemm_8192']:g} TFLOP/s)", "m"),
    ]
    for number, row in enumerate(rows):
        out += _row(row, _TOP + _ROW * number, _WIDTH / most, right)
    out.append(f'<line x1="{line:.1f}" y1="{_TOP}" x2="{line:.1f}" y2="{end}" stroke="{_INK}" stroke-dasharray="3 3"/>')
    key = "Blue: at least as fast as the best peer. Yellow: behind it. No bar: no peer has it right."
    out.append(_text(12, end + 22, key, "m"))
    return "\n".join([*out, "</svg>"]) + "\n"


def _row(row: dict[str, Any], y: float, unit: float, right: float) -> list[str]:
    ratio, share = row["ratio"], row["of_ceiling"]
    base = y + _ROW - 7
    out = [_text(_LEFT - 8, base, row["variant"], "e")]
    if ratio:
        shown = min(ratio, _MOST)
        more = " (cut)" if shown < ratio else ""
        out.append(_bar(_LEFT, y, shown * unit, _OURS if ratio >= 1 else _BEHIND))
        out.append(_text(_LEFT + shown * unit + 5, base, f"{ratio:.2f} {row['best_peer_name']}{more}", "m"))
    if share:
        out.append(_bar(right, y, share * _SHARE, _PALE))
        out.append(_text(right + share * _SHARE + 5, base, f"{row['ours']:.0f}", "m"))
    return out


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(words)}</text>'


def main() -> int:
    """Draw the record named on the command line."""
    path = Path(sys.argv[1])
    path.with_suffix(".svg").write_text(picture(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
