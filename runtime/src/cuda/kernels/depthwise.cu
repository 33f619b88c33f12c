// Depthwise convolution: each channel has a separate window, which no other channel sees.
//
// A thread has four adjacent channels of ACROSS positions of a line, so that one load brings all four channels of a
// position if the number of channels is a multiple of 4. Sums have one order, by fused multiply and add: over the taps row
// by row.

#define ACROSS 4

// A thread's positions and channels: `line` counts the lines of all images.
typedef struct {
    u64 line;
    unsigned image, row, first, channel, count, aligned;
} Strip;

FUNCTION Strip strip_of(u64 t, unsigned rows, unsigned columns, unsigned channels) {
    unsigned fours = channels / 4 + (channels % 4 != 0), strips = columns / ACROSS + (columns % ACROSS != 0);
    u64 strip = quotient(t, fours);
    Strip s;
    s.line = quotient(strip, strips);
    s.first = (unsigned)(strip - s.line * strips) * ACROSS;
    s.image = (unsigned)quotient(s.line, rows);
    s.row = (unsigned)(s.line - (u64)s.image * rows);
    s.channel = (unsigned)(t - strip * fours) * 4;
    s.count = there(channels, s.channel, 4);
    s.aligned = channels % 4 == 0;
    return s;
}

// One weight of each of four channels, whose windows are consecutive.
FUNCTION void weights_of(const Map *weight, unsigned channel, unsigned count, unsigned taps, unsigned tap, float w[4]) {
    UNROLL
    for (unsigned k = 0; k < 4; k++) w[k] = k < count ? number(weight[(u64)(channel + k) * taps + tap]) : 0.0f;
}

// y = sum over taps of weight * x, + bias; n is lines x strips of a line x channels in fours.
KERNEL(depthwise_forward, (const Map *x, const Map *weight, const float *bias, Map *y, unsigned long long n,
                           unsigned has_bias, unsigned height, unsigned width, unsigned rows, unsigned columns,
                           unsigned channels, unsigned size_y, unsigned size_x, unsigned stride_y, unsigned stride_x,
                           unsigned padding_y, unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    if (INDEX >= n) return;
    Strip s = strip_of(INDEX, rows, columns, channels);
    float sum[ACROSS][4];
    UNROLL
    for (unsigned m = 0; m < ACROSS; m++) {
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[m][k] = 0.0f;
    }
    ROLLED
    for (unsigned tap = 0; tap < size_y * size_x; tap++) {
        // Positions before an image wrap around to behind it.
        unsigned iy = s.row * stride_y + tap / size_x * dilation_y - padding_y;
        if (iy >= height) continue;
        float w[4];
        weights_of(weight, s.channel, s.count, size_y * size_x, tap, w);
        UNROLL
        for (unsigned m = 0; m < ACROSS; m++) {
            unsigned ox = s.first + m, ix = ox * stride_x + tap % size_x * dilation_x - padding_x;
            float v[4];
            u64 at = (((u64)s.image * height + iy) * width + ix) * channels + s.channel;
            fetch_map(x, at, ox < columns && ix < width ? s.count : 0, s.aligned, v);
            UNROLL
            for (unsigned k = 0; k < 4; k++) sum[m][k] = fmaf(v[k], w[k], sum[m][k]);
        }
    }
    float shift[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (has_bias) fetch(bias, s.channel, s.count, s.aligned, shift);
    UNROLL
    for (unsigned m = 0; m < ACROSS; m++) {
        if (s.first + m >= columns) continue;
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[m][k] = has_bias ? sum[m][k] + shift[k] : sum[m][k];
        put_map(y, (s.line * columns + s.first + m) * channels + s.channel, s.count, s.aligned, sum[m]);
    }
}

// dx = sum over taps of weight * dy; n as above, of the input's positions.
KERNEL(depthwise_backward_data, (const Map *dy, const Map *weight, Map *dx, unsigned long long n,
                                 unsigned accumulate, unsigned height, unsigned width, unsigned rows, unsigned columns,
                                 unsigned channels, unsigned size_y, unsigned size_x, unsigned stride_y,
                                 unsigned stride_x, unsigned padding_y, unsigned padding_x, unsigned dilation_y,
                                 unsigned dilation_x)) {
    if (INDEX >= n) return;
    Strip s = strip_of(INDEX, height, width, channels);
    float sum[ACROSS][4];
    UNROLL
    for (unsigned m = 0; m < ACROSS; m++) {
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[m][k] = 0.0f;
    }
    ROLLED
    for (unsigned tap = 0; tap < size_y * size_x; tap++) {
        unsigned oy = covering(s.row, tap / size_x * dilation_y, stride_y, padding_y, rows);
        if (oy >= rows) continue;
        float w[4];
        weights_of(weight, s.channel, s.count, size_y * size_x, tap, w);
        UNROLL
        for (unsigned m = 0; m < ACROSS; m++) {
            unsigned ox = covering(s.first + m, tap % size_x * dilation_x, stride_x, padding_x, columns);
            float g[4];
            u64 at = (((u64)s.image * rows + oy) * columns + ox) * channels + s.channel;
            fetch_map(dy, at, ox < columns ? s.count : 0, s.aligned, g);
            UNROLL
            for (unsigned k = 0; k < 4; k++) sum[m][k] = fmaf(g[k], w[k], sum[m][k]);
        }
    }
    UNROLL
    for (unsigned m = 0; m < ACROSS; m++) {
        if (s.first + m >= width) continue;
        u64 at = (s.line * width + s.first + m) * channels + s.channel;
        float old[4];
        if (accumulate) fetch_map(dx, at, s.count, s.aligned, old);
        UNROLL
        for (unsigned k = 0; k < 4; k++) sum[m][k] = accumulate ? old[k] + sum[m][k] : sum[m][k];
        put_map(dx, at, s.count, s.aligned, sum[m]);
    }
}

// dweight[split] = sum over the output positions of a split of dy * x; a single split may add it to dweight. A thread has
// one tap of four channels; neighbouring threads have the same positions.
KERNEL(depthwise_backward_filter, (const Map *x, const Map *dy, float *dweight, unsigned accumulate, unsigned splits,
                                   unsigned long long positions, unsigned height, unsigned width, unsigned rows,
                                   unsigned columns, unsigned channels, unsigned size_y, unsigned size_x,
                                   unsigned stride_y, unsigned stride_x, unsigned padding_y, unsigned padding_x,
                                   unsigned dilation_y, unsigned dilation_x)) {
    unsigned fours = channels / 4 + (channels % 4 != 0), taps = size_y * size_x, aligned = channels % 4 == 0;
    u64 rest = quotient(INDEX, fours), split = quotient(rest, taps);
    if (split >= splits) return;
    unsigned channel = (unsigned)(INDEX - rest * fours) * 4, tap = (unsigned)(rest - split * taps);
    unsigned count = there(channels, channel, 4);
    unsigned ky = tap / size_x * dilation_y, kx = tap % size_x * dilation_x;
    u64 each = positions / splits, more = positions - each * splits;
    u64 first = split * each + (split < more ? split : more), last = first + each + (split < more ? 1 : 0);
    u64 line = quotient(first, columns), image = quotient(line, rows);
    unsigned ox = (unsigned)(first - line * columns), oy = (unsigned)(line - image * rows);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u64 p = first; p < last; p++) {
        unsigned iy = oy * stride_y + ky - padding_y, ix = ox * stride_x + kx - padding_x;
        if (iy < height && ix < width) {
            float v[4], g[4];
            fetch_map(x, ((image * height + iy) * width + ix) * channels + channel, count, aligned, v);
            fetch_map(dy, p * channels + channel, count, aligned, g);
            UNROLL
            for (unsigned k = 0; k < 4; k++) sum[k] = fmaf(g[k], v[k], sum[k]);
        }
        if (++ox == columns) {
            ox = 0;
            if (++oy == rows) {
                oy = 0;
                image++;
            }
        }
    }
    UNROLL
    for (unsigned k = 0; k < 4; k++) {
        if (k >= count) continue;
        u64 to = (split * channels + channel + k) * taps + tap;
        dweight[to] = accumulate ? dweight[to] + sum[k] : sum[k];
    }
}
