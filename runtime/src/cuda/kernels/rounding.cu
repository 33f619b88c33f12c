// Between f32 and bf16, where feature maps are stored in bf16: what a product multiplies by, scales, and what a library gives in
// bf16 alone.

// to = from, rounded; or added to what it holds, and the sum rounded.
KERNEL(round_floats, (const float *from, Map *to, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], old[4];
    load(from, i, count, v);
    if (accumulate) load_map(to, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? old[l] + v[l] : v[l];
    store_map(to, i, count, v);
}

// to = from, or added to it.
KERNEL(widen_map, (const Map *from, float *to, unsigned long long n, unsigned accumulate)) {
    u64 i = 4 * INDEX;
    unsigned count = there(n, i, 4);
    float v[4], old[4];
    load_map(from, i, count, v);
    if (accumulate) load(to, i, count, old);
    UNROLL
    for (unsigned l = 0; l < 4; l++) v[l] = accumulate ? old[l] + v[l] : v[l];
    store(to, i, count, v);
}
