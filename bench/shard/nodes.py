"""Nodes: network namespaces whose links are throttled, so that processes are as far apart as machines.

Each node has one link to a bridge; packets wait at both of its ends, so that a node sends and receives no
faster than its link. Processes in one node reach each other at the speed of memory. This needs the rights of
an administrator.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from superopt.errors import InputError

__all__ = ["throttled_nodes"]


@contextmanager
def throttled_nodes(count: int, mbit_per_s: int) -> Iterator[list[tuple[str, str]]]:
    """Give the names of so many nodes, each with its address; they are gone afterwards."""
    mark = f"{os.getpid() % 100000}"
    bridge = f"sb{mark}"
    nodes = [(f"sn{mark}_{at}", f"10.213.77.{at + 1}") for at in range(count)]
    try:
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} up")
        for at, (name, address) in enumerate(nodes):
            outer, inner = f"so{mark}{at}", "link0"
            _run(f"ip netns add {name}")
            _run(f"ip link add {outer} type veth peer name {inner} netns {name}")
            _run(f"ip link set {outer} master {bridge} up")
            inside = f"ip netns exec {name}"
            _run(f"ip -n {name} addr add {address}/24 dev {inner}")
            _run(f"ip -n {name} link set {inner} up")
            _run(f"ip -n {name} link set lo up")
            bucket = f"root tbf rate {mbit_per_s}mbit burst 64kb latency 400ms"
            _run(f"{inside} tc qdisc add dev {inner} {bucket}")
            _run(f"tc qdisc add dev {outer} {bucket}")
        yield nodes
    finally:
        for name, _ in nodes:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _run(command: str) -> None:
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{command.split()[0]!r} is missing: install iproute2 to throttle links") from error
    if done.returncode:
        raise InputError(f"links cannot be throttled here: {command}: {done.stderr.strip() or 'refused'}")
