"""Counters, limits and steps, with the names of torch.cuda.

A device is its number, None, or any value that PyTorch accepts. None is PyTorch's current device if PyTorch uses
GPUs, otherwise device 0.
"""

import contextlib
import json
import sys

from ._library import check, library, text

_UNITS = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]


def _torch():
    """Returns PyTorch, if the program uses it on GPUs."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def device_number(device=None):
    """Returns the number of a device."""
    if isinstance(device, int):
        return device
    if device is None:
        torch = _torch()
        return torch.cuda.current_device() if torch else 0
    if isinstance(device, str):
        _, _, number = device.partition(":")
        return int(number) if number else device_number()
    return device_number(device.index)


def _counters(device):
    return json.loads(text("stats_json", device_number(device)))


_POOLS = ("all", "large_pool", "small_pool")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
_COUNTS = ("allocation", "segment", "active", "inactive_split")


def memory_stats_as_nested_dict(device=None):
    """Returns the counters in the form of torch.cuda.memory_stats_as_nested_dict. There is one pool, the large
    one. Counters that Larder does not have are 0."""
    now = _counters(device)
    none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    blocks = {
        "current": now["allocations"] - now["frees"],
        "allocated": now["allocations"],
        "freed": now["frees"],
    }
    live = {"current": now["live_bytes"], "peak": now["peak_live_bytes"]}
    held = {"current": now["reserved_bytes"], "peak": now["peak_reserved_bytes"]}
    known = {
        "allocation": blocks,
        "active": blocks,
        "allocated_bytes": live,
        "active_bytes": live,
        "reserved_bytes": held,
        "requested_bytes": {"current": now["requested_bytes"]},
    }
    stats = {name: {pool: dict(none) for pool in _POOLS} for name in _BYTES + _COUNTS}
    for name, counted in known.items():
        for pool in _POOLS[:2]:
            stats[name][pool].update(counted)
    for name in ("oversize_allocations", "oversize_segments"):
        stats[name] = dict(none)
    stats["num_device_alloc"], stats["num_device_free"] = now["driver_allocations"], now["driver_frees"]
    for name in ("num_alloc_retries", "num_sync_all_streams"):
        stats[name] = 0
    stats["num_ooms"] = now["out_of_memory"]
    stats["max_split_size"] = -1
    return stats


def memory_stats(device=None):
    """Returns the counters by the keys of torch.cuda.memory_stats. Counters that Larder does not have are 0."""
    flat = {}

    def flatten(prefix, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    flatten("", memory_stats_as_nested_dict(device))
    return flat


def memory_allocated(device=None):
    """Returns the bytes of blocks in use."""
    return _counters(device)["live_bytes"]


def max_memory_allocated(device=None):
    """Returns the peak of memory_allocated since the last reset."""
    return _counters(device)["peak_live_bytes"]


def memory_reserved(device=None):
    """Returns the bytes held from the driver."""
    return _counters(device)["reserved_bytes"]


def max_memory_reserved(device=None):
    """Returns the peak of memory_reserved since the last reset."""
    return _counters(device)["peak_reserved_bytes"]


def reset_peak_memory_stats(device=None):
    """Resets the peaks to the current values."""
    check(library.larder_cuda_reset_peaks(device_number(device)))


def _bytes(count):
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def memory_summary(device=None, abbreviated=False):
    """Returns the counters as a table for people."""
    del abbreviated
    number, now = device_number(device), _counters(device)
    unlimited = now["limit_bytes"] >= 1 << 63
    rows = [
        ("in use", _bytes(now["live_bytes"]), _bytes(now["peak_live_bytes"])),
        ("as requested", _bytes(now["requested_bytes"]), ""),
        ("held from the driver", _bytes(now["reserved_bytes"]), _bytes(now["peak_reserved_bytes"])),
        ("limit", "none" if unlimited else _bytes(now["limit_bytes"]), ""),
        ("blocks", str(now["allocations"] - now["frees"]), ""),
        ("allocations", str(now["allocations"]), ""),
        ("out of memory", str(now["out_of_memory"]), ""),
    ]
    lines = [f"Larder, device {number:<11} {'now':>14} {'peak':>14}"]
    lines += [f"{name:<26} {current:>14} {peak:>14}".rstrip() for name, current, peak in rows]
    return "\n".join(lines) + "\n"


def memory_snapshot(device=None):
    """Returns segments and blocks in the form of torch.cuda.memory_snapshot: a segment is memory without a gap in
    its addresses. `torch.cuda._memory_viz` and pytorch.org/memory_viz read a pickle of
    `{"segments": larder_cuda.memory_snapshot(), "device_traces": []}`."""
    number = device_number(device)
    segments, end = [], None
    for chunk in json.loads(text("snapshot_json", number))["chunks"]:
        address, size, state = chunk["address"], chunk["bytes"], chunk["state"]
        used = state == "used"
        if address != end:
            segments.append(
                {
                    "device": number,
                    "address": address,
                    "total_size": 0,
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": True,
                    "frames": [],
                    "blocks": [],
                }
            )
        end = address + size
        segment = segments[-1]
        segment["total_size"] += size
        if used:
            segment["allocated_size"] += size
            segment["active_size"] += size
            segment["requested_size"] += chunk["requested_bytes"]
        name = "active_allocated" if used else "inactive"
        segment["blocks"].append(
            {
                "address": address,
                "size": size,
                "requested_size": chunk["requested_bytes"],
                "state": "active_pending_free" if state == "pending" else name,
                "frames": [],
            }
        )
    return segments


def empty_cache():
    """Releases idle memory of all devices to the driver."""
    library.larder_cuda_empty_cache()


def set_limit(limit_bytes, device=None):
    """Sets the most memory of a device that may be held: 0, or a page of 2 MiB and more. Memory above it is
    released as blocks are freed."""
    check(library.larder_cuda_set_limit(device_number(device), limit_bytes))


def set_per_process_memory_fraction(fraction, device=None):
    """Sets the part of a device's memory that may be held."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"{fraction} is not a fraction of a device's memory: pass a number from 0 to 1")
    library.larder_cuda_set_memory_fraction(fraction, device_number(device))


def set_in_place(device=None):
    """Makes pages of a device's memory never move, so that more memory is held. Call it before its first use."""
    check(library.larder_cuda_set_in_place(device_number(device)))


def set_budget(budget_bytes, device=None):
    """Lets the process hold `budget_bytes` of a device, and no more: pages move only once they are held. Call it
    before the device's first use."""
    check(library.larder_cuda_set_budget(device_number(device), budget_bytes))


def want(wanted_bytes):
    """Tells the coordinator how much memory of each device this job wants."""
    check(library.larder_cuda_want(wanted_bytes))


def stream_handle(device, stream):
    """Returns the handle of a stream: None is PyTorch's current stream, or the default stream."""
    if stream is None:
        torch = _torch()
        return torch.cuda.current_stream(device).cuda_stream if torch else 0
    return getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))


@contextlib.contextmanager
def step(device=None, stream=None):
    """Runs a step of a stream, by default the current one: a training step, a request. Repeated allocations get
    planned places. A process that is a job pauses and sleeps at the end of a step."""
    number = device_number(device)
    handle = stream_handle(number, stream)
    check(library.larder_cuda_begin_step(number, handle))
    try:
        yield
    finally:
        check(library.larder_cuda_end_step(number, handle))
