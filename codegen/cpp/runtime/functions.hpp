// Arithmetic and functions of vectors, and the same of single numbers; a mask is a vector of zeros and ones.

namespace superopt {

inline Vec truth(Int condition) { return condition ? splat(1.0f) : Vec{}; }
inline Vec where(Vec mask, Vec a, Vec b) { return mask != 0.0f ? a : b; }
inline Vec keep(Vec mask, Vec a) { return mask != 0.0f ? a : Vec{}; }  // 0 even where a is infinite

// A product as it is rounded, which no compiler joins with a sum that reads it.
#if defined(__AVX512F__)
#define IN_REGISTER "+v"
#elif defined(__x86_64__)
#define IN_REGISTER "+x"
#elif defined(__aarch64__)
#define IN_REGISTER "+w"
#else
#define IN_REGISTER "+m"
#endif
inline Vec rounded(Vec product) {
    asm("" : IN_REGISTER(product));
    return product;
}
inline float rounded(float product) {
    asm("" : IN_REGISTER(product));
    return product;
}

// The larger, or the smaller, of two numbers; b where either is NaN.
#if defined(__AVX512F__) && !defined(__clang__)
inline Vec larger(Vec a, Vec b) { return (Vec)__builtin_ia32_maxps512_mask(a, b, a, 0xffff, 4); }
inline Vec smaller(Vec a, Vec b) { return (Vec)__builtin_ia32_minps512_mask(a, b, a, 0xffff, 4); }
#elif defined(__AVX__) && !defined(__AVX512F__)
inline Vec larger(Vec a, Vec b) { return __builtin_ia32_maxps256(a, b); }
inline Vec smaller(Vec a, Vec b) { return __builtin_ia32_minps256(a, b); }
#else
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }
inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
#endif

inline Vec maximum(Vec a, Vec b) { return a == a ? larger(a, b) : a; }  // NaN wins
inline Vec minimum(Vec a, Vec b) { return a == a ? smaller(a, b) : a; }
inline Vec absolute(Vec a) { return floats(bits(a) & 0x7fffffff); }
inline Vec copy_sign(Vec size, Vec sign) {
    return floats((bits(size) & 0x7fffffff) | (bits(sign) & 0x80000000));
}

#if defined(__AVX512F__)
constexpr int downwards = 9;  // without an exception
inline Vec floor(Vec x) { return (Vec)__builtin_ia32_rndscaleps_mask(x, downwards, x, 0xffff, 4); }
#elif defined(__AVX__)
constexpr int downwards = 9;
inline Vec floor(Vec x) { return (Vec)__builtin_ia32_roundps256(x, downwards); }
#else
inline Vec floor(Vec x) {
    const Vec cut = __builtin_convertvector(__builtin_convertvector(x, Int), Vec);
    const Vec down = cut > x ? cut - 1.0f : cut;
    return absolute(x) < 8388608.0f ? down : x;  // from 2^23 on all numbers are whole
}
#endif

template <float (*FUNCTION)(float)>
inline Vec each(Vec x) {
    Vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = FUNCTION(x[lane]);
    return result;
}

inline Vec sqrt(Vec x) { return each<sqrtf>(x); }
inline Vec sin(Vec x) { return each<sinf>(x); }
inline Vec cos(Vec x) { return each<cosf>(x); }
inline Vec pow(Vec x, Vec y) {
    Vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = powf(x[lane], y[lane]);
    return result;
}

// The number nearest to x within limits; NaN stays.
inline Vec clamped(Vec x, float low, float high) { return larger(splat(low), smaller(splat(high), x)); }

// exp(rest) times a power of two, which may leave the range of floats.
#if defined(__AVX512F__) && !defined(__clang__)
inline Vec scaled_exp(Vec rest, Vec whole) {
    Vec power = rest * 1.38145986e-3f + 8.36871698e-3f;
    power = power * rest + 4.16683881e-2f;
    power = power * rest + 1.66665206e-1f;
    power = power * rest + 4.99999934e-1f;
    power = power * rest + 1.0f;
    power = power * rest + 1.0f;
    return (Vec)__builtin_ia32_scalefps512_mask(power, whole, power, 0xffff, 4);
}
#else
inline Vec scaled_exp(Vec rest, Vec shifted) {  // times 4 to the whole number that was shifted
    Vec power = rest * 1.96118024e-4f + 1.41043041e-3f;
    power = power * rest + 8.33609887e-3f;
    power = power * rest + 4.16612774e-2f;
    power = power * rest + 1.66666150e-1f;
    power = power * rest + 5.00000358e-1f;
    power = power * (rest * rest) + rest + 1.0f;
    const Vec root = floats(bits(shifted) << 23);
    return power * root * root;
}
#endif

// Within 2 ulp everywhere, denormal results included.
inline Vec exp(Vec x) {
    x = clamped(x, -105.0f, 89.0f);
#if defined(__AVX512F__) && !defined(__clang__)
    // exp(x) = 2^whole exp(rest): one instruction multiplies with any power of two.
    const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23
    const Vec whole = shifted - 12582912.0f;
    const Vec rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;  // log 2 in two parts
    return scaled_exp(rest, whole);
#else
    // exp(x) = 4^whole exp(rest): 2^whole can be held, and one product with it rounds to a denormal.
    const Vec shifted = x * 0.721347520f + 12583039.0f;  // 1.5 * 2^23 + 127: a whole number, as an exponent
    const Vec whole = shifted - 12583039.0f;
    const Vec rest = (x - whole * 1.38671875f) - whole * -4.24388880e-4f;  // 2 log 2 in two parts
    return scaled_exp(rest, shifted);
#endif
}

// Within 2 ulp, and exact for whole x: what is left beside a whole number, or an even one, is exact.
inline Vec exp2(Vec x) {
    x = clamped(x, -151.0f, 129.0f);
#if defined(__AVX512F__) && !defined(__clang__)
    const Vec whole = (x + 12582912.0f) - 12582912.0f;
    return scaled_exp((x - whole) * 0.693147181f, whole);
#else
    const Vec shifted = x * 0.5f + 12583039.0f;
    const Vec whole = shifted - 12583039.0f;
    return scaled_exp((x - whole * 2.0f) * 0.693147181f, shifted);
#endif
}

// exp(x) - 1, within 2 ulp: as 2^whole (exp(rest) - 1) + (2^whole - 1), since a plain difference loses digits.
inline Vec expm1(Vec x) {
    const Vec near = clamped(x, -30.0f, 88.0f);
    const Vec shifted = near * 1.44269504f + 12583039.0f;  // 1.5 * 2^23 + 127: a whole number, as an exponent
    const Vec whole = shifted - 12583039.0f;
    const Vec rest = (near - whole * 0.693359375f) - whole * -2.12194440e-4f;  // log 2 in two parts
    Vec small = rest * 1.98412698e-4f + 1.38888889e-3f;
    small = small * rest + 8.33333333e-3f;
    small = small * rest + 4.16666667e-2f;
    small = small * rest + 1.66666667e-1f;
    small = small * rest + 0.5f;
    small = small * (rest * rest) + rest;
    const Vec power = floats(bits(shifted) << 23);
    const Vec made = small * power + (power - 1.0f);
    return copy_sign(x > 88.0f ? exp(x) : made, x);  // -0 stays -0
}

// Within 3 ulp.
inline Vec tanh(Vec x) {
    const Vec size = absolute(x);
    const Vec square = x * x;
    Vec small = square * -5.70498872745e-3f + 2.06390887954e-2f;
    small = small * square - 5.37397155531e-2f;
    small = small * square + 1.33314422036e-1f;
    small = small * square - 3.33332819422e-1f;
    small = small * square * x + x;
    const Vec large = 1.0f - 2.0f / (1.0f + exp(2.0f * size));
    return copy_sign(size < 0.625f ? small : large, x);  // -0 stays -0
}

// Within 3 ulp (the coefficients are N. Juffa's).
inline Vec erf(Vec x) {
    const Vec size = absolute(x);
    const Vec square = x * x;
    const Vec reach = size > 4.0f ? splat(4.0f) : size;  // 1 from there on
    const Vec reach2 = reach * reach;
    Vec large = reach * -1.72853470e-5f + 3.83197126e-4f;
    large = large * reach2 + (reach * -3.88396438e-3f + 2.42546219e-2f);
    large = large * reach - 1.06777877e-1f;
    large = large * reach - 6.34846687e-1f;
    large = large * reach - 1.28717512e-1f;
    large = large * reach - reach;
    large = copy_sign(1.0f - exp(large), x);
    Vec small = square * -5.96761703e-4f + 4.99119423e-3f;
    small = small * square - 2.67681349e-2f;
    small = small * square + 1.12819925e-1f;
    small = small * square - 3.76125336e-1f;
    small = small * square + 1.28379166e-1f;
    small = small * x + x;
    return size > 0.927734375f ? large : small;
}

// Within 2 ulp.
inline Vec log(Vec x) {
    const Int tiny = x < 1.17549435e-38f;
    const Vec normal = tiny ? x * 8388608.0f : x;  // 2^23
    const Bits raw = bits(normal);
    Int exponent = (Int)(raw >> 23) - 126 - (tiny ? Int{} + 23 : Int{});
    Vec mantissa = floats((raw & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
    const Int low = mantissa < 0.707106781f;
    exponent += low;
    mantissa = (low ? mantissa + mantissa : mantissa) - 1.0f;
    const Vec square = mantissa * mantissa;
    Vec value = mantissa * 7.0376836292e-2f - 1.1514610310e-1f;
    value = value * mantissa + 1.1676998740e-1f;
    value = value * mantissa - 1.2420140846e-1f;
    value = value * mantissa + 1.4249322787e-1f;
    value = value * mantissa - 1.6668057665e-1f;
    value = value * mantissa + 2.0000714765e-1f;
    value = value * mantissa - 2.4999993993e-1f;
    value = value * mantissa + 3.3333331174e-1f;
    const Vec scale = __builtin_convertvector(exponent, Vec);
    value = value * mantissa * square + scale * -2.12194440e-4f - 0.5f * square;
    Vec result = mantissa + value + scale * 0.693359375f;
    result = x == infinity ? x : result;
    result = x == 0.0f ? splat(-infinity) : result;
    return x >= 0.0f ? result : splat(__builtin_nanf(""));
}

// Within 3 ulp.
inline Vec log2(Vec x) { return each<log2f>(x); }
inline Vec log1p(Vec x) { return each<log1pf>(x); }

// A number by which vectors are divided: its reciprocal is taken once, since divisions are slow.
struct Divisor {
    float value, inverse;
    bool is_usual;  // above 0, and neither so small nor so large that parts of quotients are lost on the way

    Divisor(float value) : value(value), inverse(1.0f / value) {
        is_usual = value >= 0x1p-60f && value <= 0x1p60f;
    }
};

// The quotient as a division rounds it: what a product with the reciprocal is off by is known, and taken off.
inline Vec operator/(Vec a, const Divisor& b) {
#if defined(__FMA__) || defined(__aarch64__)
    if (b.is_usual) {
        const Vec near = clamped(a * b.inverse, -0x1.fffffep127f, 0x1.fffffep127f);
        const Vec excess = near * b.value - a;  // one instruction, which rounds once
        return near - excess * b.inverse;
    }
#endif
    return a / b.value;
}

// A quotient that is rounded to a half type, where a unit of fp32 is nothing.
inline Vec rough_quotient(Vec a, const Divisor& b) { return b.is_usual ? a * b.inverse : a / b.value; }

// The same on one number, where a step has no axis to run along.
inline float truth(bool condition) { return condition ? 1.0f : 0.0f; }
inline float where(float mask, float a, float b) { return mask != 0.0f ? a : b; }
inline float keep(float mask, float a) { return mask != 0.0f ? a : 0.0f; }
inline float maximum(float a, float b) { return a > b || a != a ? a : b; }
inline float minimum(float a, float b) { return a < b || a != a ? a : b; }
inline float absolute(float a) { return fabsf(a); }
inline float floor(float x) { return floorf(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float sin(float x) { return sinf(x); }
inline float cos(float x) { return cosf(x); }
inline float pow(float x, float y) { return powf(x, y); }
inline float exp(float x) { return exp(splat(x))[0]; }
inline float exp2(float x) { return exp2(splat(x))[0]; }
inline float expm1(float x) { return expm1(splat(x))[0]; }
inline float tanh(float x) { return tanh(splat(x))[0]; }
inline float erf(float x) { return erf(splat(x))[0]; }
inline float log(float x) { return log(splat(x))[0]; }
inline float log2(float x) { return log2f(x); }
inline float log1p(float x) { return log1pf(x); }

}  // namespace superopt
