"""Nodes: network namespaces whose links are throttled, so that processes are as far apart as machines.

Each node has one link to the bridge of its rack, and each rack one link to the bridge of all racks. Packets
wait at both ends of a link, so that its owner sends and receives no faster than the link. Processes in one
node reach each other at the speed of memory. This needs the rights of an administrator.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from superopt.errors import InputError

__all__ = ["Node", "throttled_nodes"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what stands before the command of its processes, its address, and their environment."""

    command: tuple[str, ...]
    address: str
    environment: dict[str, str]


@contextmanager
def throttled_nodes(racks: int, nodes: int, rack_mbit: int, node_mbit: int) -> Iterator[list[Node]]:
    """Give all nodes, which are gone afterwards; one rack has no link."""
    mark = f"{os.getpid() % 100000}"
    trunk = f"sb{mark}"
    places = [(f"sn{mark}_{at}", f"10.213.77.{at + 1}") for at in range(racks * nodes)]
    bridges = [trunk, *(f"sr{mark}{rack}" for rack in range(racks) if racks > 1)]
    try:
        for bridge in bridges:
            _run(f"ip link add {bridge} type bridge")
            _run(f"ip link set {bridge} up")
        for rack, bridge in enumerate(bridges[1:]):
            down, up = f"sd{mark}{rack}", f"su{mark}{rack}"
            _run(f"ip link add {down} type veth peer name {up}")
            for end, owner in ((down, trunk), (up, bridge)):
                _run(f"ip link set {end} master {owner} up")
                _run(f"tc qdisc add dev {end} {_bucket(rack_mbit)}")
        for at, (name, address) in enumerate(places):
            outer, inner = f"so{mark}{at}", "link0"
            _run(f"ip netns add {name}")
            _run(f"ip link add {outer} type veth peer name {inner} netns {name}")
            _run(f"ip link set {outer} master {bridges[-racks:][at // nodes]} up")
            _run(f"ip -n {name} addr add {address}/24 dev {inner}")
            _run(f"ip -n {name} link set {inner} up")
            _run(f"ip -n {name} link set lo up")
            _run(f"ip netns exec {name} tc qdisc add dev {inner} {_bucket(node_mbit)}")
            _run(f"tc qdisc add dev {outer} {_bucket(node_mbit)}")
        yield [
            Node(("ip", "netns", "exec", name), address, {"GLOO_SOCKET_IFNAME": "link0"})
            for name, address in places
        ]
    finally:
        for name, _ in places:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for rack in range(racks):
            subprocess.run(["ip", "link", "del", f"sd{mark}{rack}"], capture_output=True, check=False)
        for bridge in bridges:
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _bucket(mbit: int) -> str:
    return f"root tbf rate {mbit}mbit burst 64kb latency 400ms"


def _run(command: str) -> None:
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{command.split()[0]!r} is missing: install iproute2 to throttle links") from error
    if done.returncode:
        raise InputError(f"links cannot be throttled here: {command}: {done.stderr.strip() or 'refused'}")
