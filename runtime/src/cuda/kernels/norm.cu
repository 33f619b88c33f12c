// Batch normalisation, and local response normalisation.
//
// A sum over rows is made in parts: part k of K has the rows k, k + K, k + 2K, ..., so that neighbouring threads read
// neighbouring addresses for any number of channels. A thread has four channels of a part, and one load brings all four if
// the number of channels is a multiple of 4. Parts are then summed FAN at a time, in f64: eight sums, each in order, which
// are added in pairs, so that eight loads are under way at once.

// The sum of eight, in pairs.
FUNCTION double in_pairs(const double v[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// sums[group][j] = sum of parts[i][j] over the `fan` parts of the group, or added to sums; n is groups x width.
KERNEL(sum_parts, (const float *parts, float *sums, unsigned long long n, unsigned long long width, unsigned count,
                   unsigned fan, unsigned accumulate)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 group = i / width, j = i - group * width;
    unsigned first = (unsigned)group * fan, last = count - first < fan ? count : first + fan;
    double sum[8] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    for (unsigned part = first; part < last; part += 8) {
        UNROLL
        for (unsigned l = 0; l < 8; l++)
            if (part + l < last) sum[l] += (double)parts[(part + l) * width + j];
    }
    float of_group = (float)in_pairs(sum);
    sums[i] = accumulate ? sums[i] + of_group : of_group;
}

// A thread's four channels of a part.
typedef struct {
    u64 part;
    unsigned channel, count, aligned;
} Columns;

FUNCTION Columns columns_of(u64 t, unsigned channels) {
    unsigned fours = channels / 4 + (channels % 4 != 0);
    Columns c;
    c.part = quotient(t, fours);
    c.channel = (unsigned)(t - c.part * fours) * 4;
    c.count = there(channels, c.channel, 4);
    c.aligned = channels % 4 == 0;
    return c;
}

// Channels' values for four adjacent elements, the first of which has this channel.
FUNCTION void of_channels(const float *values, unsigned channel, unsigned channels, float v[4]) {
    if (channels % 4 == 0) {
        load(values, channel, 4, v);
        return;
    }
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        v[l] = values[channel];
        channel = channel + 1 == channels ? 0 : channel + 1;
    }
}

// parts[k][c] = sum of x over the rows of part k: the gradient of a bias.
KERNEL(channel_parts, (const Map *x, float *parts, unsigned long long rows, unsigned channels, unsigned count)) {
    Columns c = columns_of(INDEX, channels);
    if (c.part >= count) return;
    float sum[4][4];
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[l][k] = 0.0f;
    }
    for (u64 row = c.part; row < rows; row += 4 * (u64)count) {
        float v[4][4];
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 at = row + l * (u64)count;
            fetch_map(x, at * channels + c.channel, at < rows ? c.count : 0, c.aligned, v[l]);
        }
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            UNROLL
            for (unsigned k = 0; k < 4; k++) sum[l][k] += v[l][k];
        }
    }
    UNROLL
    for (unsigned k = 0; k < 4; k++) sum[0][k] = (sum[0][k] + sum[1][k]) + (sum[2][k] + sum[3][k]);
    put(parts, c.part * channels + c.channel, c.count, c.aligned, sum[0]);
}

// Number of rows in `count` parts from `first` on.
FUNCTION u64 rows_of_parts(u64 rows, unsigned parts, u64 first, u64 count) {
    u64 each = rows / parts, more = rows - each * parts;
    return count * each + (more <= first ? 0 : more - first < count ? more - first : count);
}

// parts[k] = [mean; channels][sum of squared distances from it; channels] of the rows of part k. Registers hold eight rows
// at a time, which are joined to the earlier ones by the formula of Chan, Golub and LeVeque (1979), in which no large
// numbers are subtracted.
KERNEL(moment_parts, (const Map *x, float *parts, unsigned long long rows, unsigned channels, unsigned count)) {
    Columns c = columns_of(INDEX, channels);
    if (c.part >= count) return;
    float mean[4] = {0.0f, 0.0f, 0.0f, 0.0f}, squares[4] = {0.0f, 0.0f, 0.0f, 0.0f}, seen = 0.0f;
    u64 row = c.part;
    for (; row + 7 * (u64)count < rows; row += 8 * (u64)count) {
        float v[8][4], share = 8.0f / (seen + 8.0f);
        UNROLL
        for (unsigned l = 0; l < 8; l++)
            fetch_map(x, (row + l * (u64)count) * channels + c.channel, c.count, c.aligned, v[l]);
        UNROLL
        for (unsigned k = 0; k < 4; k++) {
            float sum = 0.0f, around = 0.0f;
            UNROLL
            for (unsigned l = 0; l < 8; l++) sum += v[l][k];
            float middle = sum * 0.125f, apart = middle - mean[k];
            UNROLL
            for (unsigned l = 0; l < 8; l++) around += (v[l][k] - middle) * (v[l][k] - middle);
            squares[k] += around + apart * apart * seen * share;
            mean[k] += apart * share;
        }
        seen += 8.0f;
    }
    for (; row < rows; row += count) {
        float v[4], share = 1.0f / (seen + 1.0f);
        fetch_map(x, row * channels + c.channel, c.count, c.aligned, v);
        UNROLL
        for (unsigned k = 0; k < 4; k++) {
            float apart = v[k] - mean[k];
            squares[k] += apart * apart * seen * share;
            mean[k] += apart * share;
        }
        seen += 1.0f;
    }
    put(parts, 2 * c.part * channels + c.channel, c.count, c.aligned, mean);
    put(parts, (2 * c.part + 1) * channels + c.channel, c.count, c.aligned, squares);
}

// Joint mean, squared distances and counts of some parts of n. The mean of part k is means[k * step], its squared distances
// are squares[k * step]. Each of `count` parts stands for `span` of the first ones, of which there were `total`.
//
// Distances are taken from the first part's mean, and then moved to the mean of all: in f64, nearby numbers lose nothing.
FUNCTION void join(const float *means, const float *squares, u64 step, u64 n, unsigned total, unsigned span,
                   unsigned first, unsigned last, double *mean, double *distances, double *joined) {
    double sum[8], around[8], seen[8], pivot = (double)means[first * step];
    UNROLL
    for (unsigned l = 0; l < 8; l++) sum[l] = around[l] = seen[l] = 0.0;
    for (unsigned part = first; part < last; part += 8) {
        UNROLL
        for (unsigned l = 0; l < 8; l++) {
            if (part + l >= last) continue;
            u64 at = part + l, start = at * span, spans = total - start < span ? total - start : span;
            double share = (double)rows_of_parts(n, total, start, spans), apart = (double)means[at * step] - pivot;
            sum[l] += share * apart;
            around[l] += (double)squares[at * step] + share * apart * apart;
            seen[l] += share;
        }
    }
    double rows = in_pairs(seen), apart = in_pairs(sum) / rows;
    *mean = pivot + apart;
    const double left = in_pairs(around) - rows * apart * apart;
    *distances = left < 0.0 ? 0.0 : left;  // rounding; NaN stays
    *joined = rows;
}

KERNEL(moment_join, (const float *parts, float *joined, unsigned long long n, unsigned long long rows,
                     unsigned channels, unsigned total, unsigned span, unsigned count, unsigned fan)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 group = quotient(i, channels);
    unsigned channel = (unsigned)(i - group * channels), first = (unsigned)group * fan;
    unsigned last = count - first < fan ? count : first + fan;
    double mean, squares, seen;
    const float *means = parts + channel;
    join(means, means + channels, 2 * (u64)channels, rows, total, span, first, last, &mean, &squares, &seen);
    joined[2 * group * channels + channel] = (float)mean;
    joined[(2 * group + 1) * channels + channel] = (float)squares;
}

// stats = [mean][1 / sqrt(variance + epsilon)], scale = gamma / sqrt(variance + epsilon).
KERNEL(batch_norm_stats, (const float *parts, const float *gamma, float *stats, float *scale, unsigned long long rows,
                          unsigned channels, unsigned total, unsigned span, unsigned count, float epsilon)) {
    unsigned channel = (unsigned)INDEX;
    if (INDEX >= channels) return;
    double mean, squares, seen;
    const float *means = parts + channel;
    join(means, means + channels, 2 * (u64)channels, rows, total, span, 0, count, &mean, &squares, &seen);
    double inverse = 1.0 / sqrt(squares / seen + (double)epsilon);
    stats[channel] = (float)mean;
    stats[channels + channel] = (float)inverse;
    scale[channel] = (float)(inverse * (double)gamma[channel]);
}

// y = (x - mean) * scale + beta.
KERNEL(batch_norm_apply, (const Map *x, const float *mean, const float *scale, const float *beta, Map *y,
                          unsigned long long n, unsigned channels)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
    float v[4], middle[4], factor[4], shift[4];
    load_map(x, i, count, v);
    of_channels(mean, channel, channels, middle);
    of_channels(scale, channel, channels, factor);
    of_channels(beta, channel, channels, shift);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = (v[l] - middle[l]) * factor[l] + shift[l];
    store_map(y, i, count, v);
}

// y = (x - mean) * scale + beta, then: r is added, the ReLU clips, and its mask is saved, one bit an element, as
// relu_mask_forward makes it from y. A thread has eight elements, a byte of the mask; y may be r.
KERNEL(batch_norm_apply_then, (const Map *x, const float *mean, const float *scale, const float *beta, const Map *r, Map *y,
                               unsigned char *mask, unsigned long long n, unsigned channels, unsigned adds,
                               unsigned clips, float ceiling, unsigned masks)) {
    u64 byte = INDEX;
    unsigned bits = 0;
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        u64 i = 8 * byte + 4 * half;
        unsigned count = there(n, i, 4);
        unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
        float v[4], other[4], middle[4], factor[4], shift[4];
        load_map(x, i, count, v);
        if (adds) load_map(r, i, count, other);
        of_channels(mean, channel, channels, middle);
        of_channels(scale, channel, channels, factor);
        of_channels(beta, channel, channels, shift);
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            v[l] = (v[l] - middle[l]) * factor[l] + shift[l];
            if (adds) v[l] = v[l] + other[l];
            if (clips) v[l] = relu(v[l], ceiling);
            float kept = number(stored(v[l]));
            bits |= (l < count && kept > 0.0f && kept < ceiling ? 1u : 0u) << (4 * half + l);
        }
        store_map(y, i, count, v);
    }
    if (masks && 8 * byte < n) mask[byte] = (unsigned char)bits;
}

// Moves the running mean and variance (unbiased) towards the batch's.
KERNEL(batch_norm_running, (const float *stats, float *mean, float *variance, unsigned long long rows,
                            unsigned channels, float epsilon, float momentum)) {
    u64 channel = INDEX;
    if (channel >= channels) return;
    double unbias = (double)rows / fmax((double)rows - 1.0, 1.0);
    double inverse = (double)stats[channels + channel];
    float now = (float)(fmax(1.0 / (inverse * inverse) - (double)epsilon, 0.0) * unbias);
    mean[channel] = mean[channel] + momentum * (stats[channel] - mean[channel]);
    variance[channel] = variance[channel] + momentum * (now - variance[channel]);
}

KERNEL(batch_norm_inference, (const Map *x, const float *gamma, const float *beta, const float *mean,
                              const float *variance, Map *y, unsigned long long n, unsigned channels,
                              float epsilon)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
    float v[4], middle[4], factor[4], spread[4], shift[4];
    load_map(x, i, count, v);
    of_channels(mean, channel, channels, middle);
    of_channels(gamma, channel, channels, factor);
    of_channels(variance, channel, channels, spread);
    of_channels(beta, channel, channels, shift);
    UNROLL
    for (unsigned l = 0; l < 4; l++)
        v[l] = (v[l] - middle[l]) * (factor[l] / sqrtf(spread[l] + epsilon)) + shift[l];
    store_map(y, i, count, v);
}

// Bits of those of four gradients from element i on, of which `count` exist, that pass a ReLU: with a gate of 1 if 0 < y <
// ceiling, with a gate of 2 if the mask's bit is set; with a gate of 0 all. `aligned` as for fetch.
FUNCTION unsigned passing(const Map *y, const unsigned char *mask, u64 i, unsigned count, unsigned aligned, unsigned gate,
                          float ceiling) {
    unsigned bits = gate == 0 ? 15u : 0u;
    if (gate == 1) {
        float out[4];
        fetch_map(y, i, count, aligned, out);
        UNROLL
        for (unsigned l = 0; l < 4; l++) bits |= (out[l] > 0.0f && out[l] < ceiling ? 1u : 0u) << l;
    } else if (gate == 2 && aligned) {
        if (count != 0) bits = mask[i / 8] >> (unsigned)(i % 8);
    } else if (gate == 2) {
        UNROLL
        for (unsigned l = 0; l < 4; l++)
            if (l < count) bits |= (mask[(i + l) / 8] >> (unsigned)((i + l) % 8) & 1u) << l;
    }
    return bits;
}

// Sets gradients that do not pass to 0. As relu_mask_backward gives no -0, neither does a gate of 2.
FUNCTION void hold_back(unsigned bits, unsigned gate, float g[4]) {
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        g[l] = bits >> l & 1 ? g[l] : 0.0f;
        if (gate == 2) g[l] = 0.0f + g[l];
    }
}

// parts[k] = [sum of dy; channels][sum of (x - mean) * dy; channels] over the rows of part k, for the dy that passes the
// gate, which is also written to dr if that is given; dr may be dy.
FUNCTION void gradient_sums(const Map *x, const Map *dy, const float *mean, const Map *y, const unsigned char *mask, Map *dr,
                            float *parts, u64 rows, unsigned channels, unsigned count, unsigned gate, float ceiling,
                            unsigned gives) {
    Columns c = columns_of(INDEX, channels);
    if (c.part >= count) return;
    float middle[4], sum[4][4], product[4][4];
    fetch(mean, c.channel, c.count, c.aligned, middle);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[l][k] = product[l][k] = 0.0f;
    }
    for (u64 row = c.part; row < rows; row += 4 * (u64)count) {
        float v[4][4], g[4][4];
        unsigned bits[4];
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 at = row + l * (u64)count;
            bits[l] = passing(y, mask, at * channels + c.channel, at < rows ? c.count : 0, c.aligned, gate, ceiling);
        }
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 at = row + l * (u64)count, i = at * channels + c.channel;
            unsigned here = at < rows ? c.count : 0;
            fetch_map(x, i, here, c.aligned, v[l]);
            fetch_map(dy, i, here, c.aligned, g[l]);
        }
        // After all loads, which must not move past a store: dr may be dy.
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            u64 at = row + l * (u64)count, i = at * channels + c.channel;
            unsigned here = at < rows ? c.count : 0;
            hold_back(bits[l], gate, g[l]);
            if (gives && here != 0) put_map(dr, i, here, c.aligned, g[l]);
        }
        // Rows that do not exist have no gradient.
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            UNROLL
            for (unsigned k = 0; k < 4; k++) {
                sum[l][k] += g[l][k];
                product[l][k] += (v[l][k] - middle[k]) * g[l][k];
            }
        }
    }
    UNROLL
    for (unsigned k = 0; k < 4; k++) {
        sum[0][k] = (sum[0][k] + sum[1][k]) + (sum[2][k] + sum[3][k]);
        product[0][k] = (product[0][k] + product[1][k]) + (product[2][k] + product[3][k]);
    }
    put(parts, 2 * c.part * channels + c.channel, c.count, c.aligned, sum[0]);
    put(parts, (2 * c.part + 1) * channels + c.channel, c.count, c.aligned, product[0]);
}

KERNEL(gradient_parts, (const Map *x, const Map *dy, const float *mean, float *parts, unsigned long long rows,
                        unsigned channels, unsigned count)) {
    gradient_sums(x, dy, mean, x, 0, 0, parts, rows, channels, count, 0, 0.0f, 0);
}

// The same behind a ReLU. A separate loop for each gate takes fewer registers than one with a test.
KERNEL(gradient_parts_behind, (const Map *x, const Map *dy, const float *mean, const Map *y, const unsigned char *mask,
                               Map *dr, float *parts, unsigned long long rows, unsigned channels, unsigned count,
                               unsigned gate, float ceiling, unsigned gives)) {
    if (gate == 1) gradient_sums(x, dy, mean, y, mask, dr, parts, rows, channels, count, 1, ceiling, gives);
    else if (gate == 2) gradient_sums(x, dy, mean, y, mask, dr, parts, rows, channels, count, 2, ceiling, gives);
    else gradient_sums(x, dy, mean, y, mask, dr, parts, rows, channels, count, 0, ceiling, gives);
}

// With n rows and xhat = (x - mean) / sqrt(variance + epsilon): dbeta = sum dy, dgamma = sum dy * xhat, and
// slopes = [dgamma / sqrt(variance + epsilon) / n][dbeta / n].
KERNEL(batch_norm_slopes, (const float *sums, const float *stats, float *dgamma, float *dbeta, float *slopes,
                           unsigned long long rows, unsigned channels)) {
    u64 channel = INDEX;
    if (channel >= channels) return;
    double sum = (double)sums[channel], inverse = (double)stats[channels + channel];
    double product = (double)sums[channels + channel] * inverse, share = 1.0 / (double)rows;
    dbeta[channel] = (float)sum;
    dgamma[channel] = (float)product;
    slopes[channel] = (float)(product * inverse * share);
    slopes[channels + channel] = (float)(sum * share);
}

// dx = gamma / sqrt(variance + epsilon) * (dy - dbeta / n - xhat * dgamma / n), for the dy that passes the gate.
KERNEL(batch_norm_backward, (const Map *x, const Map *dy, const Map *y, const unsigned char *mask, const float *gamma,
                             const float *stats, const float *slopes, Map *dx, unsigned long long n, unsigned channels,
                             unsigned gate, float ceiling, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned c = (unsigned)(i - quotient(i, channels) * channels);
    float v[4], g[4], old[4], middle[4], inverse[4], factor[4], slope[4], shift[4];
    load_map(x, i, count, v);
    load_map(dy, i, count, g);
    hold_back(passing(y, mask, i, count, 1, gate, ceiling), gate, g);
    if (accumulate) load_map(dx, i, count, old);
    of_channels(stats, c, channels, middle);
    of_channels(stats + channels, c, channels, inverse);
    of_channels(gamma, c, channels, factor);
    of_channels(slopes, c, channels, slope);
    of_channels(slopes + channels, c, channels, shift);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float apart = g[l] - shift[l] - (v[l] - middle[l]) * slope[l];
        float gradient = factor[l] * inverse[l] * apart;
        v[l] = accumulate ? old[l] + gradient : gradient;
    }
    store_map(dx, i, count, v);
}

// bias + ratio * (sum of x^2 over the channels within reach), where x is a row.
FUNCTION float lrn_divisor(const Map *x, unsigned channel, unsigned channels, unsigned reach, float ratio, float bias) {
    unsigned first = channel < reach ? 0 : channel - reach;
    unsigned last = channels - channel <= reach ? channels : channel + reach + 1;
    float sum = 0.0f;
    for (unsigned c = first; c < last; c++) {
        float v = number(x[c]);
        sum += v * v;
    }
    return bias + ratio * sum;
}

// d^-beta; 0.75 is the usual beta, and two roots are much faster than a power.
FUNCTION float lrn_power(float d, float beta) {
    return beta == 0.75f ? 1.0f / (sqrtf(d) * sqrtf(sqrtf(d))) : powf(d, -beta);
}

KERNEL(lrn_forward, (const Map *x, Map *y, unsigned long long n, unsigned channels, unsigned reach, float ratio,
                     float beta, float bias)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 row = quotient(i, channels) * channels;
    float d = lrn_divisor(x + row, (unsigned)(i - row), channels, reach, ratio, bias);
    y[i] = stored(number(x[i]) * lrn_power(d, beta));
}

// dx = dy * d^-beta - factor * x * (sum of dy * x * d^(-beta - 1) over the channels within reach), with factor = 2 * beta *
// ratio. Each thread recomputes the divisors that it needs from x.
KERNEL(lrn_backward, (const Map *x, const Map *dy, Map *dx, unsigned long long n, unsigned channels,
                      unsigned reach, float ratio, float beta, float bias, float factor, unsigned accumulate)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 row = quotient(i, channels) * channels;
    unsigned channel = (unsigned)(i - row);
    unsigned first = channel < reach ? 0 : channel - reach;
    unsigned last = channels - channel <= reach ? channels : channel + reach + 1;
    float own = 0.0f, sum = 0.0f;
    for (unsigned c = first; c < last; c++) {
        float d = lrn_divisor(x + row, c, channels, reach, ratio, bias), power = lrn_power(d, beta);
        if (c == channel) own = power;
        sum += number(dy[row + c]) * number(x[row + c]) * power / d;
    }
    float gradient = number(dy[i]) * own - factor * number(x[i]) * sum;
    dx[i] = stored(accumulate ? number(dx[i]) + gradient : gradient);
}
