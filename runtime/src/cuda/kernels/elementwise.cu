// Single passes over a tensor: ReLU with its two gradients, dropout, sums, products, the parts of a concatenation, and the
// update of a parameter. A thread has four elements (eight for a ReLU with a mask, one byte of it), and reads them before
// it writes any, so that an operand may be in place of another.

// min(max(x, 0), ceiling); NaN stays NaN.
FUNCTION float relu(float x, float ceiling) {
    float above = x <= 0.0f ? 0.0f : x;
    return above >= ceiling ? ceiling : above;
}

KERNEL(relu_forward, (const Map *x, Map *y, unsigned long long n, float ceiling)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = relu(v[l], ceiling);
    store_map(y, i, count, v);
}

// y = x + the bias of its channel. After a library's convolution, which adds no bias, x is y.
KERNEL(add_bias, (const Map *x, const float *bias, Map *y, unsigned long long n, unsigned channels)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        v[l] += l < count ? bias[channel] : 0.0f;
        if (++channel == channels) channel = 0;
    }
    store_map(y, i, count, v);
}

KERNEL(relu_backward, (const Map *y, const Map *dy, Map *dx, unsigned long long n, float ceiling,
                       unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float out[4], v[4], old[4];
    load_map(y, i, count, out);
    load_map(dy, i, count, v);
    if (accumulate) load_map(dx, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float gradient = out[l] > 0.0f && out[l] < ceiling ? v[l] : 0.0f;
        v[l] = accumulate ? old[l] + gradient : gradient;
    }
    store_map(dx, i, count, v);
}

KERNEL(relu_mask_forward, (const Map *x, Map *y, unsigned char *mask, unsigned long long n, float ceiling)) {
    u64 byte = INDEX;
    unsigned bits = 0;
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        u64 i = 8 * byte + 4 * half;
        unsigned count = there(n, i, 4);
        float v[4];
        load_map(x, i, count, v);
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            bits |= (v[l] > 0.0f && v[l] < ceiling ? 1u : 0u) << (4 * half + l);
            v[l] = relu(v[l], ceiling);
        }
        store_map(y, i, count, v);
    }
    if (8 * byte < n) mask[byte] = (unsigned char)bits;
}

KERNEL(relu_mask_backward, (const unsigned char *mask, const Map *dy, Map *dx, unsigned long long n, unsigned accumulate)) {
    u64 byte = INDEX;
    if (8 * byte >= n) return;
    unsigned bits = mask[byte];
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        u64 i = 8 * byte + 4 * half;
        unsigned count = there(n, i, 4);
        float v[4], sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        load_map(dy, i, count, v);
        if (accumulate) load_map(dx, i, count, sum);
        UNROLL
        for (unsigned l = 0; l < 4; l++) sum[l] += bits >> (4 * half + l) & 1 ? v[l] : 0.0f;
        store_map(dx, i, count, sum);
    }
}

KERNEL(add, (const Map *a, const Map *b, Map *y, unsigned long long n)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], w[4];
    load_map(a, i, count, v);
    load_map(b, i, count, w);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] += w[l];
    store_map(y, i, count, v);
}

KERNEL(multiply, (const Map *a, const Map *b, Map *y, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], w[4], old[4];
    load_map(a, i, count, v);
    load_map(b, i, count, w);
    if (accumulate) load_map(y, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float product = v[l] * w[l];
        v[l] = accumulate ? old[l] + product : product;
    }
    store_map(y, i, count, v);
}

// Philox4x32-10: four random words for a key and a counter, which they replace.
FUNCTION void philox(unsigned key_low, unsigned key_high, unsigned c[4]) {
    UNROLL
    for (unsigned round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
        unsigned first = (unsigned)(b >> 32) ^ c[1] ^ key_low;
        unsigned third = (unsigned)(a >> 32) ^ c[3] ^ key_high;
        c[0] = first;
        c[1] = (unsigned)b;
        c[2] = third;
        c[3] = (unsigned)a;
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
}

// A random word as a number in [0, 1).
FUNCTION float unit(unsigned word) { return (float)(word >> 8) / 16777216.0f; }

// Forward and backward are the same map, drawn from one counter. hyper's words 0 to 2 are seed low, seed high and step.
KERNEL(dropout, (const unsigned *hyper, const Map *x, Map *y, unsigned long long n, float probability, float scale,
                 unsigned stream, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    if (count == 0) return;
    // A block of words serves these four.
    unsigned words[4] = {(unsigned)(i / 4), (unsigned)(i / 4 >> 32), hyper[2], stream};
    philox(hyper[0], hyper[1], words);
    float v[4], old[4];
    load_map(x, i, count, v);
    if (accumulate) load_map(y, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float kept = unit(words[l]) < probability ? 0.0f : v[l] * scale;
        v[l] = accumulate ? old[l] + kept : kept;
    }
    store_map(y, i, count, v);
}

// One element of the part per thread; the whole has `total` channels.
KERNEL(concat_part, (const Map *x, Map *y, unsigned long long n, unsigned channels, unsigned first, unsigned total)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 row = quotient(i, channels);
    y[row * total + first + (i - row * channels)] = x[i];
}

KERNEL(split_part, (const Map *dy, Map *dx, unsigned long long n, unsigned channels, unsigned first, unsigned total,
                    unsigned accumulate)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 row = quotient(i, channels);
    float v = number(dy[row * total + first + (i - row * channels)]);
    dx[i] = stored(accumulate ? number(dx[i]) + v : v);
}

// hyper's words 3 to 5 are learning rate, momentum and weight decay.
KERNEL(sgd, (const float *hyper, float *parameter, const float *gradient, float *momentum, unsigned long long n, unsigned decay)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float rate = hyper[3], keep = hyper[4], penalty = decay ? hyper[5] : 0.0f;
    float p[4], g[4], m[4];
    load(parameter, i, count, p);
    load(gradient, i, count, g);
    load(momentum, i, count, m);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        m[l] = keep * m[l] + (g[l] + penalty * p[l]);
        p[l] -= rate * m[l];
    }
    store(momentum, i, count, m);
    store(parameter, i, count, p);
}

// hyper's words 3 to 10 are the share of the parameter kept, beta1, 1 - beta1, beta2, 1 - beta2, the correction of the root, epsilon
// and the step length.
KERNEL(adamw, (const float *hyper, float *parameter, const float *gradient, float *first, float *second, unsigned long long n)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float keep = hyper[3], beta1 = hyper[4], rest1 = hyper[5], beta2 = hyper[6], rest2 = hyper[7];
    float root = hyper[8], epsilon = hyper[9], length = hyper[10];
    float p[4], g[4], m[4], v[4];
    load(parameter, i, count, p);
    load(gradient, i, count, g);
    load(first, i, count, m);
    load(second, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float now = g[l];
        m[l] = beta1 * m[l] + rest1 * now;
        v[l] = beta2 * v[l] + rest2 * now * now;
        p[l] = keep * p[l] - length * m[l] / (root * sqrtf(v[l]) + epsilon);
    }
    store(first, i, count, m);
    store(second, i, count, v);
    store(parameter, i, count, p);
}
