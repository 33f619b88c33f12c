// Layouts for a library: windows as rows of a matrix and back, and images by planes.

// columns[p][tap][c] = channel c of x at tap `tap` of the window at output position p, 0 in the padding; of the images from
// `first` on. n is positions x taps x channels in fours.
KERNEL(gather_windows, (const Map *x, Map *columns_of, unsigned long long n, unsigned long long first, unsigned height,
                        unsigned width, unsigned rows, unsigned columns, unsigned channels, unsigned size_y,
                        unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y, unsigned padding_x,
                        unsigned dilation_y, unsigned dilation_x)) {
    if (INDEX >= n) return;
    unsigned fours = channels / 4 + (channels % 4 != 0), taps = size_y * size_x, aligned = channels % 4 == 0;
    u64 row = quotient(INDEX, fours), p = quotient(row, taps), line = quotient(p, columns), image = quotient(line, rows);
    unsigned channel = (unsigned)(INDEX - row * fours) * 4, count = there(channels, channel, 4);
    unsigned tap = (unsigned)(row - p * taps);
    // Positions before an image wrap around to behind it.
    unsigned iy = (unsigned)(line - image * rows) * stride_y + tap / size_x * dilation_y - padding_y;
    unsigned ix = (unsigned)(p - line * columns) * stride_x + tap % size_x * dilation_x - padding_x;
    u64 at = (((first + image) * height + iy) * width + ix) * channels + channel;
    float v[4];
    fetch_map(x, at, iy < height && ix < width ? count : 0, aligned, v);
    put_map(columns_of, row * channels + channel, count, aligned, v);
}

// dx = the element of `columns` for the output whose window is on a position, or 0 if there is none; or added to dx. For
// windows of one pixel, of the images from `first` on. n is positions of the input x channels in fours.
KERNEL(scatter_pixels, (const float *columns_of, Map *dx, unsigned long long n, unsigned long long first,
                        unsigned accumulate, unsigned height, unsigned width, unsigned rows, unsigned columns,
                        unsigned channels, unsigned size_y, unsigned size_x, unsigned stride_y, unsigned stride_x,
                        unsigned padding_y, unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    (void)size_y, (void)size_x, (void)dilation_y, (void)dilation_x;
    if (INDEX >= n) return;
    unsigned fours = channels / 4 + (channels % 4 != 0), aligned = channels % 4 == 0;
    u64 p = quotient(INDEX, fours), line = quotient(p, width), image = quotient(line, height);
    unsigned channel = (unsigned)(INDEX - p * fours) * 4, count = there(channels, channel, 4);
    unsigned oy = covering((unsigned)(line - image * height), 0, stride_y, padding_y, rows);
    unsigned ox = covering((unsigned)(p - line * width), 0, stride_x, padding_x, columns);
    u64 from = ((image * rows + oy) * columns + ox) * channels + channel;
    u64 to = (first * height * width + p) * channels + channel;
    float v[4], old[4];
    fetch(columns_of, from, oy < rows && ox < columns ? count : 0, aligned, v);
    if (accumulate) fetch_map(dx, to, count, aligned, old);
    UNROLL
    for (unsigned k = 0; k < 4; k++) v[k] = accumulate ? old[k] + v[k] : v[k];
    put_map(dx, to, count, aligned, v);
}

// A thread's 4 x 4 numbers: their start on both sides, and the numbers of existing rows and columns.
typedef struct {
    u64 from, to;
    unsigned down, across;
} Square;

FUNCTION Square square_of(u64 t, unsigned rows, unsigned columns) {
    unsigned tall = rows / 4 + (rows % 4 != 0), wide = columns / 4 + (columns % 4 != 0);
    u64 rest = quotient(t, tall), b = quotient(rest, wide), start = b * rows * columns;
    unsigned row = (unsigned)(t - rest * tall) * 4, column = (unsigned)(rest - b * wide) * 4;
    Square s;
    s.from = start + (u64)row * columns + column;
    s.to = start + (u64)column * rows + row;
    s.down = there(rows, row, 4);
    s.across = there(columns, column, 4);
    return s;
}

// The numbers of a square, row by row; 0 for missing ones.
FUNCTION void fetch_square(const Map *from, Square s, unsigned columns, float v[4][4]) {
    UNROLL
    for (unsigned m = 0; m < 4; m++)
        fetch_map(from, s.from + (u64)m * columns, m < s.down ? s.across : 0, columns % 4 == 0, v[m]);
}

// to[b][column][row] = from[b][row][column]. A thread has 4 x 4 numbers; n is b x columns in fours x rows in fours.
KERNEL(to_planes, (const Map *from, Map *to, unsigned long long n, unsigned rows, unsigned columns)) {
    if (INDEX >= n) return;
    Square s = square_of(INDEX, rows, columns);
    float v[4][4];
    fetch_square(from, s, columns, v);
    UNROLL
    for (unsigned k = 0; k < 4; k++) {
        if (k >= s.across) continue;
        float w[4];
        UNROLL
        for (unsigned m = 0; m < 4; m++) w[m] = v[m][k];
        put_map(to, s.to + (u64)k * rows, s.down, rows % 4 == 0, w);
    }
}

// The same for a gradient of parameters, which is added to if `accumulate` is set.
KERNEL(from_planes, (const Map *from, float *to, unsigned long long n, unsigned rows, unsigned columns,
                     unsigned accumulate)) {
    if (INDEX >= n) return;
    Square s = square_of(INDEX, rows, columns);
    float v[4][4];
    fetch_square(from, s, columns, v);
    UNROLL
    for (unsigned k = 0; k < 4; k++) {
        if (k >= s.across) continue;
        float w[4], old[4];
        if (accumulate) fetch(to, s.to + (u64)k * rows, s.down, rows % 4 == 0, old);
        UNROLL
        for (unsigned m = 0; m < 4; m++) w[m] = accumulate ? old[m] + v[m][k] : v[m][k];
        put(to, s.to + (u64)k * rows, s.down, rows % 4 == 0, w);
    }
}
