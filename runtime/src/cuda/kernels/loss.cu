// Softmax with cross entropy, its gradient, and the metrics of an iteration.
//
// A few threads share a row, one piece each: piece p has the channels p, p + pieces, ... Each of three kernels ends where
// the pieces of a row must be joined; every piece then joins them all, in order.

// The first largest of each piece, as value and channel.
KERNEL(softmax_largest, (const Map *logits, float *values, unsigned *channels_of, unsigned long long rows,
                         unsigned channels, unsigned pieces)) {
    u64 row = quotient(INDEX, pieces);
    unsigned best = (unsigned)(INDEX - row * pieces);
    if (row >= rows) return;
    const Map *x = logits + row * channels;
    float largest = best < channels ? number(x[best]) : -INFINITE;
    for (unsigned c = best + pieces; c < channels; c += pieces) {
        float v = number(x[c]);
        if (v > largest) {
            largest = v;
            best = c;
        }
    }
    values[INDEX] = largest;
    channels_of[INDEX] = best;
}

// The sums by pieces of exp(logits - largest); and for each row the largest, the label's logit above it, and 1 if the label
// is the first of the largest, else 0. A label beyond the classes gives NaN, never a read.
KERNEL(softmax_sums, (const Map *logits, const int *labels, const float *values, const unsigned *channels_of,
                      double *sums, float *largest_of, float *gaps, float *right, unsigned long long rows,
                      unsigned channels, unsigned pieces)) {
    u64 row = quotient(INDEX, pieces);
    unsigned piece = (unsigned)(INDEX - row * pieces);
    if (row >= rows) return;
    float largest = values[row * pieces];
    unsigned best = channels_of[row * pieces];
    for (unsigned p = 1; p < pieces && p < channels; p++) {
        float value = values[row * pieces + p];
        unsigned channel = channels_of[row * pieces + p];
        if (value > largest || (value == largest && channel < best)) {
            largest = value;
            best = channel;
        }
    }
    int label = labels[row];
    double sum = 0.0;
    for (unsigned c = piece; c < channels; c += pieces) {
        float above = number(logits[row * channels + c]) - largest;
        if (label >= 0 && c == (unsigned)label) gaps[row] = above;
        sum += (double)expf(above);
    }
    sums[INDEX] = sum;
    if (piece == 0) {
        largest_of[row] = largest;
        right[row] = label >= 0 && (unsigned)label == best ? 1.0f : 0.0f;
        if (label >= 0 && (unsigned)label >= channels) gaps[row] = NOT_A_NUMBER;
    }
}

// differences = exp(logits - largest) / their sum - one-hot, 0 for samples that do not count; each from its own logit, so
// that they may be in place of the logits. of_rows = [loss, right, counted] of each row.
KERNEL(softmax_differences, (const Map *logits, Map *differences, const int *labels, const double *sums,
                             const float *largest_of, const float *gaps, const float *right, float *of_rows,
                             unsigned long long rows, unsigned channels, unsigned pieces)) {
    u64 row = quotient(INDEX, pieces);
    unsigned piece = (unsigned)(INDEX - row * pieces);
    if (row >= rows) return;
    double sum = 0.0;
    for (unsigned p = 0; p < pieces; p++) sum += sums[row * pieces + p];
    float scale = (float)(1.0 / sum), largest = largest_of[row];
    int label = labels[row];
    for (unsigned c = piece; c < channels; c += pieces) {
        u64 i = row * channels + c;
        float hot = c == (unsigned)label ? 1.0f : 0.0f;
        // A probability close to one loses bits when rounded to a Map, which its difference from one keeps.
        differences[i] = stored(label >= 0 ? expf(number(logits[i]) - largest) * scale - hot : 0.0f);
    }
    if (piece == 0) {
        unsigned counts = label >= 0;
        of_rows[3 * row] = counts ? (float)(log(sum) - (double)gaps[row]) : 0.0f;
        of_rows[3 * row + 1] = counts ? right[row] : 0.0f;
        of_rows[3 * row + 2] = counts ? 1.0f : 0.0f;
    }
}

// metrics = [mean loss, right, counted].
KERNEL(loss_metrics, (const float *sums, float *metrics)) {
    if (INDEX > 0) return;
    metrics[0] = sums[0] / fmaxf(sums[2], 1.0f);
    metrics[1] = sums[1];
    metrics[2] = sums[2];
}

// Number of `each` labels that count.
KERNEL(count_labels, (const int *labels, float *counts, unsigned long long rows, unsigned each)) {
    u64 first = INDEX * each;
    if (first >= rows) return;
    unsigned many = there(rows, first, each);
    float count = 0.0f;
    for (unsigned i = 0; i < many; i++) count += labels[first + i] >= 0 ? 1.0f : 0.0f;
    counts[INDEX] = count;
}

// dlogits = differences / counted.
KERNEL(softmax_backward, (const Map *differences, const float *counted, Map *dlogits, unsigned long long n)) {
    u64 i = INDEX;
    if (i >= n) return;
    dlogits[i] = stored(number(differences[i]) * (1.0f / fmaxf(counted[0], 1.0f)));
}
