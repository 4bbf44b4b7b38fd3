"""`trainmem devices`: what each device is sold as, shows and can give a job."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from trainmem.device import devices
from trainmem.units import GB, GIB

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("devices", description=__doc__)
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """List the devices."""
    if args.json:
        rows = [{**asdict(d), "usable_bytes": d.usable_bytes} for d in devices()]
        print(json.dumps({"schema": "trainmem.devices/1", "devices": rows}))
        return 0
    print(f"{'name':<16} {'sold as':>8} {'shows':>11} {'usable':>11} {'GB/s':>6} {'bf16 TFLOP/s':>13}")
    for d in devices():
        rate = f"{d.bf16_flops_per_second / 1e12:,.0f}" if d.bf16_flops_per_second else "-"
        usable = f"{d.usable_bytes / GIB:,.1f} GiB" if d.cuda else "no CUDA"
        print(
            f"{d.name:<16} {d.marketed_bytes / GB:>5,.0f} GB {d.visible_bytes / GIB:>7,.1f} GiB {usable:>11} "
            f"{d.bandwidth_bytes_per_second / 1e9:>6,.0f} {rate:>13}"
        )
    return 0
