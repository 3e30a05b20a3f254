"""The cost of a muGraph on a device, before anything is compiled.

    device = device_of("h200")
    found = estimate(fuse(graph), device)

An estimate needs no tile sizes and ranks muGraphs; `config_us` models one kernel under one choice of
tiles and ranks those; `floor_us` is what no measurement can be below.
"""

from superopt.cost.config import TileConfig, config_us
from superopt.cost.device import Device
from superopt.cost.devices import DEVICES, device_named, device_of
from superopt.cost.estimates import Estimate, estimate, floor_us
from superopt.cost.host import host_device

__all__ = [
    "DEVICES",
    "Device",
    "Estimate",
    "TileConfig",
    "config_us",
    "device_named",
    "device_of",
    "estimate",
    "floor_us",
    "host_device",
]
