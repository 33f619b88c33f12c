// Conversion between f32 and bf16, if activations are stored in bf16: for factors of products, scales, samples of
// attention, and a library's bf16 results. The bf16 numbers begin at `first` of their tensor.

// to = from, rounded; or added to `to`, and the sum rounded.
KERNEL(round_floats, (const float *from, Map *to, unsigned long long first, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], old[4];
    load(from, i, count, v);
    if (accumulate) fetch_map(to, first + i, count, first % 4 == 0, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? old[l] + v[l] : v[l];
    put_map(to, first + i, count, first % 4 == 0, v);
}

// to = from, or added to `to`.
KERNEL(widen_map, (const Map *from, float *to, unsigned long long first, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], old[4];
    fetch_map(from, first + i, count, first % 4 == 0, v);
    if (accumulate) load(to, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? old[l] + v[l] : v[l];
    store(to, i, count, v);
}
