// Batch normalisation, and local response normalisation.
//
// A sum over rows is made in parts: part k of K has the rows k, k + K, k + 2K, ..., so that neighbouring threads read
// neighbouring addresses whatever the number of channels. Parts are then summed FAN at a time, in order, in f64.

// sums[group][j] = sum of parts[i][j] over the `fan` parts of the group, or added to it; n is groups x width.
KERNEL(sum_parts, (const float *parts, float *sums, unsigned long long n, unsigned long long width, unsigned count,
                   unsigned fan, unsigned accumulate)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 group = i / width, j = i - group * width;
    unsigned first = (unsigned)group * fan, last = count - first < fan ? count : first + fan;
    double sum = 0.0;
    for (unsigned part = first; part < last; part++) sum += (double)parts[part * width + j];
    sums[i] = accumulate ? sums[i] + (float)sum : (float)sum;
}

// parts[k][c] = sum of x over the rows of part k: the gradient of a bias.
KERNEL(channel_parts, (const float *x, float *parts, unsigned long long rows, unsigned channels, unsigned count)) {
    u64 t = INDEX, step = (u64)count * channels, n = rows * channels;
    if (t >= step) return;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 i = t;
    for (; i + 3 * step < n; i += 4 * step) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) sum[l] += x[i + l * step];
    }
    for (; i < n; i += step) sum[0] += x[i];
    parts[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// How many rows the parts from `first` on have together.
FUNCTION u64 rows_of_parts(u64 rows, unsigned parts, u64 first, u64 count) {
    u64 each = rows / parts, more = rows - each * parts;
    return count * each + (more <= first ? 0 : more - first < count ? more - first : count);
}

// Mean of x[first], x[first + step], ... before `end`, and the sum of squared distances from it. Eight numbers at a time
// are kept in registers; they are joined to those before by the formula of Chan, Golub and LeVeque (1979), in which no
// large numbers are subtracted.
FUNCTION void moments(const float *x, u64 first, u64 step, u64 end, float *mean_of, float *squares_of) {
    float mean = 0.0f, squares = 0.0f, seen = 0.0f;
    u64 i = first;
    for (; i + 7 * step < end; i += 8 * step) {
        float v[8], sum = 0.0f, around = 0.0f;
        UNROLL
        for (unsigned l = 0; l < 8; l++) v[l] = x[i + l * step];
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
        float apart = x[i] - mean, share = 1.0f / (seen + 1.0f);
        squares += apart * apart * seen * share;
        mean += apart * share;
        seen += 1.0f;
    }
    *mean_of = mean;
    *squares_of = squares;
}

// parts[k] = [mean; channels][sum of squared distances from it; channels] of the rows of part k.
KERNEL(moment_parts, (const float *x, float *parts, unsigned long long rows, unsigned channels, unsigned count)) {
    u64 t = INDEX, step = (u64)count * channels;
    if (t >= step) return;
    float mean, squares;
    moments(x, t, step, rows * channels, &mean, &squares);
    u64 part = quotient(t, channels), channel = t - part * channels;
    parts[2 * part * channels + channel] = mean;
    parts[(2 * part + 1) * channels + channel] = squares;
}

// Mean, squared distances and numbers of some parts of n together. The mean of part k is means[k * step], its squared
// distances are squares[k * step]. Each of `count` parts stands for `span` of the first ones, of which there were `total`.
FUNCTION void join(const float *means, const float *squares, u64 step, u64 n, unsigned total, unsigned span,
                   unsigned first, unsigned last, double *mean, double *distances, double *joined) {
    double sum = 0.0, around = 0.0, seen = 0.0;
    for (unsigned part = first; part < last; part++) {
        u64 start = (u64)part * span, spans = total - start < span ? total - start : span;
        double share = (double)rows_of_parts(n, total, start, spans);
        sum += share * (double)means[part * step];
        seen += share;
    }
    double middle = sum / seen;
    for (unsigned part = first; part < last; part++) {
        u64 start = (u64)part * span, spans = total - start < span ? total - start : span;
        double share = (double)rows_of_parts(n, total, start, spans);
        double apart = (double)means[part * step] - middle;
        around += (double)squares[part * step] + share * apart * apart;
    }
    *mean = middle;
    *distances = around;
    *joined = seen;
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
KERNEL(batch_norm_apply, (const float *x, const float *mean, const float *scale, const float *beta, float *y,
                          unsigned long long n, unsigned channels)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
    float v[4];
    load(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        v[l] = (v[l] - mean[channel]) * scale[channel] + beta[channel];
        channel = channel + 1 == channels ? 0 : channel + 1;
    }
    store(y, i, count, v);
}

// Moves the running mean and variance towards the batch's; the variance unbiased.
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

KERNEL(batch_norm_inference, (const float *x, const float *gamma, const float *beta, const float *mean,
                              const float *variance, float *y, unsigned long long n, unsigned channels,
                              float epsilon)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned channel = (unsigned)(i - quotient(i, channels) * channels);
    float v[4];
    load(x, i, count, v);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        v[l] = (v[l] - mean[channel]) * (gamma[channel] / sqrtf(variance[channel] + epsilon)) + beta[channel];
        channel = channel + 1 == channels ? 0 : channel + 1;
    }
    store(y, i, count, v);
}

// parts[k] = [sum of dy; channels][sum of (x - mean) * dy; channels] over the rows of part k.
KERNEL(gradient_parts, (const float *x, const float *dy, const float *mean, float *parts, unsigned long long rows,
                        unsigned channels, unsigned count)) {
    u64 t = INDEX, step = (u64)count * channels, n = rows * channels;
    if (t >= step) return;
    u64 part = quotient(t, channels), channel = t - part * channels;
    float middle = mean[channel];
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u64 i = t;
    for (; i + 3 * step < n; i += 4 * step) {
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            float gradient = dy[i + l * step];
            sum[l] += gradient;
            product[l] += (x[i + l * step] - middle) * gradient;
        }
    }
    for (; i < n; i += step) {
        sum[0] += dy[i];
        product[0] += (x[i] - middle) * dy[i];
    }
    parts[2 * part * channels + channel] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    parts[(2 * part + 1) * channels + channel] = (product[0] + product[1]) + (product[2] + product[3]);
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

// dx = gamma / sqrt(variance + epsilon) * (dy - dbeta / n - xhat * dgamma / n).
KERNEL(batch_norm_backward, (const float *x, const float *dy, const float *gamma, const float *stats,
                             const float *slopes, float *dx, unsigned long long n, unsigned channels,
                             unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    unsigned c = (unsigned)(i - quotient(i, channels) * channels);
    float v[4], g[4], old[4];
    load(x, i, count, v);
    load(dy, i, count, g);
    if (accumulate) load(dx, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        float apart = g[l] - slopes[channels + c] - (v[l] - stats[c]) * slopes[c];
        float gradient = gamma[c] * stats[channels + c] * apart;
        v[l] = accumulate ? old[l] + gradient : gradient;
        c = c + 1 == channels ? 0 : c + 1;
    }
    store(dx, i, count, v);
}

// bias + ratio * (sum of x^2 over the channels within reach), x being a row.
FUNCTION float lrn_divisor(const float *x, unsigned channel, unsigned channels, unsigned reach, float ratio, float bias) {
    unsigned first = channel < reach ? 0 : channel - reach;
    unsigned last = channels - channel <= reach ? channels : channel + reach + 1;
    float sum = 0.0f;
    for (unsigned c = first; c < last; c++) sum += x[c] * x[c];
    return bias + ratio * sum;
}

// d^-beta; 0.75 is what everybody uses, and two roots are much faster than a power.
FUNCTION float lrn_power(float d, float beta) {
    return beta == 0.75f ? 1.0f / (sqrtf(d) * sqrtf(sqrtf(d))) : powf(d, -beta);
}

KERNEL(lrn_forward, (const float *x, float *y, unsigned long long n, unsigned channels, unsigned reach, float ratio,
                     float beta, float bias)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 row = quotient(i, channels) * channels;
    y[i] = x[i] * lrn_power(lrn_divisor(x + row, (unsigned)(i - row), channels, reach, ratio, bias), beta);
}

// dx = dy * d^-beta - factor * x * (sum of dy * x * d^(-beta - 1) over the channels within reach), with
// factor = 2 * beta * ratio. The divisors are computed anew from x by each thread that needs them.
KERNEL(lrn_backward, (const float *x, const float *dy, float *dx, unsigned long long n, unsigned channels,
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
        sum += dy[row + c] * x[row + c] * power / d;
    }
    float gradient = dy[i] * own - factor * x[i] * sum;
    dx[i] = accumulate ? dx[i] + gradient : gradient;
}
