// Max and average pooling, forward and backward. Backward is a gather: each input element reads from the windows that cover
// it. A thread has one element, channels innermost; taps are taken row by row, as everywhere.

// Place of an element: image, row, column and channel of an activation.
typedef struct {
    u64 image;
    unsigned row, column, channel;
} Place;

FUNCTION Place place(u64 i, unsigned height, unsigned width, unsigned channels) {
    Place p;
    u64 position = quotient(i, channels), line = quotient(position, width);
    p.channel = (unsigned)(i - position * channels);
    p.column = (unsigned)(position - line * width);
    p.image = quotient(line, height);
    p.row = (unsigned)(line - p.image * height);
    return p;
}

// The output whose window has a tap over an input along one dimension; all bits set if there is none.
FUNCTION unsigned covering(unsigned input, unsigned offset, unsigned stride, unsigned padding, unsigned outputs) {
    unsigned reach = input + padding - offset, output = reach / stride;
    return input + padding >= offset && output * stride == reach && output < outputs ? output : 0xffffffffu;
}

// The first tap that may cover an input, and the step to the next, if taps are adjacent: the others fall between windows.
FUNCTION unsigned first_tap(unsigned input, unsigned stride, unsigned padding, unsigned dilation) {
    return dilation == 1 ? (input + padding) % stride : 0;
}

FUNCTION unsigned tap_step(unsigned stride, unsigned dilation) { return dilation == 1 ? stride : 1; }

// A window entirely in the padding gives minus infinity; NaN counts as larger than all.
KERNEL(max_pool_forward, (const Map *x, Map *y, unsigned char *places, unsigned long long n, unsigned height,
                          unsigned width, unsigned rows, unsigned columns, unsigned channels, unsigned size_y,
                          unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y, unsigned padding_x,
                          unsigned dilation_y, unsigned dilation_x)) {
    u64 i = INDEX;
    if (i >= n) return;
    Place o = place(i, rows, columns, channels);
    float largest = -INFINITE;
    unsigned first = 1, tap = 0;
    for (unsigned ky = 0; ky < size_y; ky++) {
        unsigned iy = o.row * stride_y + ky * dilation_y - padding_y;
        if (iy >= height) continue;
        for (unsigned kx = 0; kx < size_x; kx++) {
            unsigned ix = o.column * stride_x + kx * dilation_x - padding_x;
            if (ix >= width) continue;
            float v = number(x[((o.image * height + iy) * width + ix) * channels + o.channel]);
            if (first || v > largest || v != v) {
                largest = v;
                tap = ky * size_x + kx;
            }
            first = 0;
        }
    }
    y[i] = stored(largest);
    places[i] = (unsigned char)tap;
}

KERNEL(max_pool_backward, (const unsigned char *places, const Map *dy, Map *dx, unsigned long long n,
                           unsigned accumulate, unsigned height, unsigned width, unsigned rows, unsigned columns,
                           unsigned channels, unsigned size_y, unsigned size_x, unsigned stride_y, unsigned stride_x,
                           unsigned padding_y, unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    u64 i = INDEX;
    if (i >= n) return;
    Place p = place(i, height, width, channels);
    float sum = accumulate ? number(dx[i]) : 0.0f;
    unsigned from = first_tap(p.column, stride_x, padding_x, dilation_x), step_x = tap_step(stride_x, dilation_x);
    unsigned ky = first_tap(p.row, stride_y, padding_y, dilation_y), step_y = tap_step(stride_y, dilation_y);
    for (; ky < size_y; ky += step_y) {
        unsigned oy = covering(p.row, ky * dilation_y, stride_y, padding_y, rows);
        if (oy >= rows) continue;
        for (unsigned kx = from; kx < size_x; kx += step_x) {
            unsigned ox = covering(p.column, kx * dilation_x, stride_x, padding_x, columns);
            if (ox >= columns) continue;
            u64 o = ((p.image * rows + oy) * columns + ox) * channels + p.channel;
            sum += places[o] == ky * size_x + kx ? number(dy[o]) : 0.0f;
        }
    }
    dx[i] = stored(sum);
}

// `share` is 1 / the window's taps: padding counts.
KERNEL(avg_pool_forward, (const Map *x, Map *y, unsigned long long n, float share, unsigned height, unsigned width,
                          unsigned rows, unsigned columns, unsigned channels, unsigned size_y, unsigned size_x,
                          unsigned stride_y, unsigned stride_x, unsigned padding_y, unsigned padding_x,
                          unsigned dilation_y, unsigned dilation_x)) {
    u64 i = INDEX;
    if (i >= n) return;
    Place o = place(i, rows, columns, channels);
    float sum = 0.0f;
    for (unsigned ky = 0; ky < size_y; ky++) {
        unsigned iy = o.row * stride_y + ky * dilation_y - padding_y;
        if (iy >= height) continue;
        for (unsigned kx = 0; kx < size_x; kx++) {
            unsigned ix = o.column * stride_x + kx * dilation_x - padding_x;
            if (ix < width) sum += number(x[((o.image * height + iy) * width + ix) * channels + o.channel]);
        }
    }
    y[i] = stored(sum * share);
}

KERNEL(avg_pool_backward, (const Map *dy, Map *dx, unsigned long long n, float share, unsigned accumulate,
                           unsigned height, unsigned width, unsigned rows, unsigned columns, unsigned channels,
                           unsigned size_y, unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y,
                           unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    u64 i = INDEX;
    if (i >= n) return;
    Place p = place(i, height, width, channels);
    float sum = accumulate ? number(dx[i]) : 0.0f;
    unsigned from = first_tap(p.column, stride_x, padding_x, dilation_x), step_x = tap_step(stride_x, dilation_x);
    unsigned ky = first_tap(p.row, stride_y, padding_y, dilation_y), step_y = tap_step(stride_y, dilation_y);
    for (; ky < size_y; ky += step_y) {
        unsigned oy = covering(p.row, ky * dilation_y, stride_y, padding_y, rows);
        if (oy >= rows) continue;
        for (unsigned kx = from; kx < size_x; kx += step_x) {
            unsigned ox = covering(p.column, kx * dilation_x, stride_x, padding_x, columns);
            if (ox < columns) sum += number(dy[((p.image * rows + oy) * columns + ox) * channels + p.channel]) * share;
        }
    }
    dx[i] = stored(sum);
}
