// A step of a long short-term memory, forward and backward: the operations on the gates after the matrix products. Steps
// and order are those of the CPU (`cpu/kernels/lstm.rs`, which has the formulas), for the same bits.
//
// A thread has one element of the cell, whose four gates are `channels` apart; it reads all before it writes any, so that
// an operand may be in place of another.

// n is rows x channels. If `first` is set there is no previous cell, and any address will do.
KERNEL(lstm_forward, (const Map *gates, const Map *previous, Map *h, Map *cell, Map *activated,
                      unsigned long long n, unsigned channels, unsigned first)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, channels), at = t + 3 * row * channels;
    float i = sigmoid(number(gates[at])), f = sigmoid(number(gates[at + channels]));
    float g = saturated_tanh(number(gates[at + 2 * (u64)channels]));
    float o = sigmoid(number(gates[at + 3 * (u64)channels]));
    float sum = f * (first ? 0.0f : number(previous[t])) + i * g;
    h[t] = stored(o * saturated_tanh(sum));
    cell[t] = stored(sum);
    activated[at] = stored(i);
    activated[at + channels] = stored(f);
    activated[at + 2 * (u64)channels] = stored(g);
    activated[at + 3 * (u64)channels] = stored(o);
}

// If `first` is set there is neither previous nor dprevious; if `last` is set there is no dcell.
KERNEL(lstm_backward, (const Map *activated, const Map *previous, const Map *cell, const Map *dh,
                       const Map *dcell, Map *dgates, Map *dprevious, unsigned long long n, unsigned channels,
                       unsigned first, unsigned last)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, channels), at = t + 3 * row * channels;
    float i = number(activated[at]), f = number(activated[at + channels]);
    float g = number(activated[at + 2 * (u64)channels]), o = number(activated[at + 3 * (u64)channels]);
    float before = first ? 0.0f : number(previous[t]), after = last ? 0.0f : number(dcell[t]);
    float of_h = number(dh[t]), size = saturated_tanh(number(cell[t]));
    float d = after + of_h * o * (1.0f - size * size);
    dgates[at] = stored(d * g * i * (1.0f - i));
    dgates[at + channels] = stored(d * before * f * (1.0f - f));
    dgates[at + 2 * (u64)channels] = stored(d * i * (1.0f - g * g));
    dgates[at + 3 * (u64)channels] = stored(of_h * size * o * (1.0f - o));
    if (!first) dprevious[t] = stored(d * f);
}
