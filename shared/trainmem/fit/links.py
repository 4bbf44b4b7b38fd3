"""What moves between devices, and between a device and its host."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.units import GB

__all__ = ["HOST_MEMORY_BYTES_PER_SECOND", "Links", "links_of"]

HOST_MEMORY_BYTES_PER_SECOND = 307 * GB
"""Where an offloaded optimizer steps: eight channels of DDR5-4800, a server's socket. A desktop has a quarter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Peak rates in one direction, bytes a second; ``peers`` to other devices, ``host`` to the host's memory.

    ``host`` is None where CPU and GPU share one memory.
    """

    peers_bytes_per_second: int
    host_bytes_per_second: int | None
    source: str


_PCIE_3 = 16 * GB
_PCIE_4 = 32 * GB
_PCIE_5 = 64 * GB

_LINKS: dict[str, Links] = {
    "spark": Links(
        peers_bytes_per_second=25 * GB,
        host_bytes_per_second=None,
        source="ConnectX-7, 200 Gb/s (DGX Spark specifications)",
    ),
    "jetson-thor": Links(
        peers_bytes_per_second=round(12.5 * GB),
        host_bytes_per_second=None,
        source="four ports of 25 Gb/s (Jetson Thor data sheet)",
    ),
    "b200": Links(
        peers_bytes_per_second=900 * GB, host_bytes_per_second=_PCIE_5, source="NVLink 5, PCIe 5 x16"
    ),
    "h200": Links(
        peers_bytes_per_second=450 * GB, host_bytes_per_second=_PCIE_5, source="NVLink 4, PCIe 5 x16"
    ),
    "h100-80gb": Links(
        peers_bytes_per_second=450 * GB, host_bytes_per_second=_PCIE_5, source="NVLink 4, PCIe 5 x16"
    ),
    "a100-80gb": Links(
        peers_bytes_per_second=300 * GB, host_bytes_per_second=_PCIE_4, source="NVLink 3, PCIe 4 x16"
    ),
    "a100-40gb": Links(
        peers_bytes_per_second=300 * GB, host_bytes_per_second=_PCIE_4, source="NVLink 3, PCIe 4 x16"
    ),
    "t4": Links(peers_bytes_per_second=_PCIE_3, host_bytes_per_second=_PCIE_3, source="PCIe 3 x16"),
}
_NEWEST_PCIE = ("h100-pcie-80gb", "rtx-pro-6000", "rtx-5090")


def links_of(name: str) -> Links:
    """The links of a device by its name; PCIe where it has nothing faster.

    Source: the vendors' data sheets; half of what they give for both directions together.
    """
    if name in _LINKS:
        return _LINKS[name]
    if name in _NEWEST_PCIE:
        return Links(peers_bytes_per_second=_PCIE_5, host_bytes_per_second=_PCIE_5, source="PCIe 5 x16")
    return Links(peers_bytes_per_second=_PCIE_4, host_bytes_per_second=_PCIE_4, source="PCIe 4 x16")
