// Layer normalisation and RMS normalisation: each row by itself, of adjacent channels.
//
// Both have the same kernels, except for their statistics: without `centred`, as for RMS normalisation, nothing is subtracted
// from x, and there is no beta.
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

// parts[row] = [sum of squares; pieces]. n is rows x pieces.
KERNEL(rms_norm_squares, (const Map *x, float *parts, unsigned long long n, unsigned channels, unsigned pieces)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), start = row * channels, c = t - row * pieces;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (; c + 3 * pieces < channels; c += 4 * pieces) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            float v = number(x[start + c + l * pieces]);
            sum[l] += v * v;
        }
    }
    for (; c < channels; c += pieces) sum[0] += number(x[start + c]) * number(x[start + c]);
    parts[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The sum of a row's pieces, in order.
FUNCTION double sum_of_pieces(const float *parts, u64 row, unsigned pieces) {
    double sum = 0.0;
    for (unsigned piece = 0; piece < pieces; piece++) sum += (double)parts[row * pieces + piece];
    return sum;
}

// stats = 1 / sqrt(mean square + epsilon).
KERNEL(rms_norm_stats, (const float *parts, float *stats, unsigned long long rows, unsigned channels, unsigned pieces,
                        float epsilon)) {
    u64 row = INDEX;
    if (row >= rows) return;
    double square = sum_of_pieces(parts, row, pieces) / (double)channels;
    stats[row] = (float)(1.0 / sqrt(square + (double)epsilon));
}

// Mean that is subtracted from a row (0 if the row is not centred), and the factor that follows.
FUNCTION float mean_of(const float *stats, u64 row, unsigned centred) { return centred ? stats[row] : 0.0f; }

FUNCTION float inverse_of(const float *stats, u64 rows, u64 row, unsigned centred) {
    return stats[centred ? rows + row : row];
}

// y = (x - mean) * inverse * gamma + beta; n is rows x channels.
KERNEL(row_norm_apply, (const Map *x, const float *stats, const float *gamma, const float *beta, Map *y,
                        unsigned long long n, unsigned long long rows, unsigned channels, unsigned centred)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    u64 row = quotient(i, channels);
    unsigned channel = (unsigned)(i - row * channels);
    float v[4];
    load_map(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        if (l < count) {
            float mean = mean_of(stats, row, centred), inverse = inverse_of(stats, rows, row, centred);
            v[l] = (v[l] - mean) * inverse * gamma[channel];
            if (centred) v[l] += beta[channel];
        }
        channel++;
        if (channel == channels) {
            channel = 0;
            row++;
        }
    }
    store_map(y, i, count, v);
}

// With g = dy * gamma, parts = [sum of g * (x - mean); rows x pieces][sum of g; rows x pieces], the latter only if centred. n
// is rows x pieces.
KERNEL(row_norm_products, (const Map *x, const Map *dy, const float *gamma, const float *stats, float *parts,
                           unsigned long long n, unsigned channels, unsigned pieces, unsigned centred)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, pieces), start = row * channels, c = t - row * pieces;
    float mean = mean_of(stats, row, centred);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
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
    parts[t] = (product[0] + product[1]) + (product[2] + product[3]);
    if (centred) parts[n + t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// slopes = [mean of g * xhat; rows][mean of g; rows], the latter only if centred, where xhat = (x - mean) * inverse.
KERNEL(row_norm_slopes, (const float *parts, const float *stats, float *slopes, unsigned long long rows,
                         unsigned channels, unsigned pieces, unsigned centred)) {
    u64 row = INDEX;
    if (row >= rows) return;
    double inverse = (double)inverse_of(stats, rows, row, centred);
    slopes[row] = (float)(sum_of_pieces(parts, row, pieces) * inverse / (double)channels);
    if (centred) slopes[rows + row] = (float)(sum_of_pieces(parts, rows + row, pieces) / (double)channels);
}

// Part k of K has the rows k, k + K, ...: gammas[k] = sum of dy * xhat over them, and if centred betas[k] = sum of dy.
KERNEL(row_norm_gradients, (const Map *x, const Map *dy, const float *stats, float *gammas, float *betas,
                            unsigned long long rows, unsigned channels, unsigned count, unsigned centred)) {
    u64 t = INDEX;
    if (t >= (u64)count * channels) return;
    u64 part = quotient(t, channels), channel = t - part * channels;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 row = part;
    for (; row + 3 * (u64)count < rows; row += 4 * (u64)count) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 r = row + l * (u64)count, i = r * channels + channel;
            float gradient = number(dy[i]), apart = number(x[i]) - mean_of(stats, r, centred);
            sum[l] += gradient;
            product[l] += gradient * (apart * inverse_of(stats, rows, r, centred));
        }
    }
    for (; row < rows; row += count) {
        u64 i = row * channels + channel;
        float gradient = number(dy[i]), apart = number(x[i]) - mean_of(stats, row, centred);
        sum[0] += gradient;
        product[0] += gradient * (apart * inverse_of(stats, rows, row, centred));
    }
    gammas[t] = (product[0] + product[1]) + (product[2] + product[3]);
    if (centred) betas[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// dx = (g - mean of g - xhat * mean of g * xhat) * inverse; n is rows x channels.
KERNEL(row_norm_backward, (const Map *x, const Map *dy, const float *gamma, const float *stats, const float *slopes, Map *dx,
                           unsigned long long n, unsigned long long rows, unsigned channels, unsigned accumulate,
                           unsigned centred)) {
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
            float inverse = inverse_of(stats, rows, row, centred), around = centred ? slopes[rows + row] : 0.0f;
            float xhat = (v[l] - mean_of(stats, row, centred)) * inverse;
            float gradient = inverse * (g[l] * gamma[channel] - around - xhat * slopes[row]);
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
