// The formats of memory: how numbers are read from it and written to it, one by one and in vectors.

namespace superopt {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct f8e4m3 {
    uint8_t bits;
};
struct f8e5m2 {
    uint8_t bits;
};
struct boolean {  // any byte but 0 says that something is true
    uint8_t bits;
};

inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

template <class T>
inline float read(T value) {
    return float(value);
}

inline float read(boolean value) { return value.bits != 0; }

inline float read(bf16 value) { return from_bits(uint32_t(value.bits) << 16); }

inline float read(f16 value) {
    const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
    const uint32_t rest = uint32_t(value.bits & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, denormals included.
    const float scaled = from_bits(rest) * from_bits(0x77800000);
    const uint32_t special = rest >= 0x0f800000 ? to_bits(scaled) | 0x7f800000 : to_bits(scaled);
    return from_bits(special | sign);
}

inline float read(f8e5m2 value) { return read(f16{uint16_t(value.bits << 8)}); }

inline float read(f8e4m3 value) {
    const uint32_t sign = uint32_t(value.bits & 0x80) << 24;
    const uint32_t rest = uint32_t(value.bits & 0x7f) << 20;
    // 2^120 moves the exponent's bias from 7 to 127; there is no infinity, and one NaN.
    const float scaled = from_bits(rest) * from_bits(0x7b800000);
    return from_bits((rest == 0x07f00000 ? 0x7fc00000 : to_bits(scaled)) | sign);
}

template <class T>
inline T write(float value) {
    return T(value);
}

template <>
inline bf16 write<bf16>(float value) {
    const uint32_t bits = to_bits(value);
    if (value != value) return {uint16_t((bits >> 16) | 0x40)};
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
}

template <>
inline f16 write<f16>(float value) {
    const uint32_t sign = (to_bits(value) >> 16) & 0x8000;
    const uint32_t size = to_bits(value) & 0x7fffffff;
    if (size > 0x7f800000) return {uint16_t(sign | 0x7e00)};
    if (size >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // rounds to infinity
    if (size < 0x38800000)  // denormal: adding 0.5 lets the hardware round at the right bit
        return {uint16_t(sign | (to_bits(from_bits(size) + 0.5f) - 0x3f000000))};
    const uint32_t rounded = size + 0xc8000fff + ((size >> 13) & 1);
    return {uint16_t(sign | (rounded >> 13))};
}

INLINE inline Vec load(const float* from) {
    Vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE inline Vec from_bf16(Shorts shorts) {
#if defined(__AVX512F__) && !defined(__clang__)
    const Bits wide = (Bits)__builtin_ia32_pmovzxwd512_mask((short __attribute__((vector_size(32))))shorts, Int{}, 0xffff);
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)
    const Bits wide = (Bits)__builtin_ia32_pmovzxwd256((short __attribute__((vector_size(16))))shorts);
#else
    const Bits wide = __builtin_convertvector(shorts, Bits);
#endif
    return floats(wide << 16);
}

INLINE inline Vec load(const bf16* from) {
    Shorts shorts;
    memcpy(&shorts, from, sizeof shorts);
    return from_bf16(shorts);
}

// GCC takes bytes one by one where it is not told the instruction.
#if (defined(__AVX512F__) || defined(__AVX2__)) && !defined(__clang__)
typedef char Sixteen __attribute__((vector_size(16)));
#if defined(__AVX512F__)
INLINE inline Sixteen some_bytes(const void* from) {
    Sixteen bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes;
}
INLINE inline Bits load_bytes(const void* from) {
    return (Bits)__builtin_ia32_pmovzxbd512_mask(some_bytes(from), Int{}, 0xffff);
}
INLINE inline Int load_signed(const void* from) {
    return (Int)__builtin_ia32_pmovsxbd512_mask(some_bytes(from), Int{}, 0xffff);
}
#else
INLINE inline Sixteen some_bytes(const void* from) {
    typedef long long Two __attribute__((vector_size(16)));
    long long eight;
    memcpy(&eight, from, sizeof eight);
    return (Sixteen)Two{eight, 0};
}
INLINE inline Bits load_bytes(const void* from) { return (Bits)__builtin_ia32_pmovzxbd256(some_bytes(from)); }
INLINE inline Int load_signed(const void* from) { return (Int)__builtin_ia32_pmovsxbd256(some_bytes(from)); }
#endif
#else
INLINE inline Bits load_bytes(const void* from) {
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Bits);
}
INLINE inline Int load_signed(const void* from) {
    return (Int)(load_bytes(from) << 24) >> 24;  // the sign comes down with the number
}
#endif

INLINE inline Vec load(const uint8_t* from) { return __builtin_convertvector((Int)load_bytes(from), Vec); }
INLINE inline Vec load(const boolean* from) { return __builtin_convertvector((load_bytes(from) != 0) & 1, Vec); }
INLINE inline Vec load(const int8_t* from) { return __builtin_convertvector(load_signed(from), Vec); }

inline Vec load(const f8e5m2* from) {
    const Bits wide = load_bytes(from);
    const Bits rest = (wide & 0x7f) << 21;
    const Bits scaled = bits(floats(rest) * from_bits(0x77800000));
    const Bits special = rest >= 0x0f800000 ? scaled | 0x7f800000 : scaled;
    return floats(special | (wide & 0x80) << 24);
}

inline Vec load(const f8e4m3* from) {
    const Bits wide = load_bytes(from);
    const Bits rest = (wide & 0x7f) << 20;
    const Bits scaled = bits(floats(rest) * from_bits(0x7b800000));
    const Bits special = rest == 0x07f00000 ? Bits{} + 0x7fc00000 : scaled;
    return floats(special | (wide & 0x80) << 24);
}

template <class T>
inline Vec load(const T* from) {
    Vec value;
    for (int lane = 0; lane < lanes; ++lane) value[lane] = read(from[lane]);
    return value;
}

#if defined(__F16C__)
// The one conversion that the portable vectors do not reach, eight or sixteen at a time.
#if defined(__AVX512F__) && !defined(__clang__)
typedef short Halves __attribute__((vector_size(32)));
inline Vec load(const f16* from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return (Vec)__builtin_ia32_vcvtph2ps512_mask(halves, Vec{}, 0xffff, 4);
}
#else
inline Vec load(const f16* from) {
    typedef short Eight __attribute__((vector_size(16)));
    Vec value;
    for (int lane = 0; lane < lanes; lane += 8) {
        Eight halves;
        memcpy(&halves, from + lane, sizeof halves);
        const auto part = __builtin_ia32_vcvtph2ps256(halves);
        memcpy(reinterpret_cast<float*>(&value) + lane, &part, sizeof part);
    }
    return value;
}
#endif
#endif

// The first `count` elements, `stride` apart; the other lanes are 0.
template <class T>
__attribute__((noinline)) Vec load_apart(const T* from, index_t stride, index_t count) {
    Vec value{};
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count) value[lane] = read(from[lane * stride]);
    return value;
}

template <class T>
INLINE inline Vec load(const T* from, index_t stride, index_t count) {
    return count >= lanes && stride == 1 ? load(from) : load_apart(from, stride, count);
}

#if defined(__AVX__) && !defined(__AVX512F__)
// The first `count` neighbours by a mask: one instruction, which touches no other memory.
INLINE inline Vec load(const float* from, index_t stride, index_t count) {
    if (stride != 1) return load_apart(from, stride, count);
    return count >= lanes ? load(from) : __builtin_ia32_maskloadps256((const Vec*)from, lane_numbers() < int32_t(count));
}
#elif !defined(__AVX512F__)
// The first `count` neighbours in pieces of two and one.
INLINE inline Vec load(const float* from, index_t stride, index_t count) {
    if (stride != 1) return load_apart(from, stride, count);
    if (count >= lanes) return load(from);
    if (count < 2) return count == 1 ? Vec{from[0]} : Vec{};
    return count == 2 ? Vec{from[0], from[1]} : Vec{from[0], from[1], from[2]};
}
#endif

#if defined(__AVX512F__)
// Ones for the first `count` lanes, for none where there is none.
INLINE inline uint32_t mask_of(index_t count) { return count > 0 ? (1u << count) - 1 : 0; }

// Neighbours where a mask has ones: one instruction, which touches no other memory.
INLINE inline Vec load_masked(const float* from, uint32_t mask) {
    return (Vec)__builtin_ia32_loadups512_mask(from, Vec{}, uint16_t(mask));
}

INLINE inline Vec load(const float* from, index_t stride, index_t count) {
    if (stride != 1) return load_apart(from, stride, count);
    return count >= lanes ? load(from) : load_masked(from, mask_of(count));
}
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
INLINE inline Shorts load_masked(const bf16* from, uint32_t mask) {
    typedef short Whole __attribute__((vector_size(2 * lanes)));
    return (Shorts)__builtin_ia32_loaddquhi256_mask((const short*)from, Whole{}, uint16_t(mask));
}

INLINE inline Vec load(const bf16* from, index_t stride, index_t count) {
    if (stride != 1) return load_apart(from, stride, count);
    return count >= lanes ? load(from) : from_bf16(load_masked(from, mask_of(count)));
}
#endif

INLINE inline void store(float* to, Vec value) { memcpy(to, &value, sizeof value); }

inline Shorts rounded_to_bf16(Vec value) {
    const Bits from = bits(value);
    const Bits rounded = (from + 0x7fff + ((from >> 16) & 1)) >> 16;
    const Bits nan = (from >> 16) | 0x40;
    return __builtin_convertvector((Bits)(value == value ? rounded : nan), Shorts);
}

INLINE inline Shorts to_bf16(Vec value) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    Shorts shorts;
    asm("vcvtneps2bf16 %1, %0" : "=v"(shorts) : "v"(value));
    uint16_t subnormal;  // the instruction makes 0 of these
    asm("vfpclassps $0x20, %1, %0" : "=k"(subnormal) : "v"(value));
    return __builtin_expect(subnormal != 0, 0) ? rounded_to_bf16(value) : shorts;
#else
    return rounded_to_bf16(value);
#endif
}

INLINE inline void store(bf16* to, Vec value) {
    const Shorts shorts = to_bf16(value);
    memcpy(to, &shorts, sizeof shorts);
}

template <class T>
inline void store(T* to, Vec value) {
    for (int lane = 0; lane < lanes; ++lane) to[lane] = write<T>(value[lane]);
}

#if defined(__AVX512F__) && !defined(__clang__)
inline void store(f16* to, Vec value) {
    const auto halves = __builtin_ia32_vcvtps2ph512_mask(value, 0, Halves{}, 0xffff);  // ties to even
    memcpy(to, &halves, sizeof halves);
}
#elif defined(__F16C__)
inline void store(f16* to, Vec value) {
    for (int lane = 0; lane < lanes; lane += 8) {
        float __attribute__((vector_size(32))) part;
        memcpy(&part, reinterpret_cast<const float*>(&value) + lane, sizeof part);
        const auto halves = __builtin_ia32_vcvtps2ph256(part, 0);  // to nearest, ties to even
        memcpy(to + lane, &halves, sizeof halves);
    }
}
#endif

template <class T>
__attribute__((noinline)) void store_apart(T* to, index_t stride, index_t count, Vec value) {
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count) to[lane * stride] = write<T>(value[lane]);
}

template <class T>
INLINE inline void store(T* to, index_t stride, index_t count, Vec value) {
    if (count >= lanes && stride == 1) return store(to, value);
    store_apart(to, stride, count, value);
}

#if !defined(__AVX512F__)
// The first `count` lanes in pieces of four, two and one: some processors take longer to store by a mask.
INLINE inline void store(float* to, index_t stride, index_t count, Vec value) {
    if (stride != 1) return store_apart(to, stride, count, value);
    if (count >= lanes) return store(to, value);
    const index_t some = most(count, 0);
    Four part = __builtin_shufflevector(value, value, 0, 1, 2, 3);
#if defined(__AVX__)
    if (some & 4) {
        memcpy(to, &part, sizeof part);
        to += 4;
        part = __builtin_shufflevector(value, value, 4, 5, 6, 7);
    }
#endif
    if (some & 2) {
        memcpy(to, &part, 8);
        to += 2;
        part = __builtin_shufflevector(part, part, 2, 3, 2, 3);
    }
    if (some & 1) *to = part[0];
}
#endif

#if defined(__AVX512F__)
INLINE inline void store(float* to, index_t stride, index_t count, Vec value) {
    if (stride != 1) return store_apart(to, stride, count, value);
    if (count >= lanes) return store(to, value);
    __builtin_ia32_storeups512_mask(to, value, uint16_t(mask_of(count)));
}
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
INLINE inline void store(bf16* to, index_t stride, index_t count, Vec value) {
    typedef short Whole __attribute__((vector_size(2 * lanes)));
    if (stride != 1) return store_apart(to, stride, count, value);
    if (count >= lanes) return store(to, value);
    __builtin_ia32_storedquhi256_mask((short*)to, (Whole)to_bf16(value), uint16_t(mask_of(count)));
}
#endif

}  // namespace superopt
