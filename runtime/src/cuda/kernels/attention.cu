// Attention: its matrix products, head by head, and the steps on rows of scores between them.
//
// A head of a sample has a number, and each matrix of it begins at start + sample * of_sample + head * of_head, where a
// start below 0 wraps around; its elements are at row * of_row + column * of_column. A thread has a tile of 4 x 4 results.
// A warp's tiles form a block of `lanes` tiles of columns by 32 / lanes of rows, so that its threads share their loads.
//
// A few threads share a row of scores, one piece each: piece k of K has the positions k, k + K, k + 2K, ... Each of them
// joins the results of all pieces, in order.

// A thread's tile: `across` of `wide` tiles of columns, `along` of `tall` of rows; `rest` counts the products.
typedef struct {
    u64 along, rest;
    unsigned across;
} Tile;

FUNCTION Tile tile_of(u64 t, unsigned lanes, unsigned wide, u64 tall) {
    Tile tile;
    unsigned lane = (unsigned)(t & 31), others = 32 / lanes;
    u64 block = t >> 5, blocks = (tall + others - 1) / others;
    unsigned blocks_across = (wide + lanes - 1) / lanes;
    u64 line = quotient(block, blocks_across);
    tile.across = (unsigned)(block - line * blocks_across) * lanes + lane % lanes;
    tile.rest = line / blocks;
    tile.along = (line - tile.rest * blocks) * others + lane / lanes;
    return tile;
}

// c = a * b, or added to c; a is rows x depth, b depth x columns. With `causal`, a product leaves out, of results that are
// scores (1), those beyond the diagonal, which are never read; of left sides that are 0 beyond the diagonal (2), or before
// it (3), the zeros. The first row of the scores, or of a matrix with their sides, is that of position `offset`.
KERNEL(attention_product, (const float *a, unsigned long long a_start, unsigned long long a_of_sample,
                           unsigned long long a_of_head, unsigned long long a_of_row, unsigned long long a_of_column,
                           const float *b, unsigned long long b_start, unsigned long long b_of_sample,
                           unsigned long long b_of_head, unsigned long long b_of_row, unsigned long long b_of_column,
                           float *c, unsigned long long c_start, unsigned long long c_of_sample,
                           unsigned long long c_of_head, unsigned long long c_of_row, unsigned long long c_of_column,
                           unsigned lanes, unsigned long long first, unsigned long long numbers, unsigned heads,
                           unsigned rows, unsigned columns, unsigned depth, unsigned offset, unsigned causal, unsigned accumulate)) {
    Tile tile = tile_of(INDEX, lanes, columns / 4 + (columns % 4 != 0), rows / 4 + (rows % 4 != 0));
    unsigned row = (unsigned)tile.along * 4, column = tile.across * 4;
    if (tile.rest >= numbers || row >= rows || column >= columns || (causal == 1 && column > offset + row + 3)) return;
    u64 number = first + tile.rest, sample = quotient(number, heads), head = number - sample * heads;
    a += a_start + sample * a_of_sample + head * a_of_head;
    b += b_start + sample * b_of_sample + head * b_of_head;
    c += c_start + sample * c_of_sample + head * c_of_head;
    u64 of_a[4], of_b[4];
    UNROLL
    for (unsigned l = 0; l < 4; l++) {
        of_a[l] = (row + l < rows ? row + l : rows - 1) * a_of_row;
        of_b[l] = (column + l < columns ? column + l : columns - 1) * b_of_column;
    }
    float sum[4][4];
    UNROLL
    for (unsigned m = 0; m < 4; m++) {
        UNROLL
        for (unsigned n = 0; n < 4; n++) sum[m][n] = 0.0f;
    }
    unsigned end = causal == 2 && offset + row + 4 < depth ? offset + row + 4 : depth;
    for (unsigned k = causal == 3 && row > offset ? row - offset : 0; k < end; k++) {
        float of_row[4], of_column[4];
        UNROLL
        for (unsigned l = 0; l < 4; l++) {
            of_row[l] = a[of_a[l] + k * a_of_column];
            of_column[l] = b[of_b[l] + k * b_of_row];
        }
        UNROLL
        for (unsigned m = 0; m < 4; m++) {
            UNROLL
            for (unsigned n = 0; n < 4; n++) sum[m][n] = fmaf(of_row[m], of_column[n], sum[m][n]);
        }
    }
    UNROLL
    for (unsigned m = 0; m < 4; m++) {
        UNROLL
        for (unsigned n = 0; n < 4; n++) {
            if (row + m >= rows || column + n >= columns) continue;
            float *to = c + (row + m) * c_of_row + (column + n) * c_of_column;
            *to = accumulate ? *to + sum[m][n] : sum[m][n];
        }
    }
}

// The piece of a row that thread t has, if each head from `first` on has this many rows from position `offset` on: the
// piece, the start of the row in scratch and of its two numbers in stats, and the number of positions that it sees.
typedef struct {
    u64 row, start, stats;
    unsigned piece, seen;
} Piece;

FUNCTION Piece piece_of(u64 t, u64 first, unsigned rows, unsigned length, unsigned pieces, unsigned offset,
                        unsigned causal) {
    Piece p;
    p.row = quotient(t, pieces);
    p.piece = (unsigned)(t - p.row * pieces);
    p.start = p.row * length;
    u64 head = quotient(p.row, rows);
    unsigned position = offset + (unsigned)(p.row - head * rows);
    p.stats = ((first + head) * length + position) * 2;
    p.seen = causal ? position + 1 : length;
    return p;
}

// The largest score of each piece. n is rows of all heads x pieces.
KERNEL(attention_largest, (const float *scores, float *largest_of, unsigned long long n, unsigned long long first,
                           unsigned rows, unsigned length, unsigned pieces, unsigned offset, unsigned causal)) {
    if (INDEX >= n) return;
    Piece p = piece_of(INDEX, first, rows, length, pieces, offset, causal);
    float largest = -INFINITE;
    for (unsigned j = p.piece; j < p.seen; j += pieces) {
        float v = scores[p.start + j];
        largest = v > largest ? v : largest;
    }
    largest_of[INDEX] = largest;
}

// The largest score of a row, from those of its pieces.
FUNCTION float largest_of_pieces(const float *largest_of, u64 row, unsigned pieces) {
    float largest = -INFINITE;
    for (unsigned piece = 0; piece < pieces; piece++) {
        float v = largest_of[row * pieces + piece];
        largest = v > largest ? v : largest;
    }
    return largest;
}

// scores = exp((score - largest) * scale), not yet of sum 1, and 0 if masked; and their sum by pieces.
KERNEL(attention_exponentials, (float *scores, const float *largest_of, float *sums, unsigned long long n,
                                unsigned long long first, unsigned rows, unsigned length, unsigned pieces,
                                unsigned offset, unsigned causal, float scale)) {
    if (INDEX >= n) return;
    Piece p = piece_of(INDEX, first, rows, length, pieces, offset, causal);
    float largest = largest_of_pieces(largest_of, p.row, pieces);
    float sum = 0.0f;
    unsigned j = p.piece;
    for (; j < p.seen; j += pieces) {
        float v = exponential((scores[p.start + j] - largest) * scale);
        scores[p.start + j] = v;
        sum += v;
    }
    for (; j < length; j += pieces) scores[p.start + j] = 0.0f;
    sums[INDEX] = sum;
}

// Multiplies exponentials by 1 / their sum; stats then has it behind the largest score, for the backward pass.
KERNEL(attention_scale, (float *probabilities, const float *largest_of, const float *sums, float *stats,
                         unsigned long long n, unsigned long long first, unsigned rows, unsigned length,
                         unsigned pieces, unsigned offset, unsigned causal)) {
    if (INDEX >= n) return;
    Piece p = piece_of(INDEX, first, rows, length, pieces, offset, causal);
    float share = (float)(1.0 / sum_of_pieces(sums, p.row, pieces));
    for (unsigned j = p.piece; j < p.seen; j += pieces) probabilities[p.start + j] *= share;
    if (p.piece > 0) return;
    stats[p.stats] = largest_of_pieces(largest_of, p.row, pieces);
    stats[p.stats + 1] = share;
}

// Turns scores into probabilities again; and the sums by pieces of probability * its gradient.
KERNEL(attention_means, (float *scores, const float *gradient, const float *stats, float *sums, unsigned long long n,
                         unsigned long long first, unsigned rows, unsigned length, unsigned pieces, unsigned offset,
                         unsigned causal, float scale)) {
    if (INDEX >= n) return;
    Piece p = piece_of(INDEX, first, rows, length, pieces, offset, causal);
    float largest = stats[p.stats], share = stats[p.stats + 1], sum = 0.0f;
    unsigned j = p.piece;
    for (; j < p.seen; j += pieces) {
        float probability = exponential((scores[p.start + j] - largest) * scale) * share;
        scores[p.start + j] = probability;
        sum += probability * gradient[p.start + j];
    }
    for (; j < length; j += pieces) scores[p.start + j] = 0.0f;
    sums[INDEX] = sum;
}

// The scores' gradient: probability * (its gradient - the row's sum) * scale.
KERNEL(attention_scores_gradient, (const float *probabilities, float *gradient, const float *sums, unsigned long long n,
                                   unsigned long long first, unsigned rows, unsigned length, unsigned pieces,
                                   unsigned offset, unsigned causal, float scale)) {
    if (INDEX >= n) return;
    Piece p = piece_of(INDEX, first, rows, length, pieces, offset, causal);
    float mean = (float)sum_of_pieces(sums, p.row, pieces);
    unsigned j = p.piece;
    for (; j < p.seen; j += pieces) {
        float probability = probabilities[p.start + j];
        gradient[p.start + j] = probability * (gradient[p.start + j] - mean) * scale;
    }
    for (; j < length; j += pieces) gradient[p.start + j] = 0.0f;
}
