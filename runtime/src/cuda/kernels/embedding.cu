// Tables of tokens, and their gradient. A token beyond the table gives NaN, never a read or a write.

// y = the rows named by the tokens, one element per thread; n is samples x count x width.
KERNEL(embedding_forward, (const int *tokens, const float *weight, Map *y, unsigned long long n,
                           unsigned long long length, unsigned long long first, unsigned count, unsigned vocabulary,
                           unsigned width)) {
    u64 i = INDEX;
    if (i >= n) return;
    u64 lookup = quotient(i, width), sample = quotient(lookup, count);
    int token = tokens[sample * length + first + (lookup - sample * count)];
    unsigned known = token >= 0 && (unsigned)token < vocabulary;
    y[i] = stored(known ? weight[(u64)(unsigned)token * width + (i - lookup * width)] : NOT_A_NUMBER);
}

// dweight = for each row the sum of dy at its token's positions, or added to dweight. A thread has one channel of the rows
// with the same remainder by `pieces`, a power of 2, and goes through all tokens in order.
KERNEL(embedding_backward, (const int *tokens, const Map *dy, float *dweight, unsigned long long batch,
                            unsigned long long length, unsigned long long first, unsigned count, unsigned vocabulary,
                            unsigned width, unsigned pieces, unsigned accumulate)) {
    u64 t = INDEX, piece = quotient(t, width), channel = t - piece * width;
    if (piece >= pieces) return;
    if (!accumulate)
        for (u64 row = piece; row < vocabulary; row += pieces) dweight[row * width + channel] = 0.0f;
    for (u64 sample = 0; sample < batch; sample++) {
        const int *of_sample = tokens + sample * length + first;
        const Map *from = dy + sample * count * width + channel;
        for (unsigned i = 0; i < count; i++) {
            int token = of_sample[i];
            if (((unsigned)token & (pieces - 1)) != piece || token < 0 || (unsigned)token >= vocabulary) continue;
            dweight[(u64)(unsigned)token * width + channel] += number(from[(u64)i * width]);
        }
    }
}
