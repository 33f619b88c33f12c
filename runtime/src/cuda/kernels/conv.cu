// Convolution, forward and both ways back, as sums over a register tile: a thread has TILE x TILE results, and each number
// that it loads serves TILE products. This text stands in the source once for each KIND of tile: 8 and 4 where channels of a
// group come in fours, so that FETCH and PUT (on a Map, FETCH_MAP and PUT_MAP) move four
// numbers or none; and `any`, of four too, for all other shapes.
//
// A warp's tiles form a block of `lanes` tiles of one side by 32 / lanes of the other, so that its threads share what they
// load. Sums are made in one order, by fused multiply and add: over the taps row by row, and channels within.

// Which tile a thread has: `across` of `wide` tiles of the side that lies innermost in memory, `along` of `tall` of the
// other; `rest` counts what lies beyond (groups, taps, splits).
typedef struct {
    u64 along, rest;
    unsigned across;
} TileKIND;

FUNCTION TileKIND tile_KIND(u64 t, unsigned lanes, unsigned wide, u64 tall) {
    TileKIND tile;
    unsigned lane = (unsigned)(t & 31), others = 32 / lanes;
    u64 block = t >> 5, blocks = (tall + others - 1) / others;
    unsigned blocks_across = (wide + lanes - 1) / lanes;
    u64 line = quotient(block, blocks_across);
    tile.across = (unsigned)(block - line * blocks_across) * lanes + lane % lanes;
    tile.rest = line / blocks;
    tile.along = (line - tile.rest * blocks) * others + lane / lanes;
    return tile;
}

// y = sum over taps and channels of weight * x, + bias. Tiles: filters of a group across, output positions along.
KERNEL(conv_forward_KIND, (const Map *x, const Map *weight, const float *bias, Map *y, unsigned has_bias,
                           unsigned lanes, unsigned long long positions, unsigned height, unsigned width,
                           unsigned channels, unsigned rows, unsigned columns, unsigned filters, unsigned groups,
                           unsigned size_y, unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y,
                           unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    unsigned depth = channels / groups, of_group = filters / groups;
    TileKIND tile = tile_KIND(INDEX, lanes, (of_group + TILE - 1) / TILE, (positions + TILE - 1) / TILE);
    unsigned filter = tile.across * TILE;
    u64 position = tile.along * TILE;
    if (tile.rest >= groups || filter >= of_group || position >= positions) return;
    unsigned group = (unsigned)tile.rest, aligned = depth % 4 == 0;
    // Where a window begins, of which the first taps may lie in the padding; sums that go below 0 come back.
    u64 origin[TILE], weights = (u64)size_y * size_x * depth;
    unsigned top[TILE], left[TILE];
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        u64 p = position + m < positions ? position + m : positions - 1, line = quotient(p, columns);
        u64 image = quotient(line, rows);
        left[m] = (unsigned)(p - line * columns) * stride_x - padding_x;
        top[m] = (unsigned)(line - image * rows) * stride_y - padding_y;
        u64 down = image * height + (u64)(long long)(int)top[m];
        origin[m] = (down * width + (u64)(long long)(int)left[m]) * channels + (u64)group * depth;
    }
    float sum[TILE][TILE];
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        UNROLL
        for (unsigned n = 0; n < TILE; n++) sum[m][n] = 0.0f;
    }
    const Map *w = weight + ((u64)group * of_group + filter) * weights;
    ROLLED
    for (unsigned tap = 0; tap < size_y * size_x; tap++, w += depth) {
        unsigned ky = tap / size_x * dilation_y, kx = tap % size_x * dilation_x, inside = 0;
        u64 moved = ((u64)ky * width + kx) * channels;
        UNROLL
        for (unsigned m = 0; m < TILE; m++)
            inside |= (top[m] + ky < height && left[m] + kx < width ? 1u : 0u) << m;
        if (inside == 0) continue;
        ROLLED
        for (unsigned c = 0; c < depth; c += 4) {
            unsigned count = depth - c < 4 ? depth - c : 4;
            float a[TILE][4];
            UNROLL
            for (unsigned m = 0; m < TILE; m++)
                FETCH_MAP(x, origin[m] + moved + c, inside >> m & 1 ? count : 0, aligned, a[m]);
            UNROLL
            for (unsigned n = 0; n < TILE; n++) {
                float b[4];
                FETCH_MAP(w, n * weights + c, filter + n < of_group ? count : 0, aligned, b);
                UNROLL
                for (unsigned l = 0; l < 4; l++) {
                    UNROLL
                    for (unsigned m = 0; m < TILE; m++) sum[m][n] = fmaf(a[m][l], b[l], sum[m][n]);
                }
            }
        }
    }
    UNROLL
    for (unsigned n = 0; n < TILE; n += 4) {
        u64 f = (u64)group * of_group + filter + n;
        unsigned count = there(of_group, filter + n, 4);
        float shift[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (has_bias) FETCH(bias, f, count, of_group % 4 == 0, shift);
        UNROLL
        for (unsigned m = 0; m < TILE; m++) {
            if (position + m >= positions) continue;
            float v[4];
            UNROLL
            for (unsigned l = 0; l < 4; l++) v[l] = has_bias ? sum[m][n + l] + shift[l] : sum[m][n + l];
            PUT_MAP(y, (position + m) * filters + f, count, of_group % 4 == 0, v);
        }
    }
}

// dx = sum over taps and filters of weight * dy. Tiles: channels of a group across, input positions along. The columns of
// a line are taken by their remainder of the stride: then a tile's positions mostly have the same taps.
KERNEL(conv_backward_data_KIND, (const Map *dy, const Map *weight, Map *dx, unsigned accumulate, unsigned lanes,
                                 unsigned long long positions, unsigned height, unsigned width, unsigned channels,
                                 unsigned rows, unsigned columns, unsigned filters, unsigned groups, unsigned size_y,
                                 unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y,
                                 unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    unsigned depth = channels / groups, of_group = filters / groups;
    TileKIND tile = tile_KIND(INDEX, lanes, (depth + TILE - 1) / TILE, (positions + TILE - 1) / TILE);
    unsigned channel = tile.across * TILE, taps = size_y * size_x;
    u64 position = tile.along * TILE;
    if (tile.rest >= groups || channel >= depth || position >= positions) return;
    unsigned group = (unsigned)tile.rest;
    u64 weights = (u64)taps * depth;
    unsigned image[TILE], iy[TILE], ix[TILE];
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        u64 p = position + m < positions ? position + m : positions - 1, line = quotient(p, width);
        unsigned column = (unsigned)(p - line * width), remainder = 0, of_remainder = (width - 1) / stride_x + 1;
        while (column >= of_remainder) {
            column -= of_remainder;
            remainder++;
            of_remainder = (width - 1 - remainder) / stride_x + 1;
        }
        ix[m] = remainder + column * stride_x;
        image[m] = (unsigned)quotient(line, height);
        iy[m] = (unsigned)(line - (u64)image[m] * height);
    }
    float sum[TILE][TILE];
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        UNROLL
        for (unsigned n = 0; n < TILE; n++) sum[m][n] = 0.0f;
    }
    ROLLED
    for (unsigned tap = 0; tap < taps; tap++) {
        unsigned ky = tap / size_x * dilation_y, kx = tap % size_x * dilation_x, inside = 0;
        u64 at[TILE];
        UNROLL
        for (unsigned m = 0; m < TILE; m++) {
            unsigned oy = covering(iy[m], ky, stride_y, padding_y, rows);
            unsigned ox = covering(ix[m], kx, stride_x, padding_x, columns);
            inside |= (oy < rows && ox < columns ? 1u : 0u) << m;
            at[m] = (((u64)image[m] * rows + oy) * columns + ox) * filters + (u64)group * of_group;
        }
        if (inside == 0) continue;
        const Map *w = weight + (u64)group * of_group * weights + (u64)tap * depth + channel;
        ROLLED
        for (unsigned f = 0; f < of_group; f += 4) {
            unsigned count = of_group - f < 4 ? of_group - f : 4;
            float a[TILE][4];
            UNROLL
            for (unsigned m = 0; m < TILE; m++)
                FETCH_MAP(dy, at[m] + f, inside >> m & 1 ? count : 0, of_group % 4 == 0, a[m]);
            UNROLL
            for (unsigned l = 0; l < 4; l++) {
                if (l >= count) continue;
                float b[TILE];
                UNROLL
                for (unsigned n = 0; n < TILE; n += 4)
                    FETCH_MAP(w, (f + l) * weights + n, there(depth, channel + n, 4), depth % 4 == 0, b + n);
                UNROLL
                for (unsigned m = 0; m < TILE; m++) {
                    UNROLL
                    for (unsigned n = 0; n < TILE; n++) sum[m][n] = fmaf(a[m][l], b[n], sum[m][n]);
                }
            }
        }
    }
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        if (position + m >= positions) continue;
        u64 to = (((u64)image[m] * height + iy[m]) * width + ix[m]) * channels + (u64)group * depth + channel;
        UNROLL
        for (unsigned n = 0; n < TILE; n += 4) {
            unsigned count = there(depth, channel + n, 4);
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (accumulate) FETCH_MAP(dx, to + n, count, depth % 4 == 0, v);
            UNROLL
            for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? v[l] + sum[m][n + l] : sum[m][n + l];
            PUT_MAP(dx, to + n, count, depth % 4 == 0, v);
        }
    }
}

// dweight[split] = sum over the output positions of a split of dy * x; a single split may add it. Tiles: channels of a group across, its filters
// along; beyond them groups, taps and splits.
KERNEL(conv_backward_filter_KIND, (const Map *x, const Map *dy, float *dweight, unsigned accumulate, unsigned lanes,
                                   unsigned splits, unsigned long long positions, unsigned height, unsigned width, unsigned channels,
                                   unsigned rows, unsigned columns, unsigned filters, unsigned groups, unsigned size_y,
                                   unsigned size_x, unsigned stride_y, unsigned stride_x, unsigned padding_y,
                                   unsigned padding_x, unsigned dilation_y, unsigned dilation_x)) {
    unsigned depth = channels / groups, of_group = filters / groups, taps = size_y * size_x;
    TileKIND tile = tile_KIND(INDEX, lanes, (depth + TILE - 1) / TILE, (of_group + TILE - 1) / TILE);
    unsigned channel = tile.across * TILE, filter = (unsigned)tile.along * TILE;
    unsigned tap = (unsigned)(tile.rest % taps), group = (unsigned)(tile.rest / taps % groups);
    u64 split = tile.rest / taps / groups;
    if (split >= splits || channel >= depth || filter >= of_group) return;
    unsigned ky = tap / size_x * dilation_y, kx = tap % size_x * dilation_x;
    u64 each = positions / splits, more = positions - each * splits;
    u64 first = split * each + (split < more ? split : more), last = first + each + (split < more ? 1 : 0);
    u64 line = quotient(first, columns), image = quotient(line, rows);
    unsigned ox = (unsigned)(first - line * columns), oy = (unsigned)(line - image * rows);
    float sum[TILE][TILE];
    UNROLL
    for (unsigned m = 0; m < TILE; m++) {
        UNROLL
        for (unsigned n = 0; n < TILE; n++) sum[m][n] = 0.0f;
    }
    for (u64 p = first; p < last; p++) {
        unsigned iy = oy * stride_y + ky - padding_y, ix = ox * stride_x + kx - padding_x;
        if (iy < height && ix < width) {
            u64 from = p * filters + (u64)group * of_group + filter;
            u64 at = ((image * height + iy) * width + ix) * channels + (u64)group * depth + channel;
            float a[TILE], b[TILE];
            UNROLL
            for (unsigned l = 0; l < TILE; l += 4) {
                FETCH_MAP(dy, from + l, there(of_group, filter + l, 4), of_group % 4 == 0, a + l);
                FETCH_MAP(x, at + l, there(depth, channel + l, 4), depth % 4 == 0, b + l);
            }
            UNROLL
            for (unsigned m = 0; m < TILE; m++) {
                UNROLL
                for (unsigned n = 0; n < TILE; n++) sum[m][n] = fmaf(a[m], b[n], sum[m][n]);
            }
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
    for (unsigned m = 0; m < TILE; m++) {
        if (filter + m >= of_group) continue;
        u64 to = (((split * filters + (u64)group * of_group + filter + m) * taps) + tap) * depth + channel;
        UNROLL
        for (unsigned n = 0; n < TILE; n += 4) {
            unsigned count = there(depth, channel + n, 4);
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (accumulate) FETCH(dweight, to + n, count, depth % 4 == 0, v);
            UNROLL
            for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? v[l] + sum[m][n + l] : sum[m][n + l];
            PUT(dweight, to + n, count, depth % 4 == 0, v);
        }
    }
}
