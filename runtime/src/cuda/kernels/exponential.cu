// exp(x) for x <= 0, the sigmoid, and tanh. Steps and order are those of the CPU (`cpu/kernels/exponential.rs`, which gives
// the reasons), for the same bits.

// Exponentials below this are 0.
#define LEAST -87.0f

// c[0] * v^(n - 1) + ... + c[n - 1].
FUNCTION float polynomial(const float *c, unsigned n, float v) {
    float sum = c[0];
    UNROLL
    for (unsigned i = 1; i < n; i++) sum = sum * v + c[i];
    return sum;
}

// exp(exponent - left) = (1 + the result) * scale, a power of 2.
FUNCTION float exponential_parts(float exponent, float left, float *scale) {
    const float power_of_e[5] = {0.0013686008f, 0.008366833f, 0.041669074f, 0.16666552f, 0.49999997f};
    // Nearest whole number, which is also in the lowest bits of the sum.
    float shifted = exponent * 1.44269504f + 12582912.0f;
    float power = shifted - 12582912.0f;
    float r = exponent - power * 0.69311523f - power * 3.1946185e-5f - left;
    *scale = FLOAT_OF((BITS_OF(shifted) << 23) + 0x3F800000u);
    return r * r * polynomial(power_of_e, 5, r) + r;
}

FUNCTION float exponential(float x) {
    unsigned far = x < LEAST;
    float scale, rest = exponential_parts(far ? LEAST : x, 0.0f, &scale);
    return far ? 0.0f : (rest + 1.0f) * scale;
}

FUNCTION float sigmoid(float x) {
    float tail = exponential(-fabsf(x)), above = 1.0f / (1.0f + tail);
    return x < 0.0f ? tail * above : above;
}

FUNCTION float saturated_tanh(float x) {
    float exponent = -2.0f * fabsf(x);
    unsigned far = exponent < LEAST;
    float scale, rest = exponential_parts(far ? LEAST : exponent, 0.0f, &scale);
    // exp(-2|x|) - 1: near 0 the power is 1, and only the rest is left.
    float less = rest * scale + (scale - 1.0f);
    float size = far ? 1.0f : -less / (less + 2.0f);
    return x < 0.0f ? -size : size;
}
