// Products with a scale: what is scaled is [groups][rows][channels], the scale [groups][channels]. The same products as those of
// the CPU (`cpu/kernels/multiply.rs`); the sums are in an order of their own.

// y = x * scale, or added to y; n is groups x rows x channels.
KERNEL(multiply, (const Map *x, const float *scale, Map *y, unsigned long long n, unsigned long long rows,
                  unsigned channels, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    if (count == 0) return;
    u64 row = quotient(i, channels), group = row / rows;
    unsigned channel = (unsigned)(i - row * channels);
    u64 left = (group + 1) * rows - row;
    float v[4], old[4];
    load_map(x, i, count, v);
    if (accumulate) load_map(y, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        if (l < count) {
            float product = v[l] * scale[group * channels + channel];
            v[l] = accumulate ? old[l] + product : product;
        }
        if (++channel == channels) {
            channel = 0;
            if (--left == 0) {
                left = rows;
                group++;
            }
        }
    }
    store_map(y, i, count, v);
}

// Part k of K of a group has its rows k, k + K, ...: parts[k] = the sums of x * dy over them. n is K x width, and width is
// groups x channels.
KERNEL(multiply_parts, (const Map *x, const Map *dy, float *parts, unsigned long long n, unsigned long long width,
                        unsigned long long rows, unsigned channels, unsigned count)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 part = t / width, of_scale = t - part * width, group = quotient(of_scale, channels);
    u64 start = group * rows * channels + (of_scale - group * channels);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 row = part;
    for (; row + 3 * (u64)count < rows; row += 4 * (u64)count) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 i = start + (row + l * (u64)count) * channels;
            sum[l] += number(x[i]) * number(dy[i]);
        }
    }
    for (; row < rows; row += count) {
        u64 i = start + row * channels;
        sum[0] += number(x[i]) * number(dy[i]);
    }
    parts[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
