// A step of a long short-term memory, forward and back: what becomes of the gates once the matrix products are made. The same
// steps, in the same order, as those of the CPU (`cpu/kernels/lstm.rs`, where the formulas are): the same bits.
//
// A thread has one element of the cell, whose four gates lie `channels` apart; it reads all before it writes any, so that an
// operand may be another's place.

// n is rows x channels. Where `first` is set there is no previous cell, and any address does.
KERNEL(lstm_forward, (const float *gates, const float *previous, float *h, float *cell, float *activated,
                      unsigned long long n, unsigned channels, unsigned first)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, channels), at = t + 3 * row * channels;
    float i = sigmoid(gates[at]), f = sigmoid(gates[at + channels]);
    float g = saturated_tanh(gates[at + 2 * (u64)channels]), o = sigmoid(gates[at + 3 * (u64)channels]);
    float sum = f * (first ? 0.0f : previous[t]) + i * g;
    h[t] = o * saturated_tanh(sum);
    cell[t] = sum;
    activated[at] = i;
    activated[at + channels] = f;
    activated[at + 2 * (u64)channels] = g;
    activated[at + 3 * (u64)channels] = o;
}

// Where `first` is set there is neither previous nor dprevious, where `last` is set there is no dcell.
KERNEL(lstm_backward, (const float *activated, const float *previous, const float *cell, const float *dh,
                       const float *dcell, float *dgates, float *dprevious, unsigned long long n, unsigned channels,
                       unsigned first, unsigned last)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, channels), at = t + 3 * row * channels;
    float i = activated[at], f = activated[at + channels];
    float g = activated[at + 2 * (u64)channels], o = activated[at + 3 * (u64)channels];
    float before = first ? 0.0f : previous[t], after = last ? 0.0f : dcell[t], of_h = dh[t];
    float size = saturated_tanh(cell[t]);
    float d = after + of_h * o * (1.0f - size * size);
    dgates[at] = d * g * i * (1.0f - i);
    dgates[at + channels] = d * before * f * (1.0f - f);
    dgates[at + 2 * (u64)channels] = d * i * (1.0f - g * g);
    dgates[at + 3 * (u64)channels] = of_h * size * o * (1.0f - o);
    if (!first) dprevious[t] = d * f;
}
