// Layer normalisation: each row by itself, of adjacent channels.
//
// A few threads share a row, one piece each: piece k of K has the channels k, k + K, k + 2K, ..., so that neighbouring
// threads read neighbouring addresses. One thread joins the results of the pieces, in order, in f64.

// Mean of x[first], x[first + step], ... before `end`, and the sum of squared distances from it. Registers hold eight
// numbers at a time, which are joined to the earlier ones by the formula of Chan, Golub and LeVeque (1979), in which no
// large numbers are subtracted.
FUNCTION void moments(const Map *x, u64 first, u64 step, u64 end, float *mean_of, float *squares_of) {
    float mean = 0.0f, squares = 0.0f, seen = 0.0f;
    u64 i = first;
    for (; i + 7 * step < end; i += 8 * step) {
        float v[8], sum = 0.0f, around = 0.0f;
        UNROLL
        for (unsigned l = 0; l < 8; l++) v[l] = number(x[i + l * step]);
        UNROLL
        for (unsigned l = 0; l < 8; l++) sum += v[l];
        float middle = sum * 0.125f, apart = middle - mean, share = 8.0f / (seen + 8.0f);
        UNROLL
        for (unsigned l = 0; l < 8; l++) around += (v[l] - middle) * (v[l] - middle);
        squares += around + apart * apart * seen * share;
        mean += apart * share;
        seen += 8.0f;
    }
    for (; i < end; i += step) {
        float apart = number(x[i]) - mean, share = 1.0f / (seen + 1.0f);
        squares += apart * apart * seen * share;
        mean += apart * share;
        seen += 1.0f;
    }
    *mean_of = mean;
    *squares_of = squares;
}

// parts[row] = [mean; pieces][sum of squared distances from it; pieces]. n is rows x pieces.
KERNEL(layer_norm_moments, (const Map *x, float *parts, unsigned long long n, unsigned channels, unsigned pieces)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), piece = t - row * pieces;
    float mean, squares;
    moments(x + row * channels, piece, pieces, channels, &mean, &squares);
    parts[2 * row * pieces + piece] = mean;
    parts[(2 * row + 1) * pieces + piece] = squares;
}

// stats = [mean; rows][1 / sqrt(variance + epsilon); rows].
KERNEL(layer_norm_stats, (const float *parts, float *stats, unsigned long long rows, unsigned channels, unsigned pieces,
                          float epsilon)) {
    u64 row = INDEX;
    if (row >= rows) return;
    const float *means = parts + 2 * row * pieces;
    double mean, squares, seen;
    join(means, means + pieces, 1, channels, pieces, 1, 0, pieces, &mean, &squares, &seen);
    stats[row] = (float)mean;
    stats[rows + row] = (float)(1.0 / sqrt(squares / seen + (double)epsilon));
}

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; n is rows x channels.
KERNEL(layer_norm_apply, (const Map *x, const float *stats, const float *gamma, const float *beta, Map *y,
                          unsigned long long n, unsigned long long rows, unsigned channels)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    u64 row = quotient(i, channels);
    unsigned channel = (unsigned)(i - row * channels);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        if (l < count) v[l] = (v[l] - stats[row]) * stats[rows + row] * gamma[channel] + beta[channel];
        channel++;
        if (channel == channels) {
            channel = 0;
            row++;
        }
    }
    store_map(y, i, count, v);
}

// With g = dy * gamma, parts[row] = [sum of g; pieces][sum of g * (x - mean); pieces]. n is rows x pieces.
KERNEL(layer_norm_products, (const Map *x, const Map *dy, const float *gamma, const float *stats, float *parts,
                             unsigned long long n, unsigned channels, unsigned pieces)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), piece = t - row * pieces, start = row * channels;
    float mean = stats[row];
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 c = piece;
    for (; c + 3 * pieces < channels; c += 4 * pieces) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 channel = c + l * pieces;
            float scaled = number(dy[start + channel]) * gamma[channel];
            sum[l] += scaled;
            product[l] += scaled * (number(x[start + channel]) - mean);
        }
    }
    for (; c < channels; c += pieces) {
        float scaled = number(dy[start + c]) * gamma[c];
        sum[0] += scaled;
        product[0] += scaled * (number(x[start + c]) - mean);
    }
    parts[2 * row * pieces + piece] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    parts[(2 * row + 1) * pieces + piece] = (product[0] + product[1]) + (product[2] + product[3]);
}

// slopes = [mean of g; rows][mean of g * xhat; rows], where xhat = (x - mean) / sqrt(variance + epsilon).
KERNEL(layer_norm_slopes, (const float *parts, const float *stats, float *slopes, unsigned long long rows,
                           unsigned channels, unsigned pieces)) {
    u64 row = INDEX;
    if (row >= rows) return;
    double sum = 0.0, product = 0.0;
    for (unsigned piece = 0; piece < pieces; piece++) sum += (double)parts[2 * row * pieces + piece];
    for (unsigned piece = 0; piece < pieces; piece++) product += (double)parts[(2 * row + 1) * pieces + piece];
    slopes[row] = (float)(sum / (double)channels);
    slopes[rows + row] = (float)(product * (double)stats[rows + row] / (double)channels);
}

// Part k of K has the rows k, k + K, ...: gammas[k] = sum of dy * xhat and betas[k] = sum of dy over them.
KERNEL(layer_norm_gradients, (const Map *x, const Map *dy, const float *stats, float *gammas, float *betas,
                              unsigned long long rows, unsigned channels, unsigned count)) {
    u64 t = INDEX;
    if (t >= (u64)count * channels) return;
    u64 part = quotient(t, channels), channel = t - part * channels;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 row = part;
    for (; row + 3 * (u64)count < rows; row += 4 * (u64)count) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 r = row + l * (u64)count, i = r * channels + channel;
            float gradient = number(dy[i]);
            sum[l] += gradient;
            product[l] += gradient * ((number(x[i]) - stats[r]) * stats[rows + r]);
        }
    }
    for (; row < rows; row += count) {
        u64 i = row * channels + channel;
        float gradient = number(dy[i]);
        sum[0] += gradient;
        product[0] += gradient * ((number(x[i]) - stats[row]) * stats[rows + row]);
    }
    gammas[t] = (product[0] + product[1]) + (product[2] + product[3]);
    betas[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// dx = (g - mean of g - xhat * mean of g * xhat) / sqrt(variance + epsilon); n is rows x channels.
KERNEL(layer_norm_backward, (const Map *x, const Map *dy, const float *gamma, const float *stats,
                             const float *slopes, Map *dx, unsigned long long n, unsigned long long rows,
                             unsigned channels, unsigned accumulate)) {
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
            float inverse = stats[rows + row], xhat = (v[l] - stats[row]) * inverse;
            float gradient = inverse * (g[l] * gamma[channel] - slopes[row] - xhat * slopes[rows + row]);
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
