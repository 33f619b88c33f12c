// Normalisation by the root of the mean square of each row, in pieces as in layer normalisation: piece k of K has the
// channels k, k + K, k + 2K, ...

// Adds f over the channels of a piece, in four sums that are added in pairs.
#define SUM_PIECE(f)                                                                                                   \
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};                                                                           \
    u64 c = piece;                                                                                                     \
    for (; c + 3 * pieces < channels; c += 4 * pieces) {                                                               \
        UNROLL                                                                                                         \
        for (unsigned l = 0; l < 4; l++) sum[l] += f(c + l * pieces);                                                  \
    }                                                                                                                  \
    for (; c < channels; c += pieces) sum[0] += f(c);                                                                  \
    parts[t] = (sum[0] + sum[1]) + (sum[2] + sum[3])

// parts[row] = [sum of squares; pieces]. n is rows x pieces.
KERNEL(rms_norm_squares, (const Map *x, float *parts, unsigned long long n, unsigned channels, unsigned pieces)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), piece = t - row * pieces;
    const Map *of_row = x + row * channels;
#define SQUARE(channel) (number(of_row[channel]) * number(of_row[channel]))
    SUM_PIECE(SQUARE);
}

// stats = 1 / sqrt(mean square + epsilon).
KERNEL(rms_norm_stats, (const float *parts, float *stats, unsigned long long rows, unsigned channels, unsigned pieces,
                        float epsilon)) {
    u64 row = INDEX;
    if (row >= rows) return;
    double sum = 0.0;
    for (unsigned piece = 0; piece < pieces; piece++) sum += (double)parts[row * pieces + piece];
    stats[row] = (float)(1.0 / sqrt(sum / (double)channels + (double)epsilon));
}

// y = x / sqrt(mean square + epsilon) * gamma; n is rows x channels.
KERNEL(rms_norm_apply, (const Map *x, const float *stats, const float *gamma, Map *y, unsigned long long n,
                        unsigned channels)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    u64 row = quotient(i, channels);
    unsigned channel = (unsigned)(i - row * channels);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        if (l < count) v[l] = v[l] * stats[row] * gamma[channel];
        channel++;
        if (channel == channels) {
            channel = 0;
            row++;
        }
    }
    store_map(y, i, count, v);
}

// parts[row] = [sum of dy * gamma * x; pieces]. n is rows x pieces.
KERNEL(rms_norm_products, (const Map *x, const Map *dy, const float *gamma, float *parts, unsigned long long n,
                           unsigned channels, unsigned pieces)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), piece = t - row * pieces, start = row * channels;
#define PRODUCT(channel) (number(dy[start + (channel)]) * gamma[channel] * number(x[start + (channel)]))
    SUM_PIECE(PRODUCT);
}

// slopes = mean of g * xhat, where g = dy * gamma and xhat = x / sqrt(mean square + epsilon).
KERNEL(rms_norm_slopes, (const float *parts, const float *stats, float *slopes, unsigned long long rows,
                         unsigned channels, unsigned pieces)) {
    u64 row = INDEX;
    if (row >= rows) return;
    double product = 0.0;
    for (unsigned piece = 0; piece < pieces; piece++) product += (double)parts[row * pieces + piece];
    slopes[row] = (float)(product * (double)stats[row] / (double)channels);
}

// Part k of K has the rows k, k + K, ...: gammas[k] = sum of dy * xhat over them.
KERNEL(rms_norm_gradients, (const Map *x, const Map *dy, const float *stats, float *gammas, unsigned long long rows,
                            unsigned channels, unsigned count)) {
    u64 t = INDEX;
    if (t >= (u64)count * channels) return;
    u64 part = quotient(t, channels), channel = t - part * channels;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 row = part;
    for (; row + 3 * (u64)count < rows; row += 4 * (u64)count) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 r = row + l * (u64)count, i = r * channels + channel;
            sum[l] += number(dy[i]) * (number(x[i]) * stats[r]);
        }
    }
    for (; row < rows; row += count) {
        u64 i = row * channels + channel;
        sum[0] += number(dy[i]) * (number(x[i]) * stats[row]);
    }
    gammas[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// dx = (g - xhat * mean of g * xhat) / sqrt(mean square + epsilon); n is rows x channels.
KERNEL(rms_norm_backward, (const Map *x, const Map *dy, const float *gamma, const float *stats, const float *slopes,
                           Map *dx, unsigned long long n, unsigned channels, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    u64 row = quotient(i, channels);
    unsigned channel = (unsigned)(i - row * channels);
    float v[4], g[4], old[4];
    load_map(x, i, count, v);
    load_map(dy, i, count, g);
    if (accumulate) load_map(dx, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        if (l < count) {
            float inverse = stats[row];
            float gradient = inverse * (g[l] * gamma[channel] - v[l] * inverse * slopes[row]);
            v[l] = accumulate ? old[l] + gradient : gradient;
        }
        channel++;
        if (channel == channels) {
            channel = 0;
            row++;
        }
    }
    store_map(dx, i, count, v);
}
