// GELU: x * P(x) with the normal distribution P, and dy * (P(x) + x * p(x)) with the density p. The same steps, in the same
// order, as those of the CPU (`cpu/kernels/gelu.rs`, which says why they are these): the same bits.

#define FAR 13.0f

// P(x), and p(x) to `density`.
FUNCTION float normal(float x, float *density) {
    const float mills[9] = {-0.000811667f,  -0.0016495478f, 0.0047129025f, 0.013256246f, -0.035561282f,
                            -0.07877859f, 0.5177582f,     -1.2345076f,   1.8155005f};
    float size = fabsf(x);
    float t = size < FAR ? size : FAR;
    // t^2 / 2 = (the square of its upper half, which is exact, - what is left) / 2.
    float upper = FLOAT_OF(BITS_OF(t) & 0xFFFFF000u);
    float left = (t - upper) * (t + upper) * 0.5f;
    float scale, rest = exponential_parts(upper * upper * -0.5f, left, &scale);
    *density = size < FAR ? (rest + 1.0f) * scale * 0.39894228f : 0.0f;
    float inverse = 1.0f / (t + 2.875f);
    float tail = polynomial(mills, 9, (t - 2.875f) * inverse) * inverse * *density;
    return x < 0.0f ? tail : 1.0f - tail;
}

KERNEL(gelu_forward, (const float *x, float *y, unsigned long long n)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], density;
    load(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = v[l] * normal(v[l], &density);
    store(y, i, count, v);
}

KERNEL(gelu_backward, (const float *x, const float *dy, float *dx, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], g[4], old[4];
    load(x, i, count, v);
    load(dy, i, count, g);
    if (accumulate) load(dx, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float density, below = normal(v[l], &density);
        float gradient = g[l] * (below + v[l] * density);
        v[l] = accumulate ? old[l] + gradient : gradient;
    }
    store(dx, i, count, v);
}
