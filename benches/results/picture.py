#!/usr/bin/env python3
"""Draws docs/guide/src/pictures/results.svg from the rows in this folder.

    benches/results/picture.py            draws it
    benches/results/picture.py --check    fails if the picture is not what the rows say
"""

import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent.parent / "docs/guide/src/pictures/results.svg"
VERSUS = "2026-11-25-versus.jsonl"
MOVING = "2026-11-27-moving.jsonl"

WIDTH, HEIGHT, ROW = 760, 352, 30
# Told apart by lightness too, for who does not see the colours.
OURS, OTHERS, PALE, INK, LINE = "#0b6e4f", "#8a8f98", "#9fd3c0", "#1d2127", "#c9cdd3"


def rows(name):
    return [json.loads(line) for line in (HERE / name).read_text().splitlines() if line]


def mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def device_memory():
    """Name, geometric mean of reserved over live, whether it is ours."""
    carried = [row for row in rows(MOVING) if row["carried"]]

    def once(allocator):
        return [row["reserved_over_live"] for row in carried if row["allocator"] == allocator]

    answer = [
        ("PyTorch", once("pytorch"), False),
        ("PyTorch, expandable", once("pytorch-expandable"), False),
        ("Larder", once("larder"), True),
        ("Larder, steps seen once", once("larder-planned"), True),
    ]
    for name, ratios, _ in answer:
        assert len(ratios) == 8, f"{name}: {len(ratios)} traces instead of 8"
    return [(name, mean(ratios), ours) for name, ratios, ours in answer]


def process_heap():
    """Name of a peer, our time over its time, our peak over its peak."""
    by_workload = {}
    for row in rows(VERSUS):
        if not row["workload"].startswith(("steps-", "frames-", "bare-")) and row["profile"] == "fat":
            by_workload.setdefault(row["workload"], {})[row["allocator"]] = row
    assert len(by_workload) == 29, f"{len(by_workload)} workloads instead of 29"
    peers = {
        "system": "glibc", "rpmalloc": "rpmalloc", "jemalloc": "jemalloc", "snmalloc": "snmalloc",
        "mimalloc3": "mimalloc 3", "rusty-alloc": "rusty_alloc", "mimalloc2": "mimalloc 2",
    }

    def ratio(peer, key):
        return mean(found["larder"][key] / found[peer][key] for found in by_workload.values())

    return [(shown, ratio(peer, "seconds"), ratio(peer, "peak_rss_bytes")) for peer, shown in peers.items()]


def text(x, y, words, size=13, anchor="start", weight="normal", fill=INK):
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
        f"{words}</text>"
    )


def bar(x, y, width, height, fill):
    return f'<rect x="{x}" y="{y}" width="{max(width, 1):.1f}" height="{height}" fill="{fill}"/>'


def draw_device(out, left):
    out.append(text(left, 30, "GPU memory held beyond what is live", 15, weight="bold"))
    out.append(text(left, 50, "eight recorded programs; shorter is better"))
    for number, (name, ratio, ours) in enumerate(device_memory()):
        y = 78 + number * 54
        percent = (ratio - 1) * 100
        out.append(text(left, y, name, weight="bold" if ours else "normal"))
        width = percent * 14
        out.append(bar(left, y + 7, width, 18, OURS if ours else OTHERS))
        shown = f"{percent:.1f} %" if percent > 1 else f"{percent:.2f} %"
        out.append(text(round(left + max(width, 1) + 6), y + 21, shown))


def draw_heap(out, left):
    out.append(text(left, 30, "Process heap: Larder over each other heap", 15, weight="bold"))
    out.append(text(left, 50, "29 workloads; shorter is better"))
    zero, unit = left + 88, 210
    bottom = 70 + 7 * ROW
    out.append(f'<line x1="{zero + unit}" y1="62" x2="{zero + unit}" y2="{bottom}" stroke="{INK}" stroke-dasharray="4 3"/>')
    for number, (name, time, peak) in enumerate(process_heap()):
        y = 70 + number * ROW
        out.append(text(zero - 8, y + 15, name, anchor="end"))
        for above, (ratio, colour) in enumerate([(time, OURS), (peak, PALE)]):
            top = y + above * 11
            out.append(bar(zero, top, ratio * unit, 10, colour))
            # In a column beside all bars, so that no number lies on the dashed line.
            out.append(text(WIDTH - 12, top + 9, f"{ratio:.2f}", 10, "end"))
    out.append(text(zero + unit, bottom + 15, "1: the same", 11, "middle"))
    for x, colour, words in [(zero, OURS, "time"), (zero + 62, PALE, "peak")]:
        out.append(bar(x, bottom + 6, 10, 10, colour))
        out.append(text(x + 14, bottom + 15, words, 11))


def picture():
    label = "; ".join(f"{name} {ratio:.4f}" for name, ratio, _ in device_memory())
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" role="img">',
        f"<title>Results: reserved over live GPU memory ({label}), and the process heap beside seven others</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    draw_device(out, 20)
    draw_heap(out, 390)
    out.append(f'<line x1="374" y1="16" x2="374" y2="{HEIGHT - 40}" stroke="{LINE}"/>')
    sources = ", ".join(name.removesuffix(".jsonl") for name in (MOVING, VERSUS))
    out.append(text(20, HEIGHT - 14, f"Geometric means; GPU memory on a simulated device. From benches/results: {sources}", 11, fill="#5a606a"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        if PICTURE.read_text() != picture():
            sys.exit(f"{PICTURE} is old: run benches/results/picture.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(picture())


main()
