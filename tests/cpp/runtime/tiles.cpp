// Products by the instructions of AMX on a processor that has none: each of them raises SIGILL, and the handler does
// what the instruction would, or ends the process where the manual forbids it.
//
// The program compares contractions with float64 and prints how many products of tiles they took.
#include "runtime.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

using namespace superopt;

static uint8_t tiles[8][16][64];
static struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shape;
static long products;

static void forbidden(const char* why) {
    fprintf(stderr, "forbidden: %s\n", why);
    _exit(3);
}

static int used(int tile) {
    if (shape.palette != 1) forbidden("a tile is used that is not configured");
    if (tile > 7 || shape.rows[tile] == 0 || shape.bytes[tile] == 0) forbidden("a tile is used that has no size");
    return tile;
}

// An instruction with a VEX prefix of three bytes.
struct Instruction {
    const uint8_t* at;
    const greg_t* registers;
    int prefix() const { return at[2] & 3; }  // none, 66, F3, F2
    int opcode() const { return at[3]; }
    int mode() const { return at[4] >> 6; }
    int reg() const { return (at[4] >> 3 & 7) | (~at[1] >> 4 & 8); }
    int rm() const { return (at[4] & 7) | (~at[1] >> 2 & 8); }
    int third() const { return ~at[2] >> 3 & 15; }
    bool has_index() const { return mode() != 3 && (at[4] & 7) == 4; }
    int length() const { return 5 + has_index() + (mode() == 1 ? 1 : mode() == 2 ? 4 : 0); }

    static int64_t value(const greg_t* registers, int number) {
        static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return registers[order[number]];
    }
    int64_t stride() const {
        const int index = (at[5] >> 3 & 7) | (~at[1] >> 3 & 8);
        return index == 4 ? 0 : value(registers, index) << (at[5] >> 6);
    }
    uint8_t* base() const {
        const int number = has_index() ? (at[5] & 7) | (~at[1] >> 2 & 8) : rm();
        if (mode() == 0 && (number & 7) == 5) forbidden("an address that this handler does not know");
        int32_t offset = 0;
        if (mode() == 1) offset = int8_t(at[5 + has_index()]);
        if (mode() == 2) memcpy(&offset, at + 5 + has_index(), 4);
        return reinterpret_cast<uint8_t*>(value(registers, number) + offset);
    }
};

static float number(const uint8_t* from) {
    uint16_t half;
    memcpy(&half, from, 2);
    return from_bits(uint32_t(half) << 16);
}

static void multiply(int c, int a, int b) {
    if (a == b || a == c || b == c) forbidden("a product of a tile and itself");
    if (shape.bytes[a] / 4 != shape.rows[b] || shape.rows[a] != shape.rows[c] || shape.bytes[b] != shape.bytes[c])
        forbidden("a product of tiles whose sizes do not fit");
    for (int m = 0; m < shape.rows[c]; ++m)
        for (int k = 0; k < shape.rows[b]; ++k)
            for (int n = 0; n < shape.bytes[c] / 4; ++n)
                for (int half = 0; half < 4; half += 2) {
                    float sum;
                    memcpy(&sum, tiles[c][m] + 4 * n, 4);
                    sum += number(tiles[a][m] + 4 * k + half) * number(tiles[b][k] + 4 * n + half);
                    memcpy(tiles[c][m] + 4 * n, &sum, 4);
                }
    ++products;
}

static void run(const Instruction& one) {
    const int key = one.prefix() << 8 | one.opcode();
    if (key == 0x049 && one.mode() != 3) {  // ldtilecfg
        memcpy(&shape, one.base(), sizeof shape);
        if (shape.palette != 1) forbidden("a palette that does not exist");
        for (int tile = 0; tile < 8; ++tile)
            if (shape.rows[tile] > 16 || shape.bytes[tile] > 64) forbidden("a tile that is too large");
        memset(tiles, 0, sizeof tiles);
    } else if (key == 0x049) {  // tilerelease
        memset(&shape, 0, sizeof shape);
    } else if (key == 0x349 && one.mode() == 3) {  // tilezero
        memset(tiles[used(one.reg())], 0, sizeof tiles[0]);
    } else if ((key == 0x34b || key == 0x24b) && one.has_index()) {  // tileloadd, tilestored
        const int tile = used(one.reg());
        for (int row = 0; row < shape.rows[tile]; ++row) {
            uint8_t* const memory = one.base() + row * one.stride();
            if (key == 0x34b)
                memcpy(tiles[tile][row], memory, shape.bytes[tile]);
            else
                memcpy(memory, tiles[tile][row], shape.bytes[tile]);
        }
    } else if (key == 0x25c && one.mode() == 3) {  // tdpbf16ps
        multiply(used(one.reg()), used(one.rm()), used(one.third()));
    } else {
        forbidden("an instruction that is none of AMX");
    }
}

static void trapped(int, siginfo_t*, void* context) {
    greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const Instruction one{reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers};
    if (one.at[0] != 0xc4 || (one.at[1] & 31) != 2) forbidden("an instruction that is none of AMX");
    run(one);
    registers[REG_RIP] += one.length();
}

// Let the request for tiles succeed, as it does where the processor has them.
static bool tiles_are_allowed() {
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1023, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog filter{sizeof steps / sizeof steps[0], steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static double random_number() { return rand() % 4001 / 1000.0 - 2; }

// The largest error of a contraction, in units of rounding of the sum of the products' sizes.
template <class A, class B>
static double error(index_t m, index_t n, index_t k, bool a_turned, bool b_turned) {
    A* const a = static_cast<A*>(malloc(m * k * sizeof(A)));
    B* const b = static_cast<B*>(malloc(k * n * sizeof(B)));
    float* const c = static_cast<float*>(malloc(m * n * sizeof(float)));
    for (index_t i = 0; i < m * k; ++i) a[i] = write<A>(random_number());
    for (index_t i = 0; i < k * n; ++i) b[i] = write<B>(random_number());
    for (index_t i = 0; i < m * n; ++i) c[i] = i % 7;
    const Matrix<A> first = a_turned ? Matrix<A>{a, 1, m} : Matrix<A>{a, k, 1};
    const Matrix<B> second = b_turned ? Matrix<B>{b, 1, k} : Matrix<B>{b, n, 1};
    contract_pairs(m, n, k, first, second, c, n);
    double worst = 0;
    for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < n; ++j) {
            double sum = (i * n + j) % 7, size = 8;
            for (index_t l = 0; l < k; ++l) {
                const double one = read(write<bf16>(read(*first.at(i, l).data)));
                const double other = read(write<bf16>(read(*second.at(l, j).data)));
                sum += one * other, size += fabs(one * other);
            }
            worst = fmax(worst, fabs(c[i * n + j] - sum) / size * 0x1p24);
        }
    free(a), free(b), free(c);
    return worst;
}

int main() {
    struct sigaction handler {};
    handler.sa_sigaction = trapped;
    handler.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &handler, nullptr);
    if (!tiles_are_allowed()) return 2;
    const index_t shapes[][3] = {{17, 33, 31}, {32, 64, 64}, {33, 100, 257}, {48, 97, 600}, {70, 130, 65}, {16, 40, 96}};
    for (const auto& [m, n, k] : shapes)
        for (int turned = 0; turned < 4; ++turned) {
            const double worst[] = {error<bf16, bf16>(m, n, k, turned & 1, turned & 2),
                                    error<float, bf16>(m, n, k, turned & 1, turned & 2)};
            for (const double one : worst)
                if (!(one < 2 * sqrt(double(k)) + 8)) {
                    fprintf(stderr, "%ld %ld %ld, turned %d: %g\n", long(m), long(n), long(k), turned, one);
                    return 1;
                }
        }
    if (shape.palette != 0) forbidden("the tiles are not released");
    printf("%ld\n", products);
}
