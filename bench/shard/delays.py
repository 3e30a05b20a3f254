"""Delays: nodes whose links are throttled inside the processes, where no network namespaces are permitted.

A small library is loaded before every other one. It gives each node an address of its own on this machine.
What a process sends to another node goes in pieces, and the sender waits after each until the links of both
nodes, and of their racks, would have carried it. All processes share one file that says until when each link
is busy. A process waits in the thread that sends, so that what else the thread does waits as well.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from superopt.bench.shard.nodes import Node
from superopt.codegen.cpp.compile import find_compiler
from superopt.errors import InputError

__all__ = ["delayed_nodes"]

_SOURCE = r"""
#include <arpa/inet.h>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr size_t piece = 64 << 10;  // as much as a token bucket lets through at once
constexpr int most = 256;           // nodes, and racks

struct Links { std::atomic<int64_t> out[most], in[most], rack_out[most], rack_in[most]; };

int number(const char* name) { const char* text = getenv(name); return text ? atoi(text) : 0; }

const int own_node = number("SHARD_NODE"), own_rack = number("SHARD_RACK");
const double node_ns = 8e3 / number("SHARD_NODE_MBIT"), rack_ns = 8e3 / number("SHARD_RACK_MBIT");

Links* links() {
    static Links* found = [] {
        int file = open(getenv("SHARD_LINKS"), O_RDWR);
        void* at = mmap(nullptr, sizeof(Links), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file < 0 || at == MAP_FAILED) abort();
        return static_cast<Links*>(at);
    }();
    return found;
}

template <class F> F real(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

int64_t now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }

// Nodes are 127.77.RACK.NODE, counted from one.
bool is_node(const sockaddr_in& a) {
    return a.sin_family == AF_INET && ntohl(a.sin_addr.s_addr) >> 16 == ((127u << 8) | 77);
}

sockaddr_in own_address(in_port_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = port;
    a.sin_addr.s_addr = htonl((127u << 24) | (77u << 16) | ((own_rack + 1u) << 8) | (own_node + 1u));
    return a;
}

// The address of the other end, if it is in another node.
bool far(int fd, uint32_t& other) {
    sockaddr_in a{};
    socklen_t size = sizeof a;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&a), &size) || !is_node(a)) return false;
    other = ntohl(a.sin_addr.s_addr);
    return (other & 255) != own_node + 1u;
}

int64_t carried(std::atomic<int64_t>& link, double ns) {
    int64_t busy = link.load(), end;
    do {
        int64_t at = now();
        end = (busy > at ? busy : at) + static_cast<int64_t>(ns);
    } while (!link.compare_exchange_weak(busy, end));
    return end;
}

void wait_for(uint32_t other, ssize_t sent) {
    if (sent <= 0) return;
    int node = (other & 255) - 1, rack = ((other >> 8) & 255) - 1;
    int64_t ends[4] = {carried(links()->out[own_node], sent * node_ns),
                       carried(links()->in[node], sent * node_ns)};
    if (rack != own_rack) {
        ends[2] = carried(links()->rack_out[own_rack], sent * rack_ns);
        ends[3] = carried(links()->rack_in[rack], sent * rack_ns);
    }
    int64_t end = 0;
    for (int64_t one : ends) end = one > end ? one : end;
    if (end <= now()) return;
    timespec until{end / 1000000000LL, end % 1000000000LL};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

// The first buffers, as many bytes as a piece has.
int shortened(const iovec* all, int count, iovec* few) {
    size_t left = piece;
    int used = 0;
    for (; used < count && used < 16 && left; ++used) {
        few[used] = all[used];
        if (few[used].iov_len > left) few[used].iov_len = left;
        left -= few[used].iov_len;
    }
    return used;
}

}  // namespace

extern "C" {

int bind(int fd, const sockaddr* address, socklen_t size) {
    static auto call = real<int (*)(int, const sockaddr*, socklen_t)>("bind");
    if (address->sa_family == AF_INET) {
        auto* a = reinterpret_cast<const sockaddr_in*>(address);
        if (a->sin_addr.s_addr == htonl(INADDR_LOOPBACK)) {
            sockaddr_in own = own_address(a->sin_port);
            return call(fd, reinterpret_cast<sockaddr*>(&own), sizeof own);
        }
    }
    return call(fd, address, size);
}

int connect(int fd, const sockaddr* address, socklen_t size) {
    static auto call = real<int (*)(int, const sockaddr*, socklen_t)>("connect");
    static auto bound = real<int (*)(int, const sockaddr*, socklen_t)>("bind");
    if (address->sa_family == AF_INET && is_node(*reinterpret_cast<const sockaddr_in*>(address))) {
        sockaddr_in own = own_address(0);
        bound(fd, reinterpret_cast<sockaddr*>(&own), sizeof own);
    }
    return call(fd, address, size);
}

ssize_t writev(int fd, const iovec* all, int count) {
    static auto call = real<ssize_t (*)(int, const iovec*, int)>("writev");
    uint32_t other;
    if (!far(fd, other)) return call(fd, all, count);
    iovec few[16];
    ssize_t sent = call(fd, few, shortened(all, count, few));
    wait_for(other, sent);
    return sent;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
    static auto call = real<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
    uint32_t other;
    if (!far(fd, other)) return call(fd, message, flags);
    iovec few[16];
    msghdr own = *message;
    own.msg_iovlen = shortened(message->msg_iov, static_cast<int>(message->msg_iovlen), few);
    own.msg_iov = few;
    ssize_t sent = call(fd, &own, flags);
    wait_for(other, sent);
    return sent;
}

ssize_t send(int fd, const void* data, size_t size, int flags) {
    static auto call = real<ssize_t (*)(int, const void*, size_t, int)>("send");
    uint32_t other;
    if (!far(fd, other)) return call(fd, data, size, flags);
    ssize_t sent = call(fd, data, size < piece ? size : piece, flags);
    wait_for(other, sent);
    return sent;
}

}
"""


@contextmanager
def delayed_nodes(racks: int, nodes: int, rack_mbit: int, node_mbit: int) -> Iterator[list[Node]]:
    """Give all nodes, each with what its processes need in their environment."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        source, library, links = (Path(folder, name) for name in ("delays.cpp", "delays.so", "links"))
        source.write_text(_SOURCE, encoding="utf-8")
        links.write_bytes(bytes(1 << 14))
        command = [*compiler.command, "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"links cannot be delayed here: {done.stderr.strip().splitlines()[0]}")
        before = os.environ.get("LD_PRELOAD", "")
        yield [
            Node(
                (),
                "127.0.0.1",
                {
                    "LD_PRELOAD": f"{library} {before}".strip(),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "SHARD_NODE": str(at),
                    "SHARD_RACK": str(at // nodes),
                    "SHARD_LINKS": str(links),
                    "SHARD_NODE_MBIT": str(node_mbit),
                    "SHARD_RACK_MBIT": str(rack_mbit),
                },
            )
            for at in range(racks * nodes)
        ]
