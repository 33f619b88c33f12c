// Functions of each element: GELU (0), x * P(x) with the normal distribution P, whose derivative is P(x) + x * p(x) with
// the density p; SiLU (1), x times its sigmoid. Steps and order are those of the CPU (`cpu/kernels/activation.rs` and
// `gelu.rs`, which give the reasons), for the same bits.

#define FAR 13.0f

// P(x); stores p(x) in `density`.
FUNCTION float normal(float x, float *density) {
    const float mills[9] = {-0.000811667f,  -0.0016495478f, 0.0047129025f, 0.013256246f, -0.035561282f,
                            -0.07877859f, 0.5177582f,     -1.2345076f,   1.8155005f};
    float size = fabsf(x);
    float t = size < FAR ? size : FAR;
    // t^2 / 2 = (the square of its upper half, which is exact, - the rest) / 2.
    float upper = FLOAT_OF(BITS_OF(t) & 0xFFFFF000u);
    float left = (t - upper) * (t + upper) * 0.5f;
    float scale, rest = exponential_parts(upper * upper * -0.5f, left, &scale);
    *density = size < FAR ? (rest + 1.0f) * scale * 0.39894228f : 0.0f;
    float inverse = 1.0f / (t + 2.875f);
    float tail = polynomial(mills, 9, (t - 2.875f) * inverse) * inverse * *density;
    return x < 0.0f ? tail : 1.0f - tail;
}

// The sigmoid of x; stores that of -x in `other`.
FUNCTION float sigmoids(float x, float *other) {
    float tail = exponential(-fabsf(x)), large = 1.0f / (1.0f + tail), small = tail * large;
    *other = x < 0.0f ? large : small;
    return x < 0.0f ? small : large;
}

// f(x), the function by its number.
FUNCTION float activation(unsigned function, float x) {
    float other;
    switch (function) {
        case 0: return x * normal(x, &other);
        default: return x * sigmoids(x, &other);
    }
}

// Its derivative.
FUNCTION float activation_slope(unsigned function, float x) {
    float other, value;
    switch (function) {
        case 0: value = normal(x, &other); return value + x * other;
        default: value = sigmoids(x, &other); return value * (1.0f + x * other);
    }
}

KERNEL(activation_forward, (const Map *x, Map *y, unsigned long long n, unsigned function)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = activation(function, v[l]);
    store_map(y, i, count, v);
}

KERNEL(activation_backward, (const Map *x, const Map *dy, Map *dx, unsigned long long n, unsigned function,
                             unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], g[4], old[4];
    load_map(x, i, count, v);
    load_map(dy, i, count, g);
    if (accumulate) load_map(dx, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float gradient = g[l] * activation_slope(function, v[l]);
        v[l] = accumulate ? old[l] + gradient : gradient;
    }
    store_map(dx, i, count, v);
}
